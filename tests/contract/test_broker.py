"""Every sentence of `broker.py`, for every broker."""

from __future__ import annotations

import asyncio
import os
import time
from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest

from contract.queues import QUICK, Queue
from support.waiting import wait_until
from visionchat_serve.broker import Broker, LeaseState
from visionchat_serve.errors import InvalidRequest, NotFound, QueueFull
from visionchat_serve.messages import Claim, Finish, QueueLoad, ReplicaReport, TokenChunk, TokenLogprob, Usage

NOW = timedelta(0)
SOON = timedelta(seconds=3)
STOP = Finish("stop", Usage(10, 2, 4))


async def claim_one(broker: Broker, consumer: str = "a", block: timedelta = SOON) -> Claim:
    claims = await broker.claim(consumer, 1, block)
    assert len(claims) == 1, "a job was there to be claimed"
    return claims[0]


def end_of(events: list[Any]) -> Finish:
    finish = events[-1].value
    assert isinstance(finish, Finish)
    assert sum(isinstance(e.value, Finish) for e in events) == 1
    return finish


# --- from question to answer ---


async def test_a_job_is_answered(broker: Broker, make_job: Any, collect: Any) -> None:
    job = make_job(images=2)
    images = [os.urandom(100_000), bytes(range(256)) * 4]
    await broker.submit(job, images)
    claim = await claim_one(broker)
    assert (claim.job, claim.images, claim.attempt) == (job, tuple(images), 1)

    assert await broker.publish(claim, 0, "a bl") is LeaseState.HELD
    assert await broker.publish(claim, 1, "ue ⭐\n\0") is LeaseState.HELD
    assert await broker.finish(claim, STOP)

    events = await collect(broker, job.id)
    assert [e.value for e in events] == [
        TokenChunk(job.id, 1, 0, "a bl"),
        TokenChunk(job.id, 1, 1, "ue ⭐\n\0"),
        STOP,
    ]
    assert {e.attempt for e in events} == {1}
    assert await broker.load() == QueueLoad(0, 0)


async def test_several_answers_and_log_probabilities_come_back_as_they_went(
    broker: Broker, make_job: Any, collect: Any
) -> None:
    job = make_job()
    await broker.submit(job, [])
    claim = await claim_one(broker)
    half = TokenLogprob("\ufffd", -0.25, (0xE2, 0xAD), top=(TokenLogprob("a", -1.5, (0x61,)),))
    end = Finish("stop", Usage(10, 4), others=("length",))
    assert await broker.publish(claim, 0, "", 0, (half,)) is LeaseState.HELD
    assert await broker.publish(claim, 1, "b", 1) is LeaseState.HELD
    assert await broker.finish(claim, end)
    assert [e.value for e in await collect(broker, job.id)] == [
        TokenChunk(job.id, 1, 0, "", 0, (half,)),
        TokenChunk(job.id, 1, 1, "b", 1),
        end,
    ]


async def test_events_arrive_while_they_are_written(broker: Broker, make_job: Any) -> None:
    job = make_job()
    await broker.submit(job, [])
    events = broker.events(job.id)
    first = asyncio.ensure_future(anext(events))
    claim = await claim_one(broker)
    await broker.publish(claim, 0, "red")
    assert (await asyncio.wait_for(first, 2)).value == TokenChunk(job.id, 1, 0, "red")
    await broker.finish(claim, STOP)
    async with asyncio.timeout(1):  # the end is told at once, not after one more wait
        assert [e.value async for e in events] == [STOP]


async def test_events_resume_after_any_id(broker: Broker, make_job: Any, collect: Any) -> None:
    job = make_job()
    await broker.submit(job, [])
    claim = await claim_one(broker)
    for index in range(5):
        await broker.publish(claim, index, str(index))
    await broker.finish(claim, STOP)
    events = await collect(broker, job.id)
    for seen, event in enumerate(events, start=1):
        assert await collect(broker, job.id, after=event.id) == events[seen:]


async def test_two_readers_see_the_same(broker: Broker, make_job: Any, collect: Any) -> None:
    job = make_job()
    await broker.submit(job, [])
    readers = [asyncio.ensure_future(collect(broker, job.id)) for _ in range(2)]
    claim = await claim_one(broker)
    await broker.publish(claim, 0, "x")
    await broker.finish(claim, STOP)
    one, two = await asyncio.gather(*readers)
    assert one == two
    assert len(one) == 2


