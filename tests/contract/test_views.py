"""What a job's owner may see of it, and how a repeated request finds it again; for every broker."""

from __future__ import annotations

import asyncio
import dataclasses
import json
from datetime import timedelta
from typing import Any

import pytest

from contract.queues import QUICK, Queue
from support.waiting import wait_until
from visionchat_serve.broker import Broker
from visionchat_serve.errors import IdempotencyConflict, NotFound, QueueFull
from visionchat_serve.messages import ChatJob, Finish, Idempotency, JobView, QueueLoad, decode, encode

NOW = timedelta(0)
SOON = timedelta(seconds=3)
STOP = Finish("stop")


async def status_of(broker: Broker, job: ChatJob) -> tuple[str, int | None]:
    view = await broker.describe(job.id)
    return view.status, view.position


def test_a_job_encoded_before_there_were_owners(make_job: Any) -> None:
    job = make_job()
    old = {name: value for name, value in json.loads(encode(job)).items() if name not in ("owner", "priority")}
    assert decode(ChatJob, json.dumps(old)) == job


# --- one job ---


async def test_a_job_from_waiting_to_its_end(queue: Queue, make_job: Any) -> None:
    broker = queue.open(lease=timedelta(seconds=30))
    job = make_job(owner="ann")
    await broker.submit(job, [])
    assert await broker.describe(job.id) == JobView(job.id, "ann", "queued", 0, job.created_at, position=0)
    [claim] = await broker.claim("a", 1, NOW)
    assert await broker.describe(job.id) == JobView(job.id, "ann", "processing", 1, job.created_at)
    await broker.finish(claim, STOP)
    view = await broker.describe(job.id)
    assert view.ended_at is not None
    assert 0 <= view.ended_at - job.created_at < 5
    ended = JobView(job.id, "ann", "succeeded", 1, job.created_at, finish=STOP)
    assert dataclasses.replace(view, ended_at=None) == ended


async def test_a_position_counts_the_jobs_ahead(queue: Queue, make_job: Any) -> None:
    broker = queue.open(lease=timedelta(seconds=30))
    running, batch, first, second = make_job(), make_job(priority="batch"), make_job(), make_job()
    await broker.submit(running, [])
    [claim] = await broker.claim("a", 1, NOW)
    for job in (batch, first, second):
        await broker.submit(job, [])
    assert [await status_of(broker, job) for job in (first, second, batch)] == [("queued", n) for n in (0, 1, 2)]
    await broker.release(claim)
    assert [await status_of(broker, job) for job in (running, first)] == [("queued", 0), ("queued", 1)]


async def test_a_job_whose_replica_was_lost_is_queued_again(queue: Queue, make_job: Any) -> None:
    broker = queue.open(lease=QUICK)
    job = make_job()
    await broker.submit(job, [])
    await broker.claim("a", 1, NOW)

    async def queued() -> bool:
        return await status_of(broker, job) == ("queued", 0)

    await wait_until(queued, "the lease has expired")
    assert (await broker.describe(job.id)).attempt == 1


async def test_the_names_of_ends(broker: Broker, make_job: Any) -> None:
    length, failed, cancelled, expired = make_job(), make_job(), make_job(), make_job(deadline=-1)
    for job in (length, failed, cancelled):
        await broker.submit(job, [])
    claims = await broker.claim("a", 2, NOW)
    await broker.finish(claims[0], Finish("length"))
    await broker.finish(claims[1], Finish("error", error_code="engine_failure"))
    await broker.cancel(cancelled.id)
    await broker.submit(expired, [])
    names = [(await status_of(broker, job))[0] for job in (length, failed, cancelled, expired)]
    assert names == ["succeeded", "failed", "cancelled", "expired"]


async def test_a_job_expires_though_nobody_reads_or_claims(broker: Broker, make_job: Any) -> None:
    job = make_job(deadline=0.1)
    await broker.submit(job, [])

    async def nothing_waits() -> bool:
        return await broker.load() == QueueLoad(0, 0)

    await wait_until(nothing_waits, "the deadline has passed")
    assert (await status_of(broker, job))[0] == "expired"


async def test_nobody_can_be_described(broker: Broker) -> None:
    with pytest.raises(NotFound):
        await broker.describe("nobody")


# --- all of an owner's jobs ---


async def test_ones_own_jobs_newest_first_in_pages(broker: Broker, make_job: Any) -> None:
    jobs = [make_job(owner=owner) for owner in ("ann", "bob", "ann", "", "ann", "ann")]
    for job in jobs:
        await broker.submit(job, [])
    own = [job.id for job in reversed(jobs) if job.owner == "ann"]
    assert [view.id for view in await broker.jobs("ann", 10)] == own
    assert [view.id for view in await broker.jobs("ann", 3)] == own[:3]
    assert [view.id for view in await broker.jobs("ann", 3, before=own[1])] == own[2:]
    assert [view.id for view in await broker.jobs("", 3)] == [jobs[3].id]
    assert await broker.jobs("ann", 3, before=own[-1]) == []
    assert await broker.jobs("nobody", 3) == []
    with pytest.raises(NotFound):
        await broker.jobs("ann", 3, before=jobs[1].id)


