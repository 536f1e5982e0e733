"""One suite for every queue there is: in memory, and on each version of Redis found on this machine.

A test gets `queue`, which opens brokers on a namespace of its own. When it ends, no key may be left without a TTL.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from contract.queues import SERVERS, Queue, Servers, fail_on_leaks
from visionchat_serve.broker import Broker
from visionchat_serve.messages import ChatJob, ImagePart, JobEvent, Message, SamplingParams, TextPart, TokenChunk
from visionchat_serve.redis_server import EmbeddedRedis


@pytest.fixture(scope="session")
def servers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Servers]:
    started = Servers(tmp_path_factory.mktemp("redis"))
    yield started
    started.stop()


@pytest.fixture(params=SERVERS or [pytest.param("", marks=pytest.mark.skip("no redis-server 6.2 or newer here"))])
def server_name(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def own_server(server_name: str, tmp_path: Path) -> Iterator[EmbeddedRedis]:
    """A server for one test, which may stop and kill it."""
    with EmbeddedRedis(tmp_path, SERVERS[server_name]) as server:
        yield server


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


@pytest.fixture
def broker(queue: Queue) -> Broker:
    return queue.open()


JobFactory = Callable[..., ChatJob]


@pytest.fixture
def make_job() -> JobFactory:
    numbers = itertools.count()

    def make(images: int = 0, deadline: float = 60.0, **more: Any) -> ChatJob:
        parts: tuple[ImagePart | TextPart, ...] = (
            *(ImagePart(i) for i in range(images)),
            TextPart("Which shape do you see? ⭐"),
        )
        now = time.time()
        job_id = f"job-{next(numbers)}"
        return ChatJob(job_id, (Message("user", parts),), SamplingParams(), "tiny", images, now, now + deadline, **more)

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