@pytest.mark.parametrize("after", ["", "x", "-1", "1-", "1-2-3", "9" * 30, "$", "٣"])
async def test_a_strange_resume_point_is_refused(broker: Broker, make_job: Any, collect: Any, after: str) -> None:
    job = make_job()
    await broker.submit(job, [])
    with pytest.raises(InvalidRequest):
        await collect(broker, job.id, after=after)


async def test_an_unknown_job(broker: Broker, collect: Any) -> None:
    with pytest.raises(NotFound):
        await collect(broker, "nobody")
    assert not await broker.cancel("nobody")


async def test_results_expire_under_a_reader(queue: Any, make_job: Any, collect: Any) -> None:
    broker = queue.open(result_ttl=timedelta(milliseconds=100))
    job = make_job()
    await broker.submit(job, [])
    await broker.finish(await claim_one(broker), STOP)

    async def gone() -> bool:
        try:
            await collect(broker, job.id)
        except NotFound:
            return True
        return False

    await wait_until(gone, "the results have expired")


# --- accepting ---


async def test_the_same_job_twice_is_one(broker: Broker, make_job: Any, collect: Any) -> None:
    job = make_job(images=1)
    for _ in range(2):
        await broker.submit(job, [b"picture"])
    assert await broker.load() == QueueLoad(waiting=1, leased=0)
    claim = await claim_one(broker)
    assert claim.images == (b"picture",)
    await broker.finish(claim, STOP)
    await broker.submit(job, [b"picture"])
    assert await broker.load() == QueueLoad(0, 0)
    assert len(await collect(broker, job.id)) == 1


async def test_the_queue_is_full(queue: Any, make_job: Any) -> None:
    broker = queue.open(max_waiting=2)
    jobs = [make_job() for _ in range(3)]
    for job in jobs[:2]:
        await broker.submit(job, [])
    claim = await claim_one(broker)  # a job in work is not answered either
    with pytest.raises(QueueFull):
        await broker.submit(jobs[2], [])
    await broker.submit(jobs[1], [])  # known already: nothing to refuse
    await broker.finish(claim, STOP)
    await broker.submit(jobs[2], [])
    assert (await broker.load()).backlog == 2


# --- claiming ---


async def test_first_come_first_served(broker: Broker, make_job: Any) -> None:
    jobs = [make_job() for _ in range(5)]
    for job in jobs:
        await broker.submit(job, [])
    claims = await broker.claim("a", 2, NOW) + await broker.claim("b", 2, NOW) + await broker.claim("a", 2, NOW)
    assert [c.job.id for c in claims] == [job.id for job in jobs]


async def test_a_claim_waits_for_a_job(broker: Broker, make_job: Any) -> None:
    assert await broker.claim("a", 1, NOW) == []
    started = time.monotonic()
    assert await broker.claim("a", 1, timedelta(milliseconds=100)) == []
    assert 0.09 < time.monotonic() - started < 1

    waiting = asyncio.ensure_future(claim_one(broker))
    await wait_until(lambda: not waiting.done(), "it waits")
    job = make_job()
    await broker.submit(job, [])
    assert (await asyncio.wait_for(waiting, 2)).job == job


async def test_many_consumers_share_without_loss_or_doubling(queue: Any, make_job: Any, collect: Any) -> None:
    brokers = [queue.open(lease=timedelta(seconds=10)) for _ in range(2)]
    jobs = [make_job(images=1) for _ in range(200)]
    answered: list[str] = []

    async def consume(number: int) -> None:
        broker = brokers[number % 2]
        while len(answered) < len(jobs):
            for claim in await broker.claim(f"c{number}", 3, timedelta(milliseconds=50)):
                assert claim.images == (claim.job.id.encode(),)
                assert claim.attempt == 1
                assert await broker.publish(claim, 0, claim.job.id) is LeaseState.HELD
                assert await broker.finish(claim, STOP)
                answered.append(claim.job.id)

    async def produce() -> None:
        for job in jobs:
            await brokers[0].submit(job, [job.id.encode()])

    await asyncio.gather(produce(), *(consume(n) for n in range(8)))
    assert sorted(answered) == sorted(job.id for job in jobs)
    assert await brokers[1].load() == QueueLoad(0, 0)
    for job in jobs[::50]:
        assert [e.value for e in await collect(brokers[1], job.id)] == [TokenChunk(job.id, 1, 0, job.id), STOP]


# --- leases ---


