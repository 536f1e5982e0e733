"""What can go wrong with a Redis, and must not go wrong with the queue."""

from __future__ import annotations

import asyncio
import os
import signal
import time
from collections.abc import Awaitable, Callable
from datetime import timedelta
from functools import partial
from typing import Any

import pytest
from redis.asyncio import Redis

from contract.queues import QUICK, Queue
from support.waiting import wait_until
from visionchat_serve import redis_link, redis_reader
from visionchat_serve.broker import Broker, LeaseState
from visionchat_serve.errors import ConfigError, NotFound, QueueCannotWrite, Unavailable
from visionchat_serve.messages import Finish
from visionchat_serve.redis_broker import RedisBroker
from visionchat_serve.redis_keys import Keys
from visionchat_serve.redis_server import EmbeddedRedis

NOW = timedelta(0)
STOP = Finish("stop")


def redis_of(queue: Queue) -> Redis:
    assert queue.url is not None
    return Redis.from_url(queue.url)


async def refuses(call: Callable[[], Awaitable[Any]]) -> bool:
    try:
        await call()
    except Unavailable:
        return True
    return False


# --- Redis restarts, hangs, forgets ---


async def test_everything_goes_on_after_a_restart(own_server: EmbeddedRedis, make_job: Any, collect: Any) -> None:
    queue = Queue(own_server.url)
    broker = queue.open(lease=timedelta(seconds=30))
    done, running, waiting = (make_job(images=1) for _ in range(3))
    for job in (done, running, waiting):
        await broker.submit(job, [os.urandom(1000)])
    first, second = await broker.claim("a", 2, NOW)
    await broker.finish(first, STOP)
    assert await broker.publish(second, 0, "so far") is LeaseState.HELD

    own_server.stop()
    for call in (broker.ping, broker.load, lambda: broker.claim("a", 1, NOW), lambda: collect(broker, done.id)):
        with pytest.raises(Unavailable, match="the queue does not answer"):
            await call()
    own_server.start()

    assert await broker.renew("a", [second]) == [LeaseState.HELD]
    assert await broker.publish(second, 1, ", so good") is LeaseState.HELD
    assert await broker.finish(second, STOP)
    assert len(await collect(broker, done.id)) == 1
    assert [getattr(e.value, "text", "end") for e in await collect(broker, running.id)] == [
        "so far",
        ", so good",
        "end",
    ]
    [third] = await broker.claim("a", 1, NOW)
    assert third.job == waiting
    await queue.close()


async def test_a_reader_learns_that_redis_went_away(own_server: EmbeddedRedis, make_job: Any, collect: Any) -> None:
    queue = Queue(own_server.url)
    broker = queue.open(outage=NOW)
    job = make_job()
    await broker.submit(job, [])
    reader = asyncio.ensure_future(collect(broker, job.id))
    claimer = asyncio.ensure_future(broker.claim("a", 1, timedelta(seconds=30)))
    await asyncio.wait_for(claimer, 2)
    claimer = asyncio.ensure_future(broker.claim("b", 1, timedelta(seconds=30)))
    await wait_until(lambda: _connections(broker, 2), "both wait at Redis")
    own_server.stop()
    for task in (reader, claimer):
        with pytest.raises(Unavailable):
            await asyncio.wait_for(task, 5)
    await queue.close()


async def test_a_reader_waits_for_redis_to_come_back(own_server: EmbeddedRedis, make_job: Any, collect: Any) -> None:
    queue = Queue(own_server.url)
    broker = queue.open(lease=timedelta(seconds=30))
    job = make_job()
    await broker.submit(job, [])
    [claim] = await broker.claim("a", 1, NOW)
    seen: list[Any] = []

    async def read() -> None:
        async for event in broker.events(job.id):
            seen.append(event.value)

    reader = asyncio.ensure_future(read())
    await broker.publish(claim, 0, "red")
    await wait_until(lambda: len(seen) == 1, "the first piece came")
    own_server.stop()
    assert await refuses(lambda: collect(broker, job.id)), "who comes now is told at once"
    own_server.start()
    await broker.publish(claim, 1, "blue")
    await broker.finish(claim, STOP)
    await asyncio.wait_for(reader, 5)
    assert [getattr(value, "text", "end") for value in seen] == ["red", "blue", "end"]
    await queue.close()


async def _blocked(redis: Redis, count: int) -> bool:
    return bool((await redis.info("clients"))["blocked_clients"] >= count)


def _connections(broker: Broker, count: int) -> bool:
    assert isinstance(broker, RedisBroker)
    return len(broker._link._redis.connection_pool._in_use_connections) >= count


