"""Who goes first, and who is told to come back when; for every broker."""

from __future__ import annotations

import asyncio
import dataclasses
import time
from datetime import timedelta
from typing import Any

import pytest

from contract.queues import Queue
from visionchat_serve.broker import UNMEASURED_RETRY, Broker
from visionchat_serve.errors import QueueFull
from visionchat_serve.messages import Finish, ReplicaReport, Usage

NOW = timedelta(0)
LONG = timedelta(seconds=30)
STOP = Finish("stop")


async def order_of(broker: Broker, count: int) -> list[str]:
    return [(await broker.claim("a", 1, NOW))[0].job.id for _ in range(count)]


def report(name: str, max_running: int) -> ReplicaReport:
    return ReplicaReport(name, "torch", "tiny", "float32", "r1", 2, (0, 1), 4096, max_running, time.time())


async def measure(broker: Broker, job: Any, seconds: float) -> None:
    """Let one job take that long, at least."""
    await broker.submit(job, [])
    [claim] = await broker.claim("a", 1, NOW)
    await asyncio.sleep(seconds)
    await broker.finish(claim, STOP)


# --- two priorities ---


async def test_interactive_before_batch_but_batch_gets_its_turn(queue: Queue, make_job: Any) -> None:
    broker = queue.open(lease=LONG, batch_after=2)
    batch = [make_job(priority="batch") for _ in range(3)]
    interactive = [make_job() for _ in range(6)]
    for job in (*batch, *interactive):
        await broker.submit(job, [])
    b, i = [job.id for job in batch], [job.id for job in interactive]
    assert await order_of(broker, 9) == [i[0], i[1], b[0], i[2], i[3], b[1], i[4], i[5], b[2]]


async def test_the_turn_is_kept_over_one_large_claim(queue: Queue, make_job: Any) -> None:
    broker = queue.open(lease=LONG, batch_after=1)
    batch, interactive = [[make_job(priority=p) for _ in range(2)] for p in ("batch", "interactive")]
    for job in (*batch, *interactive):
        await broker.submit(job, [])
    claims = await broker.claim("a", 4, NOW)
    assert [c.job for c in claims] == [interactive[0], batch[0], interactive[1], batch[1]]


async def test_batch_alone_goes_at_once(broker: Broker, make_job: Any) -> None:
    jobs = [make_job(priority="batch") for _ in range(3)]
    for job in jobs:
        await broker.submit(job, [])
    assert await order_of(broker, 3) == [job.id for job in jobs]


async def test_neither_starves(queue: Queue, make_job: Any) -> None:
    """New interactive jobs come as fast as they are taken, and new batch jobs too."""
    broker = queue.open(lease=LONG)
    served = {"interactive": 0, "batch": 0}
    for _ in range(2):
        await broker.submit(make_job(), [])
        await broker.submit(make_job(priority="batch"), [])
    for _ in range(50):
        [claim] = await broker.claim("a", 1, NOW)
        served[claim.job.priority] += 1
        await broker.finish(claim, STOP)
        await broker.submit(make_job(priority=claim.job.priority), [])
    assert served == {"interactive": 40, "batch": 10}


# --- a conversation stays with its replica ---


async def next_of(broker: Broker, consumer: str) -> str | None:
    claims = await broker.claim(consumer, 1, NOW)
    return claims[0].job.id if claims else None


async def at_home(broker: Broker, make_job: Any, *, places: int = 1) -> None:
    """Two replicas, of which `a` has answered in the conversation."""
    for name in ("a", "b"):
        await broker.report(report(name, places), LONG)
    job = make_job(affinity="cat")
    await broker.submit(job, [])
    [claim] = await broker.claim("a", 1, NOW)
    await broker.finish(claim, STOP)


async def test_a_job_is_left_for_the_replica_that_knows_it(queue: Queue, make_job: Any) -> None:
    broker = queue.open(lease=LONG, affinity_wait=LONG)
    await at_home(broker, make_job)
    more, other, plain = make_job(affinity="cat"), make_job(affinity="dog"), make_job()
    for job in (more, other, plain):
        await broker.submit(job, [])
    assert await next_of(broker, "b") == other.id, "what is nobody's goes in its order"
    assert await next_of(broker, "a") == more.id
    assert await next_of(broker, "b") == plain.id