async def test_an_expired_lease_is_taken_over_and_the_older_claim_fenced(
    queue: Queue, make_job: Any, collect: Any
) -> None:
    broker = queue.open(lease=QUICK)
    job = make_job(images=1)
    await broker.submit(job, [b"p"])
    old = await claim_one(broker, "a")
    await broker.publish(old, 0, "old")
    new = await claim_one(broker, "b")
    assert (new.job, new.images, new.attempt) == (job, (b"p",), 2)

    assert await broker.publish(old, 1, "late") is LeaseState.LOST
    assert not await broker.finish(old, STOP)
    assert not await broker.release(old)
    assert await broker.renew("a", [old]) == [LeaseState.LOST]

    assert await broker.publish(new, 0, "new") is LeaseState.HELD
    assert await broker.finish(new, STOP)
    events = await collect(broker, job.id)
    assert [(e.attempt, getattr(e.value, "text", "end")) for e in events] == [(1, "old"), (2, "new"), (2, "end")]


async def test_an_expired_lease_comes_before_new_jobs(queue: Queue, make_job: Any) -> None:
    broker = queue.open(lease=QUICK)
    jobs = [make_job() for _ in range(3)]
    await broker.submit(jobs[0], [])
    await claim_one(broker, "a")
    for job in jobs[1:]:
        await broker.submit(job, [])
    await wait_until(lambda: _waiting(broker, 3), "the lease has expired")
    assert [c.job.id for c in await broker.claim("b", 3, NOW)] == [job.id for job in jobs]


async def _waiting(broker: Broker, count: int) -> bool:
    return (await broker.load()).waiting == count


async def test_a_waiting_claim_sees_a_lease_expire(queue: Queue, make_job: Any) -> None:
    broker = queue.open(lease=QUICK)
    await broker.submit(make_job(), [])
    await claim_one(broker, "a")
    started = time.monotonic()
    assert (await claim_one(broker, "b")).attempt == 2
    assert time.monotonic() - started < 0.2 + 1