async def test_a_page_is_filled_over_forgotten_jobs(queue: Queue, make_job: Any) -> None:
    broker = queue.open(result_ttl=timedelta(milliseconds=50))
    jobs = [make_job() for _ in range(5)]
    for job in jobs:
        await broker.submit(job, [])
    for job in jobs[1:4]:
        await broker.cancel(job.id)

    async def the_others() -> bool:
        return [view.id for view in await broker.jobs("", 2)] == [jobs[4].id, jobs[0].id]

    await wait_until(the_others, "the cancelled ones are forgotten")


async def test_a_long_list_is_cut(queue: Queue, make_job: Any) -> None:
    broker = queue.open(max_listed=3)
    jobs = [make_job() for _ in range(5)]
    for job in jobs:
        await broker.submit(job, [])
    assert [view.id for view in await broker.jobs("", 10)] == [job.id for job in reversed(jobs[2:])]


# --- the same request again ---

KEY = Idempotency("key ⭐", "body 1")


async def test_a_repeated_request_finds_its_job(queue: Queue, make_job: Any) -> None:
    broker = queue.open(max_waiting=1)
    first, again = make_job(images=1, owner="ann"), make_job(images=1, owner="ann")
    assert await broker.submit(first, [b"p"], KEY) == first.id
    assert await broker.submit(first, [b"p"], KEY) == first.id, "its reply was lost"
    assert await broker.submit(again, [b"p"], KEY) == first.id, "also when the queue is full"
    assert await broker.load() == QueueLoad(1, 0)
    [claim] = await broker.claim("a", 1, NOW)
    await broker.finish(claim, STOP)
    assert await broker.submit(again, [b"p"], KEY) == first.id, "also when it is answered"
    assert await broker.load() == QueueLoad(0, 0)
    with pytest.raises(NotFound):
        await broker.describe(again.id)


async def test_a_key_is_good_for_one_body_of_one_owner(broker: Broker, make_job: Any) -> None:
    await broker.submit(make_job(owner="ann"), [], KEY)
    with pytest.raises(IdempotencyConflict) as caught:
        await broker.submit(make_job(owner="ann"), [], Idempotency(KEY.key, "body 2"))
    assert (caught.value.status, caught.value.code) == (422, "idempotency_key_reused")
    for job, key in (
        (make_job(owner="bob"), Idempotency(KEY.key, "body 2")),
        (make_job(owner="ann"), Idempotency("key 2", "body 2")),
        (make_job(owner="ann"), None),
    ):
        assert await broker.submit(job, [], key) == job.id


async def test_a_refused_request_uses_no_key(queue: Queue, make_job: Any) -> None:
    broker = queue.open(max_waiting=1)
    blocker, job = make_job(), make_job()
    await broker.submit(blocker, [])
    with pytest.raises(QueueFull):
        await broker.submit(job, [], KEY)
    await broker.cancel(blocker.id)
    assert await broker.submit(job, [], KEY) == job.id


async def test_a_key_outlives_its_jobs_results_but_then_asks_anew(queue: Queue, make_job: Any) -> None:
    broker = queue.open(result_ttl=timedelta(milliseconds=50))
    first, again = make_job(), make_job()
    await broker.submit(first, [], KEY)
    await broker.cancel(first.id)

    async def forgotten() -> bool:
        return not await broker.jobs("", 1)

    await wait_until(forgotten, "the result has expired")
    with pytest.raises(IdempotencyConflict):
        await broker.submit(again, [], Idempotency(KEY.key, "body 2"))
    assert await broker.submit(again, [], KEY) == again.id


async def test_a_key_expires(queue: Queue, make_job: Any) -> None:
    broker = queue.open(idempotency_ttl=timedelta(milliseconds=50))
    job = make_job()
    await broker.submit(make_job(), [], KEY)

    async def free() -> bool:
        try:
            return await broker.submit(job, [], Idempotency(KEY.key, "body 2")) == job.id
        except IdempotencyConflict:
            return False

    await wait_until(free, "the key has expired")


async def test_of_many_same_requests_at_once_one_is_accepted(queue: Queue, make_job: Any) -> None:
    brokers = [queue.open() for _ in range(3)]
    ids = await asyncio.gather(*(brokers[n % 3].submit(make_job(), [], KEY) for n in range(12)))
    assert len(set(ids)) == 1
    assert await brokers[0].load() == QueueLoad(1, 0)
