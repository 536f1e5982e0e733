"""Kept answers and shared jobs: one answer for all who ask the same, and nobody takes it from the others."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from typing import Any

import pytest

from contract.queues import Queue
from support.waiting import wait_until
from visionchat_serve.broker import Broker, LeaseState, Reuse
from visionchat_serve.errors import IdempotencyConflict
from visionchat_serve.messages import Claim, Finish, Idempotency, QueueLoad, Submitted, Usage

NOW = timedelta(0)
STOP = Finish("stop", Usage(3, 2))


async def claim(broker: Broker) -> Claim:
    [claimed] = await broker.claim("by hand", 1, timedelta(seconds=5))
    return claimed


async def answer(broker: Broker, *pieces: str, finish: Finish = STOP) -> None:
    claimed = await claim(broker)
    for index, piece in enumerate(pieces):
        assert await broker.publish(claimed, index, piece) is LeaseState.HELD
    assert await broker.finish(claimed, finish)


@pytest.fixture
def ask(make_job: Any) -> Any:
    async def one(broker: Broker, reuse: Reuse = Reuse.SHARE, key: str = "same", **more: Any) -> Submitted:
        job = make_job(images=1, cache_key=key, **more)
        submitted = await broker.ask(job, [b"p"], None, reuse)
        assert (submitted.job_id == job.id) == (submitted.how in ("accepted", "hit"))
        return submitted

    return one


@pytest.mark.parametrize("reuse", [Reuse.ANSWER, Reuse.SHARE])
async def test_a_kept_answer_is_given_again(broker: Broker, ask: Any, collect: Any, text_of: Any, reuse: Reuse) -> None:
    first = await ask(broker, Reuse.NOTHING)
    await answer(broker, "a ", "red ⭐")
    again = await ask(broker, reuse, owner="ann")
    assert (first.how, again.how) == ("accepted", "hit")
    assert await broker.load() == QueueLoad(0, 0)
    events = await collect(broker, again.job_id)
    assert text_of(events) == "a red ⭐"
    assert [event.id for event in events] == [event.id for event in await broker.so_far(first.job_id)]
    assert all(getattr(event.value, "job_id", again.job_id) == again.job_id for event in events)
    view = await broker.describe(again.job_id)
    assert (view.status, view.finish, view.owner, view.attempt) == ("succeeded", STOP, "ann", 1)
    assert [v.id for v in await broker.jobs("ann", 5)] == [again.job_id]
    assert not await broker.cancel(again.job_id)


async def test_only_what_was_asked_for_is_reused(broker: Broker, ask: Any) -> None:
    await ask(broker)
    await answer(broker, "a")
    assert (await ask(broker, Reuse.NOTHING)).how == "accepted"
    assert (await ask(broker, key="other")).how == "accepted"


@pytest.mark.parametrize(
    "end", [Finish("error", error_code="engine_failure", message="boom"), Finish("cancelled", message="gone")]
)
async def test_bad_ends_are_not_kept(broker: Broker, ask: Any, end: Finish) -> None:
    await ask(broker)
    await answer(broker, "a", finish=end)
    assert (await ask(broker)).how == "accepted"


async def test_what_two_attempts_said_is_not_kept(queue: Queue, ask: Any) -> None:
    broker = queue.open(lease=timedelta(milliseconds=30))
    await ask(broker)
    await broker.publish(await claim(broker), 0, "a b")
    await answer(broker, "a ", "c")
    assert (await ask(broker)).how == "accepted"


async def test_an_answer_is_forgotten_in_time(queue: Queue, ask: Any) -> None:
    broker = queue.open(cache_ttl=timedelta(milliseconds=100))
    await ask(broker)
    await answer(broker, "a")

    async def forgotten() -> bool:
        return bool((await ask(broker, Reuse.ANSWER)).how == "accepted")

    await wait_until(forgotten, "its time has passed")


async def test_the_oldest_answers_make_room(queue: Queue, ask: Any) -> None:
    broker = queue.open(cache_bytes=20_000)
    for number in range(8):
        await ask(broker, key=f"key {number}")
        await answer(broker, "x" * 4000)
    found = [(await ask(broker, Reuse.ANSWER, key=f"key {number}")).how for number in range(8)]
    kept = found.count("hit")
    assert 2 <= kept <= 5
    assert found == ["accepted"] * (8 - kept) + ["hit"] * kept


async def test_what_is_larger_than_the_whole_cache_is_not_kept(queue: Queue, ask: Any) -> None:
    broker = queue.open(cache_bytes=3000)
    for key, text in (("small", "x"), ("large", "x" * 4000)):
        await ask(broker, key=key)
        await answer(broker, text)
    assert [(await ask(broker, Reuse.ANSWER, key=key)).how for key in ("small", "large")] == ["hit", "accepted"]


async def test_an_answer_outlives_its_job(queue: Queue, ask: Any, collect: Any, text_of: Any) -> None:
    broker = queue.open(result_ttl=timedelta(milliseconds=50))
    await ask(broker)
    await answer(broker, "a")

    async def forgotten() -> bool:
        return not await broker.jobs("", 1)

    await wait_until(forgotten, "the job's result has expired")
    again = await ask(broker)
    assert again.how == "hit"
    assert text_of(await collect(broker, again.job_id)) == "a"


async def test_of_many_same_requests_at_once_one_is_answered(
    queue: Queue, ask: Any, collect: Any, text_of: Any
) -> None:
    brokers = [queue.open(max_waiting=1, owner_open=1, owner_rate=1) for _ in range(3)]
    asked = await asyncio.gather(*(ask(brokers[n % 3]) for n in range(12)))
    assert sorted(submitted.how for submitted in asked) == ["accepted"] + ["joined"] * 11
    assert len({submitted.job_id for submitted in asked}) == 1
    await answer(brokers[0], "a ", "b")
    for broker in brokers:
        assert text_of(await collect(broker, asked[0].job_id)) == "a b"


async def test_who_leaves_does_not_take_the_answer_from_the_others(broker: Broker, make_job: Any) -> None:
    jobs = [make_job(cache_key="same") for _ in range(3)]
    leader, *others = jobs
    for job in jobs:
        assert (await broker.ask(job, [], None, Reuse.SHARE)).job_id == leader.id
    assert not await broker.let_go(leader.id, leader.id)
    assert not await broker.let_go(leader.id, others[0].id)
    assert not await broker.let_go(leader.id, others[0].id), "told twice"
    claimed = await claim(broker)
    assert await broker.publish(claimed, 0, "a") is LeaseState.HELD
    assert await broker.let_go(leader.id, others[1].id), "the last one"
    assert await broker.publish(claimed, 1, "b") is LeaseState.CANCELLED
    fresh = await broker.ask(make_job(cache_key="same"), [], None, Reuse.SHARE)
    assert fresh.how == "accepted", "nobody joins what is being stopped"


async def test_letting_go_of_what_has_ended_or_never_was(broker: Broker, ask: Any) -> None:
    submitted = await ask(broker)
    await answer(broker, "a")
    assert not await broker.let_go(submitted.job_id, submitted.job_id)
    assert not await broker.let_go("nobody", "nobody")
    assert (await broker.describe(submitted.job_id)).status == "succeeded"


async def test_nobody_joins_a_job_that_has_much_less_time(broker: Broker, ask: Any) -> None:
    assert (await ask(broker, deadline=20.0)).how == "accepted"
    assert (await ask(broker, deadline=30.0)).how == "joined"
    late = await ask(broker, deadline=60.0)
    assert late.how == "accepted"
    assert (await ask(broker, deadline=60.0)).job_id == late.job_id, "the next ones join this one"


async def test_a_key_and_a_kept_answer(broker: Broker, make_job: Any) -> None:
    key = Idempotency("key", "body")
    first = make_job(cache_key="same")
    await broker.ask(first, [], key)
    await answer(broker, "a")
    assert await broker.ask(make_job(cache_key="same"), [], key, Reuse.ANSWER) == Submitted(first.id, "known")
    with pytest.raises(IdempotencyConflict):
        await broker.ask(make_job(cache_key="same"), [], Idempotency("key", "other"), Reuse.ANSWER)
    hit, key = make_job(cache_key="same"), Idempotency("key 2", "body")
    assert (await broker.ask(hit, [], key, Reuse.ANSWER)).how == "hit"
    assert await broker.ask(make_job(cache_key="same"), [], key, Reuse.ANSWER) == Submitted(hit.id, "known")


async def test_same_jobs_have_one_answer_and_each_its_own_end(
    broker: Broker, ask: Any, collect: Any, text_of: Any
) -> None:
    """They were accepted before the first of them was answered, one by one, and stay jobs of their own."""
    leader, double, dropped, other = [
        await ask(broker, Reuse.ANSWER, key) for key in ("same", "same", "same", "another")
    ]
    assert {job.how for job in (leader, double, dropped, other)} == {"accepted"}
    claimed = await claim(broker)
    assert claimed.job.id == leader.job_id
    [following] = await broker.claim("elsewhere", 5, NOW)
    assert following.job.id == other.job_id, "the same is not answered twice at once"
    assert (await broker.describe(double.job_id)).status == "queued"
    assert await broker.cancel(dropped.job_id)
    reading = asyncio.ensure_future(collect(broker, double.job_id))
    await broker.publish(claimed, 0, "a red ⭐")
    await broker.finish(claimed, STOP)
    assert await broker.claim("by hand", 5, NOW) == []
    assert text_of(await asyncio.wait_for(reading, 10)) == "a red ⭐"
    views = [await broker.describe(job.job_id) for job in (leader, double, dropped)]
    assert [view.status for view in views] == ["succeeded", "succeeded", "cancelled"]
    await broker.finish(following, STOP)
    assert await broker.load() == QueueLoad(0, 0)


@pytest.mark.parametrize("end", [Finish("error", error_code="engine_failure", message="boom"), None])
async def test_without_an_answer_the_next_of_the_same_is_asked(queue: Queue, ask: Any, end: Finish | None) -> None:
    broker = queue.open(lease=timedelta(seconds=30))
    leader, double = [await ask(broker, Reuse.ANSWER) for _ in range(2)]
    claimed = await claim(broker)
    assert claimed.job.id == leader.job_id
    assert await broker.claim("elsewhere", 5, NOW) == []
    waiting = asyncio.ensure_future(broker.claim("elsewhere", 5, timedelta(seconds=5)))
    if end is None:
        await broker.cancel(leader.job_id)
    await broker.finish(claimed, end or Finish("cancelled"))
    [following] = await waiting
    assert (following.job.id, following.images) == (double.job_id, (b"p",))


async def test_who_wants_a_fresh_answer_waits_for_no_other(broker: Broker, ask: Any) -> None:
    jobs = [await ask(broker, reuse) for reuse in (Reuse.ANSWER, Reuse.NOTHING)]
    assert [one.job.id for one in await broker.claim("by hand", 5, NOW)] == [job.job_id for job in jobs]


async def test_a_lost_job_is_not_waited_for(queue: Queue, ask: Any) -> None:
    broker = queue.open(lease=timedelta(milliseconds=30))
    leader, double = [await ask(broker, Reuse.ANSWER) for _ in range(2)]
    assert (await claim(broker)).job.id == leader.job_id
    again = await claim(broker)  # when its lease has expired
    assert (again.job.id, again.attempt) == (leader.job_id, 2)
    await broker.publish(again, 0, "a")
    await broker.finish(again, STOP)
    assert await broker.claim("by hand", 5, NOW) == []
    assert (await broker.describe(double.job_id)).status == "succeeded"


async def test_a_job_that_has_begun_to_answer_goes_on_by_itself(queue: Queue, ask: Any, collect: Any) -> None:
    """Another one's answer is not put behind what it has said already."""
    broker = queue.open(lease=timedelta(milliseconds=30), retry_delay=timedelta(milliseconds=200))
    begun, double = [await ask(broker, Reuse.ANSWER) for _ in range(2)]
    for attempt in (1, 2):
        lost = await claim(broker)
        assert (lost.job.id, lost.attempt) == (begun.job_id, attempt)
    await broker.publish(lost, 0, "a ")
    other = await claim(broker)  # the first one is delayed now
    assert other.job.id == double.job_id
    await broker.publish(other, 0, "a b")
    await broker.finish(other, STOP)
    again = await claim(broker)
    assert (again.job.id, again.attempt) == (begun.job_id, 3)
    await broker.publish(again, 0, "a b")
    await broker.finish(again, STOP)
    assert [getattr(event.value, "text", "") for event in await collect(broker, begun.job_id)] == ["a ", "a b", ""]