async def test_renewing_keeps_the_lease(queue: Queue, make_job: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    clock = await queue.stop_the_clock(monkeypatch)
    broker = queue.open(lease=timedelta(seconds=10))
    for _ in range(3):
        await broker.submit(make_job(), [])
    claims = await broker.claim("a", 3, NOW)
    for _ in range(3):
        await clock.jump(9.9)
        assert await broker.renew("a", claims) == [LeaseState.HELD] * 3
        assert await broker.claim("b", 3, NOW) == []
    assert await broker.renew("a", []) == []
    assert await broker.load() == QueueLoad(waiting=0, leased=3)
    await broker.finish(claims[1], STOP)
    assert await broker.renew("a", claims) == [LeaseState.HELD, LeaseState.LOST, LeaseState.HELD]


async def test_an_expired_lease_lives_on_when_nobody_took_the_job(queue: Queue, make_job: Any) -> None:
    broker = queue.open(lease=QUICK)
    await broker.submit(make_job(), [])
    claim = await claim_one(broker, "a")
    await wait_until(lambda: _waiting(broker, 1), "the lease has expired")
    assert await broker.renew("a", [claim]) == [LeaseState.HELD]
    assert await broker.load() == QueueLoad(waiting=0, leased=1)
    assert await broker.claim("b", 1, NOW) == []
    assert await broker.finish(claim, STOP)


async def test_attempts_are_used_up(queue: Any, make_job: Any, collect: Any) -> None:
    broker = queue.open(lease=QUICK, max_attempts=2)
    job = make_job(images=1)
    await broker.submit(job, [b"p"])
    for attempt in (1, 2):
        assert (await claim_one(broker, f"c{attempt}")).attempt == attempt
    await wait_until(lambda: _waiting(broker, 1), "the lease has expired")
    assert await broker.claim("c3", 1, NOW) == []
    finish = end_of(await collect(broker, job.id))
    assert (finish.reason, finish.error_code) == ("error", "replica_lost")
    assert "2 replicas" in str(finish.message)
    assert await broker.load() == QueueLoad(0, 0)


# --- deadlines ---


async def test_a_job_past_its_deadline_is_not_claimed_but_ended(broker: Broker, make_job: Any, collect: Any) -> None:
    late, good = make_job(deadline=-0.001), make_job()
    await broker.submit(late, [])
    await broker.submit(good, [])
    assert [c.job.id for c in await broker.claim("a", 2, NOW)] == [good.id]
    finish = end_of(await collect(broker, late.id))
    assert (finish.reason, finish.error_code) == ("error", "timeout")


async def test_a_deadline_holds_without_any_replica(broker: Broker, make_job: Any, collect: Any) -> None:
    job = make_job(deadline=0.2)
    await broker.submit(job, [])
    async with asyncio.timeout(2):
        finish = end_of(await collect(broker, job.id))
    assert finish.error_code == "timeout"
    assert await broker.load() == QueueLoad(0, 0)
    assert await broker.claim("a", 1, NOW) == []


async def test_a_held_job_is_not_ended_by_its_readers(broker: Broker, make_job: Any, collect: Any) -> None:
    job = make_job(deadline=0.1)
    await broker.submit(job, [])
    claim = await claim_one(broker)
    await wait_until(lambda: time.time() > job.deadline_at, "the deadline has passed")
    await broker.renew("a", [claim])
    reader = asyncio.ensure_future(collect(broker, job.id))
    assert await broker.publish(claim, 0, "just") is LeaseState.HELD
    assert await broker.finish(claim, STOP)
    assert end_of(await reader) == STOP


# --- ending ---


async def test_a_job_ends_once(broker: Broker, make_job: Any, collect: Any) -> None:
    job = make_job()
    await broker.submit(job, [])
    claim = await claim_one(broker)
    assert await broker.finish(claim, STOP)
    assert await broker.finish(claim, Finish("length")), "told twice after a lost reply: it has ended, by us"
    assert await broker.publish(claim, 0, "more") is LeaseState.LOST
    assert not await broker.cancel(job.id)
    assert not await broker.release(claim)
    assert [e.value for e in await collect(broker, job.id)] == [STOP]
    assert await broker.claim("b", 1, timedelta(milliseconds=300)) == []


async def test_a_chunk_is_written_once_and_never_after_a_gap(broker: Broker, make_job: Any, collect: Any) -> None:
    job = make_job()
    await broker.submit(job, [])
    claim = await claim_one(broker)
    assert await broker.publish(claim, 0, "a") is LeaseState.HELD
    assert await broker.publish(claim, 0, "a") is LeaseState.HELD
    assert await broker.publish(claim, 2, "c") is LeaseState.LOST
    assert await broker.publish(claim, 1, "b") is LeaseState.HELD
    await broker.finish(claim, STOP)
    assert [getattr(e.value, "text", "end") for e in await collect(broker, job.id)] == ["a", "b", "end"]


async def test_release_gives_back_before_newer_jobs_and_costs_no_attempt(
    queue: Any, make_job: Any, collect: Any
) -> None:
    broker = queue.open(max_attempts=1, lease=timedelta(seconds=30))
    job, newer = make_job(images=1), make_job()
    await broker.submit(job, [b"p"])
    await broker.submit(newer, [])
    for _ in range(3):
        claim = await claim_one(broker, "a", NOW)
        assert (claim.job.id, claim.images) == (job.id, (b"p",))
        assert await broker.release(claim)
        assert await broker.publish(claim, 0, "late") is LeaseState.LOST
        assert await broker.renew("a", [claim]) == [LeaseState.LOST]
        assert await broker.load() == QueueLoad(waiting=2, leased=0)
    again = await claim_one(broker, "b", NOW)
    assert again.attempt > claim.attempt, "a fence is never used twice"
    assert await broker.publish(claim, 0, "late") is LeaseState.LOST
    assert await broker.finish(again, STOP)
    assert [e.value for e in await collect(broker, job.id)] == [STOP]


async def test_a_waiting_claim_sees_a_release(queue: Any, make_job: Any) -> None:
    broker = queue.open(lease=timedelta(seconds=30))
    await broker.submit(make_job(), [])
    claim = await claim_one(broker, "a")
    waiting = asyncio.ensure_future(claim_one(broker, "b"))
    await wait_until(lambda: not waiting.done(), "it waits")
    await broker.release(claim)
    released = time.monotonic()
    await waiting
    assert time.monotonic() - released < 0.75


# --- cancelling ---


async def test_a_waiting_job_is_cancelled_at_once(broker: Broker, make_job: Any, collect: Any) -> None:
    job = make_job(images=1)
    await broker.submit(job, [b"p"])
    reader = asyncio.ensure_future(collect(broker, job.id))
    assert await broker.cancel(job.id)
    assert end_of(await asyncio.wait_for(reader, 2)).reason == "cancelled"
    assert await broker.load() == QueueLoad(0, 0)
    assert not await broker.cancel(job.id)
    assert await broker.claim("a", 1, NOW) == []


async def test_a_replica_learns_of_a_cancel(broker: Broker, make_job: Any, collect: Any) -> None:
    job = make_job()
    await broker.submit(job, [])
    claim = await claim_one(broker)
    await broker.publish(claim, 0, "a")
    assert await broker.cancel(job.id)
    assert await broker.publish(claim, 1, "b") is LeaseState.CANCELLED
    assert await broker.renew("a", [claim]) == [LeaseState.CANCELLED]
    assert await broker.finish(claim, Finish("cancelled", Usage(3, 1)))
    events = await collect(broker, job.id)
    assert [e.value for e in events] == [TokenChunk(job.id, 1, 0, "a"), Finish("cancelled", Usage(3, 1))]


async def test_a_cancelled_job_of_a_dead_replica_ends(queue: Queue, make_job: Any, collect: Any) -> None:
    broker = queue.open(lease=QUICK)
    job = make_job()
    await broker.submit(job, [])
    claim = await claim_one(broker, "a")
    assert await broker.cancel(job.id)
    await wait_until(lambda: _waiting(broker, 1), "the lease has expired")
    assert await broker.claim("b", 1, NOW) == []
    assert end_of(await collect(broker, job.id)).reason == "cancelled"
    assert not await broker.finish(claim, STOP)


async def test_a_cancel_after_the_lease_expired_ends_at_once(queue: Queue, make_job: Any, collect: Any) -> None:
    broker = queue.open(lease=QUICK)
    job = make_job()
    await broker.submit(job, [])
    claim = await claim_one(broker, "a")
    await wait_until(lambda: _waiting(broker, 1), "the lease has expired")
    assert await broker.cancel(job.id)
    assert end_of(await collect(broker, job.id)).reason == "cancelled"
    assert not await broker.finish(claim, STOP), "ended, but not by this claim"


# --- coming and going ---


async def test_load_counts_waiting_and_leased(queue: Queue, make_job: Any) -> None:
    broker = queue.open(lease=QUICK)
    assert await broker.load() == QueueLoad(0, 0)
    for _ in range(3):
        await broker.submit(make_job(), [])
    assert await broker.load() == QueueLoad(waiting=3, leased=0)
    await broker.claim("a", 2, NOW)
    assert await broker.load() == QueueLoad(waiting=1, leased=2)
    await wait_until(lambda: _waiting(broker, 3), "the leases have expired")


async def test_what_a_leaving_replica_holds_is_free_at_once(queue: Any, make_job: Any) -> None:
    broker = queue.open(lease=timedelta(seconds=30))
    await broker.leave("never-came")
    await broker.submit(make_job(), [])
    held = await claim_one(broker, "a")
    await broker.leave("a")
    assert await broker.load() == QueueLoad(waiting=1, leased=0)
    assert (await claim_one(broker, "b", NOW)).attempt == 2
    assert await broker.publish(held, 0, "late") is LeaseState.LOST


def report(name: str) -> ReplicaReport:
    return ReplicaReport(name, "torch", "tiny", "float32", "r1", 2, (0, 1), 4096, 1, time.time())


async def test_reports_last_until_they_expire_or_the_replica_leaves(broker: Broker) -> None:
    assert await broker.reports() == []
    b, a, brief = report("b"), report("a"), report("brief")
    await broker.report(b, timedelta(seconds=30))
    await broker.report(a, timedelta(seconds=30))
    await broker.report(brief, timedelta(milliseconds=100))
    assert {r.replica for r in await broker.reports()} >= {"a", "b"}

    async def brief_is_gone() -> bool:
        return await broker.reports() == [a, b]

    await wait_until(brief_is_gone, "the brief report has expired")
    await broker.leave("b")
    assert await broker.reports() == [a]


async def test_ping(broker: Broker) -> None:
    await broker.ping()


async def test_the_load_knows_how_long_the_oldest_job_has_waited(broker: Broker, make_job: Any) -> None:
    assert (await broker.load()).oldest == 0
    now = time.time()
    await broker.submit(replace(make_job(), created_at=now - 100), [])
    await broker.submit(replace(make_job(), created_at=now - 300, priority="batch"), [])
    assert (await broker.load()).oldest == pytest.approx(300, abs=5)
    await claim_one(broker)
    await claim_one(broker)
    assert (await broker.load()).oldest == 0
