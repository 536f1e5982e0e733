"""How much one owner may ask: a rate and a number of open jobs, for all gateways together."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from typing import Any

import pytest

from contract.queues import Queue
from support.waiting import wait_until
from visionchat_serve.broker import Broker
from visionchat_serve.errors import QueueFull, RateLimited
from visionchat_serve.messages import ChatJob, Finish, Idempotency

NOW = timedelta(0)


async def outcome(broker: Broker, job: ChatJob) -> str:
    try:
        return "accepted" if await broker.submit(job, []) == job.id else "another"
    except RateLimited as error:
        return "refused" if error.retry_after is not None and error.retry_after > NOW else "refused without end"


async def test_open_jobs_of_one_owner(queue: Queue, make_job: Any) -> None:
    broker = queue.open(owner_open=2)
    for _ in range(2):
        assert await outcome(broker, make_job(owner="ann")) == "accepted"
    assert await outcome(broker, make_job(owner="ann")) == "refused"
    assert await outcome(broker, make_job(owner="bob")) == "accepted", "each owner for oneself"
    claim, _ = await broker.claim("a", 2, NOW)
    assert await outcome(broker, make_job(owner="ann")) == "refused", "a leased job is open"
    await broker.finish(claim, Finish("stop"))
    assert await outcome(broker, make_job(owner="ann")) == "accepted"
    assert await outcome(broker, make_job(owner="ann")) == "refused"


async def test_cancelled_expired_and_forgotten_jobs_are_not_open(queue: Queue, make_job: Any) -> None:
    broker = queue.open(owner_open=1, result_ttl=timedelta(milliseconds=50))
    job = make_job()
    assert await outcome(broker, job) == "accepted"
    await broker.cancel(job.id)
    assert await outcome(broker, make_job(deadline=0.05)) == "accepted"

    async def open_again() -> bool:
        return await outcome(broker, make_job(deadline=0.05)) == "accepted"

    for _ in range(3):
        await wait_until(open_again, "its deadline has passed")


async def test_a_rate_comes_back_little_by_little(queue: Queue, make_job: Any) -> None:
    broker = queue.open(owner_rate=120)  # one in half a second
    outcomes = [await outcome(broker, make_job(owner="ann")) for _ in range(120)]
    assert set(outcomes) == {"accepted"}
    while outcomes[-1] == "accepted":  # what came back meanwhile
        outcomes.append(await outcome(broker, make_job(owner="ann")))
    assert await outcome(broker, make_job(owner="bob")) == "accepted"

    async def one_more() -> bool:
        return await outcome(broker, make_job(owner="ann")) == "accepted"

    await wait_until(one_more, "half a second has passed")


async def test_the_time_to_wait_is_told(queue: Queue, make_job: Any) -> None:
    broker = queue.open(owner_rate=2)
    for _ in range(2):
        await broker.submit(make_job(), [])
    with pytest.raises(RateLimited) as caught:
        await broker.submit(make_job(), [])
    assert caught.value.retry_after is not None
    assert timedelta(seconds=20) < caught.value.retry_after <= timedelta(seconds=30)


async def test_what_is_refused_or_repeated_is_not_charged(queue: Queue, make_job: Any) -> None:
    broker = queue.open(owner_rate=3, max_waiting=2)
    first, key = make_job(), Idempotency("key", "body")
    await broker.submit(first, [], key)
    for _ in range(5):
        assert await broker.submit(make_job(), [], key) == first.id
    await broker.submit(make_job(), [])
    for _ in range(5):
        with pytest.raises(QueueFull):
            await broker.submit(make_job(), [])
    await broker.cancel(first.id)
    assert await outcome(broker, make_job()) == "accepted"
    assert await outcome(broker, make_job()) == "refused"


@pytest.mark.parametrize("limit", [{"owner_open": 3}, {"owner_rate": 3}])
async def test_many_gateways_share_one_count(queue: Queue, make_job: Any, limit: dict[str, int]) -> None:
    brokers = [queue.open(**limit) for _ in range(3)]
    outcomes = await asyncio.gather(*(outcome(brokers[n % 3], make_job()) for n in range(12)))
    assert outcomes.count("accepted") == 3