async def test_a_hung_redis_hangs_nobody(own_server: EmbeddedRedis, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(redis_link, "REPLY_TIMEOUT", timedelta(milliseconds=300))
    queue = Queue(own_server.url)
    broker = queue.open()
    async with redis_of(queue) as redis:
        pid = (await redis.info("server"))["process_id"]
    await broker.ping()
    os.kill(pid, signal.SIGSTOP)
    try:
        started = time.monotonic()
        with pytest.raises(Unavailable):
            await broker.ping()
        assert time.monotonic() - started < 2
    finally:
        os.kill(pid, signal.SIGCONT)
    await broker.ping()
    await queue.close()


async def test_redis_forgets_scripts_or_everything(redis_queue: Queue, make_job: Any) -> None:
    broker = redis_queue.open()
    keys = Keys(redis_queue.namespace)
    async with redis_of(redis_queue) as redis:
        for _ in range(3):
            await broker.submit(make_job(), [])
        await redis.script_flush()
        claims = await broker.claim("a", 2, NOW)
        await redis.script_flush()
        assert await broker.renew("a", claims) == [LeaseState.HELD] * 2

        assert len(await broker.claim("b", 2, NOW)) == 1
        waiting = asyncio.ensure_future(broker.claim("a", 1, timedelta(seconds=5)))
        await wait_until(lambda: _connections(broker, 1), "a replica waits at Redis")
        await redis.delete(*keys.of_queue(), *(keys.job(c.job.id) for c in claims))
        assert await broker.renew("a", claims) == [LeaseState.LOST] * 2
        job = make_job()
        await broker.submit(job, [])
        assert [c.job for c in await asyncio.wait_for(waiting, 3)] == [job]


async def test_pictures_that_are_gone(redis_queue: Queue, make_job: Any, collect: Any) -> None:
    broker = redis_queue.open()
    job = make_job(images=1)
    await broker.submit(job, [b"p"])
    async with redis_of(redis_queue) as redis:
        await redis.delete(Keys(redis_queue.namespace).images(job.id))
    assert await broker.claim("a", 1, NOW) == []
    assert (await collect(broker, job.id))[-1].value.error_code == "service_unavailable"


async def test_jobs_deleted_from_outside(redis_queue: Queue, make_job: Any) -> None:
    broker = redis_queue.open(lease=QUICK)
    keys = Keys(redis_queue.namespace)
    held, waiting, late, good = make_job(), make_job(), make_job(deadline=0.2), make_job()
    for job in (held, waiting, late, good):
        await broker.submit(job, [])
    await broker.claim("a", 1, NOW)
    async with redis_of(redis_queue) as redis:
        await redis.delete(*(keys.job(job.id) for job in (held, waiting, late)))
    claims = await broker.claim("b", 3, NOW)
    assert [c.job for c in claims] == [good]

    async def only_the_good_is_left() -> bool:
        await broker.renew("b", claims)
        return not await broker.claim("c", 1, NOW) and (await broker.load()).backlog == 1

    await wait_until(only_the_good_is_left, "what is forgotten is dropped")


async def test_a_job_that_vanishes_under_its_reader(
    redis_queue: Queue, make_job: Any, collect: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("visionchat_serve.redis_reader.EVENTS_WAIT", timedelta(milliseconds=200))
    broker = redis_queue.open()
    job = make_job()
    await broker.submit(job, [])
    reader = asyncio.ensure_future(collect(broker, job.id))
    await wait_until(lambda: _connections(broker, 1), "the reader waits at Redis")
    async with redis_of(redis_queue) as redis:
        keys = Keys(redis_queue.namespace)
        await redis.delete(keys.job(job.id), keys.events(job.id))
    with pytest.raises(NotFound):
        await asyncio.wait_for(reader, 2)


# --- connections, calls ---


@pytest.mark.parametrize("cancel_again", [False, True], ids=["asyncio", "anyio"])
async def test_cancelled_readers_leave_nothing_behind(redis_queue: Queue, make_job: Any, cancel_again: bool) -> None:
    broker = redis_queue.open()
    assert isinstance(broker, RedisBroker)
    job = make_job()
    await broker.submit(job, [])
    reader, pool = broker._reader, broker._link._redis.connection_pool

    async def read() -> None:
        async for _ in broker.events(job.id):
            pass

    for _ in range(4):
        readers = [asyncio.ensure_future(read()) for _ in range(50)]
        await wait_until(lambda: len(_followers(broker)) == 50, "all are being followed")
        for _ in range(3 if cancel_again else 1):  # anyio cancels again at every await
            for task in readers:
                task.cancel()
            await asyncio.sleep(0)
        await asyncio.gather(*readers, return_exceptions=True)
        assert not reader._streams
        await wait_until(lambda: not pool._in_use_connections, "all connections are back")
    assert len(pool._available_connections) <= redis_link.MAX_CONNECTIONS


def _followers(broker: RedisBroker) -> list[Any]:
    return [follower for stream in broker._reader._streams.values() for follower in stream.followers]


def _follow(broker: RedisBroker, count: int) -> bool:
    return len(_followers(broker)) == count


async def test_many_open_answers_wait_on_one_connection(
    redis_queue: Queue, make_job: Any, collect: Any, text_of: Any
) -> None:
    broker, replica = redis_queue.open(), redis_queue.open()
    assert isinstance(broker, RedisBroker)
    jobs = [make_job() for _ in range(500)]
    for job in jobs:
        await broker.submit(job, [])
    async with redis_of(redis_queue) as redis:
        before = len(await redis.client_list())
        readers = [asyncio.ensure_future(collect(broker, job.id)) for job in jobs]
        await wait_until(lambda: len(_followers(broker)) == 500, "all are being followed")
        await wait_until(lambda: _blocked(redis, 1), "the reader waits at Redis")
        assert (await redis.info("clients"))["blocked_clients"] == 1
        assert len(await redis.client_list()) - before <= redis_link.MAX_CONNECTIONS
        claims = await replica.claim("a", 500, NOW)
        for claim in claims:
            await replica.publish(claim, 0, claim.job.id)
            await replica.finish(claim, STOP)
        answers = await asyncio.wait_for(asyncio.gather(*readers), 30)
    assert [text_of(answer) for answer in answers] == [job.id for job in jobs]


async def test_a_late_reader_of_the_same_job_misses_nothing(
    redis_queue: Queue, make_job: Any, collect: Any, text_of: Any
) -> None:
    broker, replica = redis_queue.open(lease=timedelta(seconds=30)), redis_queue.open(lease=timedelta(seconds=30))
    assert isinstance(broker, RedisBroker)
    job = make_job()
    await broker.submit(job, [])
    [claim] = await replica.claim("a", 1, NOW)
    readers = []
    for index in range(10):
        await replica.publish(claim, index, f"{index} ")
        seen = await broker.so_far(job.id)
        readers += [asyncio.ensure_future(collect(broker, job.id, after)) for after in ("0", seen[-1].id)]
        await wait_until(partial(_follow, broker, len(readers)), "it is being followed")
    await replica.finish(claim, STOP)
    answers = await asyncio.wait_for(asyncio.gather(*readers), 10)
    whole = "".join(f"{index} " for index in range(10))
    assert [text_of(answer) for answer in answers[::2]] == [whole] * 10
    assert [text_of(answer) for answer in answers[1::2]] == [whole[2 * index + 2 :] for index in range(10)]


async def test_a_slow_reader_is_not_waited_for_and_misses_nothing(redis_queue: Queue, make_job: Any) -> None:
    """What it has not read yet is in Redis, not in the gateway's memory."""
    broker, other, job = redis_queue.open(), redis_queue.open(lease=timedelta(seconds=60)), make_job()
    await other.submit(job, [])
    [claim] = await other.claim("r", 1, NOW)
    await other.publish(claim, 0, "0 ")
    reading = broker.events(job.id)
    first = await anext(reading)
    total = 5 * redis_reader.BEHIND
    for index in range(1, total):
        await other.publish(claim, index, f"{index} ")
    assert isinstance(broker, RedisBroker)
    streams = broker._reader._streams
    await wait_until(lambda: not streams, "nothing more is read for it")
    await other.finish(claim, STOP)
    told = [first, *[event async for event in reading]]
    assert [event.value.text for event in told[:-1]] == [f"{index} " for index in range(total)]
    assert told[-1].value == STOP


async def test_an_idle_replica_costs_a_handful_of_calls(redis_queue: Queue) -> None:
    broker = redis_queue.open(lease=timedelta(seconds=10))
    await broker.claim("a", 1, NOW)
    async with redis_of(redis_queue) as redis:
        before = (await redis.info("commandstats")).copy()
        await broker.claim("a", 1, timedelta(seconds=1))
        after = await redis.info("commandstats")
    calls = ["cmdstat_evalsha", "cmdstat_xread"]
    assert sum(after[c]["calls"] - before.get(c, {"calls": 0})["calls"] for c in calls) <= 5


async def test_addresses(own_server: EmbeddedRedis) -> None:
    with pytest.raises(ConfigError, match="not usable"):
        RedisBroker.from_url("http://queue:6379", "x")
    nowhere = RedisBroker.from_url("redis://:secret@127.0.0.1:1/0", "x")
    with pytest.raises(Unavailable) as caught:
        await nowhere.ping()
    assert caught.value.inside is not None
    assert "127.0.0.1:1" in caught.value.inside  # for the log
    assert "secret" not in caught.value.inside
    assert "127.0.0.1" not in str(caught.value.body())  # for clients
    await nowhere.close()


async def test_a_password(own_server: EmbeddedRedis) -> None:
    async with Redis.from_url(own_server.url) as redis:
        await redis.config_set("requirepass", "s3cret word")
    stranger = RedisBroker.from_url(own_server.url, "x")
    assert await refuses(stranger.ping)
    friend = RedisBroker.from_url(f"unix://:s3cret%20word@{own_server.url.removeprefix('unix://')}", "x")
    await friend.ping()
    await stranger.close()
    await friend.close()


async def test_a_full_redis_is_unavailable(own_server: EmbeddedRedis, make_job: Any) -> None:
    broker = RedisBroker.from_url(own_server.url, "x")
    async with Redis.from_url(own_server.url) as redis:
        await redis.config_set("maxmemory", "1mb")
        assert await refuses(lambda: broker.submit(make_job(images=1), [os.urandom(2 << 20)]))
        with pytest.raises(QueueCannotWrite, match="memory is full"):
            await broker.submit(make_job(images=1), [os.urandom(2 << 20)])
        await redis.config_set("maxmemory", "0")
    await broker.submit(make_job(images=1), [os.urandom(2 << 20)])
    await broker.close()