async def test_who_waits_for_a_job_gets_the_own_one(queue: Queue, make_job: Any) -> None:
    broker, same = queue.open(lease=LONG, affinity_wait=LONG), queue.open(lease=LONG, affinity_wait=LONG)
    await at_home(broker, make_job)
    stranger = asyncio.ensure_future(broker.claim("b", 1, timedelta(seconds=1)))
    at_its_home = asyncio.ensure_future(same.claim("a", 1, timedelta(seconds=5)))
    job = make_job(affinity="cat")
    await broker.submit(job, [])
    assert [claim.job for claim in await at_its_home] == [job]
    assert await stranger == []


async def test_it_is_not_left_for_long(queue: Queue, make_job: Any) -> None:
    broker = queue.open(lease=LONG, affinity_wait=timedelta(milliseconds=100))
    await at_home(broker, make_job)
    job = make_job(affinity="cat")
    await broker.submit(job, [])
    started = time.monotonic()
    assert [claim.job for claim in await broker.claim("b", 1, timedelta(seconds=10))] == [job]
    assert time.monotonic() - started < 5, "a waiting claim sees the reservation end"
    assert await next_of(broker, "b") is None


async def test_it_is_not_left_for_a_replica_that_is_busy_or_gone(queue: Queue, make_job: Any) -> None:
    broker = queue.open(lease=LONG, affinity_wait=LONG)
    await at_home(broker, make_job)
    running, second, third = make_job(), make_job(affinity="cat"), make_job(affinity="dog")
    await broker.submit(running, [])
    assert await next_of(broker, "a") == running.id
    await broker.submit(second, [])
    assert await next_of(broker, "b") == second.id, "its replica has no place free"
    await broker.submit(third, [])
    assert await next_of(broker, "c") == third.id
    await broker.leave("b")
    await broker.submit(fourth := make_job(affinity="cat"), [])
    assert await next_of(broker, "a") == second.id, "what the other one held comes first"
    assert await next_of(broker, "c") == fourth.id


async def test_it_is_not_left_for_the_busiest(queue: Queue, make_job: Any) -> None:
    broker = queue.open(lease=LONG, affinity_wait=LONG)
    await at_home(broker, make_job, places=4)
    jobs = [make_job(affinity="cat") for _ in range(3)]
    for job in jobs:
        await broker.submit(job, [])
    assert await next_of(broker, "b") is None
    assert await next_of(broker, "a") == jobs[0].id
    assert await next_of(broker, "b") == jobs[1].id, "b holds fewer; from now on it is at home there"
    assert await next_of(broker, "a") is None, "both hold as many, and b had it last"
    assert await next_of(broker, "b") == jobs[2].id


# --- as long as it is measured to take ---


async def test_nothing_is_known_before_it_was_measured(queue: Queue, make_job: Any) -> None:
    broker = queue.open(lease=LONG, max_waiting=1)
    await broker.submit(make_job(), [])
    assert (await broker.load()).seconds == 0
    with pytest.raises(QueueFull) as caught:
        await broker.submit(make_job(), [])
    assert caught.value.retry_after == UNMEASURED_RETRY


async def test_the_backlog_in_seconds(queue: Queue, make_job: Any) -> None:
    broker = queue.open(lease=LONG)
    await measure(broker, make_job(), 0.1)
    for _ in range(4):
        await broker.submit(make_job(), [])
    await broker.claim("a", 1, NOW)
    alone = (await broker.load()).pace
    assert 0.09 < alone < 2
    assert (await broker.load()).seconds == pytest.approx(4 * alone)
    await broker.report(report("a", 3), LONG)
    await broker.report(report("b", 1), LONG)
    assert (await broker.load()).pace == pytest.approx(alone / 4)
    await broker.leave("a")
    assert (await broker.load()).pace == pytest.approx(alone)


async def answered(broker: Broker, job: Any, reading: float, writing: float, written: int) -> None:
    """A job that takes that many seconds to its first text, and from there to its end."""
    await broker.submit(job, [])
    [claim] = await broker.claim("a", 1, NOW)
    await asyncio.sleep(reading)
    await broker.publish(claim, 0, "first")
    await asyncio.sleep(writing)
    await broker.publish(claim, 1, "last")
    await broker.finish(claim, Finish("stop", Usage(100, written)))


def with_tokens(make_job: Any, prompt: int, most: int) -> Any:
    job = make_job(prompt_tokens=prompt)
    return dataclasses.replace(job, sampling=dataclasses.replace(job.sampling, max_tokens=most))


