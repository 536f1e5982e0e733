"""What becomes of jobs whose replicas die: delayed retries, the dead list, replays; for every broker."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

from contract.queues import Queue
from support.waiting import wait_until
from visionchat_serve.broker import Broker
from visionchat_serve.errors import NotFound, QueueFull
from visionchat_serve.messages import ChatJob, Claim, Finish, QueueLoad

NOW = timedelta(0)
SOON = timedelta(seconds=3)
LONG = timedelta(seconds=30)
STOP = Finish("stop")


async def lose(broker: Broker, times: int, job_id: str | None = None) -> list[Claim]:
    """Claim one job and leave without a word, again and again."""
    claims: list[Claim] = []
    for number in range(times):
        [claim] = await broker.claim(f"lost-{number}", 1, SOON)
        assert job_id in (None, claim.job.id)
        claims.append(claim)
        await broker.leave(f"lost-{number}")
    return claims


async def kill(broker: Broker, job: ChatJob, images: list[bytes]) -> None:
    """Let a job use up its attempts."""
    await broker.submit(job, images)
    await lose(broker, broker.policy.max_attempts, job.id)
    assert await broker.claim("undertaker", 1, NOW) == []


# --- again, but not at once ---


async def test_only_the_first_retry_comes_at_once(queue: Queue, make_job: Any) -> None:
    broker = queue.open(lease=LONG, retry_delay=timedelta(milliseconds=300))
    job, other = make_job(images=1), make_job()
    await broker.submit(job, [b"p"])
    first, second = await lose(broker, 2)
    assert (first.attempt, second.attempt) == (1, 2)
    await broker.submit(other, [])
    [claim] = await broker.claim("a", 2, NOW)
    assert claim.job == other, "the delayed job lets others pass"
    assert await broker.load() == QueueLoad(waiting=0, leased=1, delayed=1)
    view = await broker.describe(job.id)
    assert (view.status, view.attempt, view.position) == ("queued", 2, 0)
    [third] = await broker.claim("a", 1, SOON)
    assert (third.job, third.images, third.attempt) == (job, (b"p",), 3)
    assert await broker.finish(third, STOP)


async def test_delays_double_up_to_a_limit(queue: Queue, make_job: Any) -> None:
    delays = {"retry_delay": timedelta(milliseconds=50), "max_retry_delay": timedelta(milliseconds=120)}
    broker = queue.open(lease=LONG, max_attempts=5, **delays)
    job = make_job()
    await broker.submit(job, [])
    await lose(broker, 5, job.id)
    assert await broker.claim("a", 1, NOW) == []
    assert (await broker.describe(job.id)).status == "failed"


async def test_a_job_comes_back_to_its_place(queue: Queue, make_job: Any) -> None:
    broker = queue.open(lease=LONG, retry_delay=timedelta(milliseconds=50))
    job, newer = make_job(), make_job()
    await broker.submit(job, [])
    await lose(broker, 2)
    assert await broker.claim("a", 1, NOW) == []
    await broker.submit(newer, [])

    async def both_wait() -> bool:
        return await broker.load() == QueueLoad(waiting=2, leased=0)

    await wait_until(both_wait, "the delay is over")
    assert (await broker.describe(newer.id)).position == 1
    assert [c.job for c in await broker.claim("a", 2, NOW)] == [job, newer]


async def test_a_delayed_job_can_be_cancelled_and_expires(queue: Queue, make_job: Any, collect: Any) -> None:
    broker = queue.open(lease=LONG, retry_delay=timedelta(minutes=1))
    unwanted, late = make_job(), make_job(deadline=0.5)
    for job in (unwanted, late):
        await broker.submit(job, [])
        await lose(broker, 2, job.id)
        assert await broker.claim("a", 1, NOW) == []
    assert await broker.cancel(unwanted.id)
    assert (await broker.describe(unwanted.id)).status == "cancelled"
    [end] = await collect(broker, late.id)
    assert end.value.error_code == "timeout"
    assert await broker.load() == QueueLoad(0, 0)


# --- the dead list ---


async def test_the_dead_are_listed_with_their_reason(queue: Queue, make_job: Any, collect: Any) -> None:
    broker = queue.open(lease=LONG, max_attempts=1, max_dead=2)
    assert await broker.dead(10) == []
    jobs = [make_job(images=1, owner="ann") for _ in range(3)]
    for job in jobs:
        await kill(broker, job, [b"p"])

    latest, older = await broker.dead(10)
    assert (latest.id, older.id) == (jobs[2].id, jobs[1].id)
    assert await broker.dead(1) == [latest]
    assert (latest.owner, latest.status, latest.attempt) == ("ann", "failed", 1)
    assert latest.finish is not None
    assert latest.finish.error_code == "replica_lost"
    for job in jobs:
        assert len(await collect(broker, job.id)) == 1, "who asked was told, also when the list forgot it"
    with pytest.raises(NotFound, match="not on the dead list"):
        await broker.replay(jobs[0].id)


async def test_a_replay_asks_anew(queue: Queue, make_job: Any, collect: Any) -> None:
    broker = queue.open(lease=LONG, max_attempts=1)
    job = make_job(images=2, owner="ann", priority="batch")
    await kill(broker, job, [b"p", b"q"])
    new_id = await broker.replay(job.id)
    assert new_id != job.id
    assert await broker.dead(10) == []
    [claim] = await broker.claim("a", 1, NOW)
    assert (claim.job.id, claim.images, claim.attempt) == (new_id, (b"p", b"q"), 1)
    assert (claim.job.messages, claim.job.owner, claim.job.priority) == (job.messages, "ann", "batch")
    assert claim.job.deadline_at > job.deadline_at
    await broker.finish(claim, STOP)
    assert [e.value for e in await collect(broker, new_id)] == [STOP]
    assert (await collect(broker, job.id))[-1].value.error_code == "replica_lost"
    with pytest.raises(NotFound):
        await broker.replay(job.id)


async def test_a_replay_that_finds_no_room_changes_nothing(queue: Queue, make_job: Any) -> None:
    broker = queue.open(lease=LONG, max_attempts=1, max_waiting=1)
    job = make_job(images=1)
    await kill(broker, job, [b"p"])
    await broker.submit(make_job(), [])
    with pytest.raises(QueueFull):
        await broker.replay(job.id)
    assert [view.id for view in await broker.dead(10)] == [job.id]


async def test_who_is_not_dead_is_not_replayed(broker: Broker, make_job: Any) -> None:
    job = make_job()
    await broker.submit(job, [])
    for job_id in (job.id, "nobody"):
        with pytest.raises(NotFound, match="not on the dead list"):
            await broker.replay(job_id)


async def test_the_dead_are_forgotten_in_time(queue: Queue, make_job: Any) -> None:
    broker = queue.open(lease=LONG, max_attempts=1, dead_ttl=timedelta(milliseconds=50))
    job = make_job(images=1)
    await kill(broker, job, [b"p"])

    async def forgotten() -> bool:
        return await broker.dead(10) == []

    await wait_until(forgotten, "the time is over")
    with pytest.raises(NotFound):
        await broker.replay(job.id)


async def test_purging_the_dead(queue: Queue, make_job: Any) -> None:
    broker = queue.open(lease=LONG, max_attempts=1)
    jobs = [make_job(images=1) for _ in range(2)]
    for job in jobs:
        await kill(broker, job, [b"p"])
    assert await broker.purge_dead() == 2
    assert await broker.purge_dead() == 0
    assert await broker.dead(10) == []
    with pytest.raises(NotFound):
        await broker.replay(jobs[0].id)
    assert (await broker.describe(jobs[0].id)).status == "failed", "who asked may still see it"
