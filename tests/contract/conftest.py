"""One suite for every queue there is: in memory, and on each version of Redis found on this machine.

A test gets `queue`, which opens brokers on a namespace of its own. When it ends, no key may be left without a TTL.
"""

from __future__ import annotations

import itertools
import time
import uuid
from collections.abc import AsyncIterator, Callable, Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from redis.asyncio import Redis
from visionchat_serve.broker import Broker, BrokerPolicy
from visionchat_serve.memory_broker import MemoryBroker
from visionchat_serve.messages import ChatJob, ImagePart, JobEvent, Message, SamplingParams, TextPart, TokenChunk
from visionchat_serve.redis_broker import RedisBroker
from visionchat_serve.redis_keys import Keys
from visionchat_serve.redis_server import EmbeddedRedis, find_servers

SERVERS = {f"redis-{'.'.join(map(str, version))}": binary for binary, version in find_servers()}
FAST = {"lease": timedelta(milliseconds=200), "result_ttl": timedelta(seconds=60)}


class Servers:
    """The embedded servers of this session, each started when first asked for."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._running: dict[str, EmbeddedRedis] = {}

    def __getitem__(self, name: str) -> EmbeddedRedis:
        if name not in self._running:
            server = EmbeddedRedis(self._folder / name, SERVERS[name])
            server.start()
            self._running[name] = server
        return self._running[name]

    def stop(self) -> None:
        for server in self._running.values():
            server.stop()


class Queue:
    """Opens brokers on one queue: several on the same Redis, or the same one in memory."""

    def __init__(self, url: str | None) -> None:
        self.url = url
        self.namespace = uuid.uuid4().hex[:12]
        self.max_waiting = 0
        self._opened: list[Broker] = []

    def open(self, **policy: Any) -> Broker:
        chosen = BrokerPolicy(**(FAST | policy))
        self.max_waiting = max(self.max_waiting, chosen.max_waiting)
        if self.url is None:
            broker: Broker = self._opened[0] if self._opened else MemoryBroker(chosen)
        else:
            broker = RedisBroker.from_url(self.url, self.namespace, chosen)
        self._opened.append(broker)
        return broker

    async def close(self) -> None:
        for broker in self._opened:
            await broker.close()


@pytest.fixture(scope="session")
def servers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Servers]:
    started = Servers(tmp_path_factory.mktemp("redis"))
    yield started
    started.stop()


@pytest.fixture(params=SERVERS or [pytest.param("", marks=pytest.mark.skip("no redis-server 6.2 or newer here"))])
def server_name(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
async def redis_queue(server_name: str, servers: Servers) -> AsyncIterator[Queue]:
    queue = Queue(servers[server_name].url)
    yield queue
    await queue.close()
    await fail_on_leaks(queue)


@pytest.fixture(params=["memory", *SERVERS])
async def queue(request: pytest.FixtureRequest, servers: Servers) -> AsyncIterator[Queue]:
    queue = Queue(None if request.param == "memory" else servers[request.param].url)
    yield queue
    await queue.close()
    await fail_on_leaks(queue)


async def fail_on_leaks(queue: Queue) -> None:
    """Every key has a TTL, except the jobs stream, which holds no more than may wait."""
    if queue.url is None:
        return
    jobs = Keys(queue.namespace).jobs.encode()
    async with Redis.from_url(queue.url) as redis:
        names = [name async for name in redis.scan_iter(match=f"visionchat:{{{queue.namespace}}}*", count=1000)]
        forever = [name for name in names if name != jobs and await redis.ttl(name) == -1]
        assert not forever, f"keys without a TTL: {forever}"
        assert await redis.xlen(jobs) <= queue.max_waiting


@pytest.fixture
def broker(queue: Queue) -> Broker:
    return queue.open()


JobFactory = Callable[..., ChatJob]


@pytest.fixture
def make_job() -> JobFactory:
    numbers = itertools.count()

    def make(images: int = 0, deadline: float = 60.0) -> ChatJob:
        parts = (*(ImagePart(i) for i in range(images)), TextPart("Which shape do you see? ⭐"))
        now = time.time()
        job_id = f"job-{next(numbers)}"
        return ChatJob(job_id, (Message("user", parts),), SamplingParams(), "tiny", images, now, now + deadline)

    return make


Collect = Callable[..., Any]


@pytest.fixture
def collect() -> Collect:
    """All events of a job until its end."""

    async def all_events(broker: Broker, job_id: str, after: str = "0") -> list[JobEvent]:
        return [event async for event in broker.events(job_id, after)]

    return all_events


@pytest.fixture
def text_of() -> Callable[[list[JobEvent]], str]:
    return lambda events: "".join(e.value.text for e in events if isinstance(e.value, TokenChunk))