async def test_seconds_follow_from_tokens(queue: Queue, make_job: Any) -> None:
    """Of what is to be read and what will be written; an answer is expected to be as long as the last ones."""
    broker = queue.open(lease=LONG)
    await answered(broker, with_tokens(make_job, 1000, 100), reading=0.1, writing=0.3, written=50)
    whole = (await broker.load()).pace
    assert 0.4 <= whole < 3
    small, large, short = (with_tokens(make_job, *tokens) for tokens in ((10, 100), (4000, 100), (10, 5)))
    seconds: list[float] = []
    for job in (small, large, short):
        await broker.submit(job, [])
        seconds.append((await broker.load()).seconds)
    to_write, to_read = seconds[0], (seconds[1] - 2 * seconds[0]) / 3990 * 1000
    assert to_write + to_read == pytest.approx(whole, rel=0.05)
    assert to_read >= 0.09
    assert to_write >= 0.29
    assert seconds[2] - seconds[1] == pytest.approx(to_write / 10, rel=0.2), "no more than it may write"
    for job in (small, large):
        await broker.cancel(job.id)
    assert (await broker.load()).seconds == pytest.approx(seconds[2] - seconds[1], rel=0.05)
    await broker.cancel(short.id)
    load = await broker.load()
    assert (load.seconds, load.pace) == (0, pytest.approx(whole, rel=0.01))


async def test_work_counts_until_it_is_done(queue: Queue, make_job: Any) -> None:
    """While it is held, given back, lost, delayed, dead and replayed."""
    broker = queue.open(lease=LONG, max_attempts=2, retry_delay=LONG)
    await answered(broker, with_tokens(make_job, 100, 10), reading=0.05, writing=0.05, written=10)
    job = with_tokens(make_job, 100, 10)
    await broker.submit(job, [])
    whole = pytest.approx((await broker.load()).seconds, rel=0.01)
    [claim] = await broker.claim("a", 1, NOW)
    assert (await broker.load()).seconds == whole
    await broker.release(claim)
    assert (await broker.load()).seconds == whole
    for _ in range(2):
        assert await broker.claim("a", 1, NOW)
        await broker.leave("a")
        assert (await broker.load()).seconds == whole
    assert await broker.claim("a", 1, NOW) == []
    assert (await broker.load()).seconds == 0
    await broker.replay(job.id)
    assert (await broker.load()).seconds == whole


async def test_the_mean_follows_and_leaves_failures_out(queue: Queue, make_job: Any) -> None:
    broker = queue.open(lease=LONG)
    await measure(broker, make_job(), 0.2)
    slow = (await broker.load()).pace
    for _ in range(9):
        await measure(broker, make_job(), 0)
    fast = (await broker.load()).pace
    assert fast < slow / 2
    for finish in (Finish("cancelled"), Finish("error", error_code="engine_failure")):
        await broker.submit(make_job(), [])
        [claim] = await broker.claim("a", 1, NOW)
        await asyncio.sleep(0.1)
        await broker.finish(claim, finish)
    assert (await broker.load()).pace == fast


async def test_a_full_queue_says_when_to_come_back(queue: Queue, make_job: Any) -> None:
    broker = queue.open(lease=LONG, max_waiting=1)
    await measure(broker, make_job(), 0.1)
    await broker.submit(make_job(), [])
    with pytest.raises(QueueFull) as caught:
        await broker.submit(make_job(), [])
    assert caught.value.retry_after is not None
    assert 0.1 <= caught.value.retry_after.total_seconds() < 2


async def accepted(broker: Broker, make_job: Any, priority: str) -> tuple[int, float]:
    """How many jobs are accepted until one is refused, and for how many seconds that is sent away."""
    for count in range(1000):
        try:
            await broker.submit(make_job(priority=priority), [])
        except QueueFull as refusal:
            return count, (refusal.retry_after or NOW).total_seconds()
    raise AssertionError("nothing was refused")


async def test_who_would_wait_too_long_is_not_accepted(queue: Queue, make_job: Any) -> None:
    longest = 0.55
    broker = queue.open(lease=LONG, max_wait=timedelta(seconds=longest))
    await measure(broker, make_job(), 0.1)
    pace = (await broker.load()).pace
    room = int(longest / pace) + 1
    too_long = (room + 1) * pace - longest  # and one answer more, for an estimate
    assert await accepted(broker, make_job, "batch") == (room, pytest.approx(too_long, abs=0.002))
    assert (await accepted(broker, make_job, "interactive"))[0] == room, "they do not wait for batch jobs"
    assert await accepted(broker, make_job, "batch") == (0, pytest.approx(too_long + room * pace, abs=0.002))
