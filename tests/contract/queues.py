"""The Redis servers that the contract suite runs on, and the queue that each of its tests gets."""

from __future__ import annotations

import time
import uuid
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from redis.asyncio import Redis

from visionchat_serve import redis_link
from visionchat_serve.broker import Broker, BrokerPolicy
from visionchat_serve.memory_broker import MemoryBroker
from visionchat_serve.redis_broker import RedisBroker
from visionchat_serve.redis_keys import Keys
from visionchat_serve.redis_server import EmbeddedRedis, find_servers

SERVERS = {f"redis-{'.'.join(map(str, version))}": binary for binary, version in find_servers()}
# No lease expires because the machine is busy; a test that waits for the end of one asks for a quick one.
DEFAULTS = {"lease": timedelta(seconds=60), "result_ttl": timedelta(seconds=60)}
QUICK = timedelta(milliseconds=200)


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


class Clock:
    """The time of a queue that stands still until it is told to `jump`, so that a busy machine cannot make a lease
    expire. In Redis it is a key beside the queue's; scripts look there after `read_in_redis`."""

    def __init__(self, url: str | None, namespace: str, start: float) -> None:
        self.now = start
        self._redis = None if url is None else Redis.from_url(url)
        self._key = f"{namespace}:clock"

    async def jump(self, seconds: float) -> None:
        self.now += seconds
        if self._redis is not None:
            await self._redis.set(self._key, int(self.now * 1000), ex=600)

    async def close(self) -> None:
        if self._redis is not None:
            await self._redis.delete(self._key)
            await self._redis.aclose()

    @staticmethod
    def read_in_redis(patch: pytest.MonkeyPatch) -> None:
        real = redis_link._source
        line = next(line for line in real("load").splitlines() if line.startswith("local NOW"))
        read = "local NOW = tonumber(redis.call('GET', string.match(KEYS[1], '{(.*)}') .. ':clock'))"
        patch.setattr(redis_link, "_source", lambda name: real(name).replace(line, read))
        # Nor is a Redis lost whose disk is slow just now.
        patch.setattr(redis_link, "REPLY_TIMEOUT", timedelta(minutes=5))


class Queue:
    """Opens brokers on one queue: several on the same Redis, or the same one in memory; by `clock` if there is one."""

    def __init__(self, url: str | None) -> None:
        self.url = url
        self.clock: Clock | None = None
        self.namespace = uuid.uuid4().hex[:12]
        self.max_waiting = 0
        self._opened: list[Broker] = []

    def open(self, **policy: Any) -> Broker:
        chosen = BrokerPolicy(**(DEFAULTS | policy))
        self.max_waiting = max(self.max_waiting, chosen.max_waiting)
        if self.url is None:
            now = time.time if self.clock is None else lambda: self.clock.now
            broker: Broker = self._opened[0] if self._opened else MemoryBroker(chosen, now)
        else:
            broker = RedisBroker.from_url(self.url, self.namespace, chosen)
        self._opened.append(broker)
        return broker

    async def stop_the_clock(self, patch: pytest.MonkeyPatch) -> Clock:
        """For brokers that are opened from now on."""
        self.clock = Clock(self.url, self.namespace, time.time())
        self.clock.read_in_redis(patch)
        await self.clock.jump(0)
        return self.clock

    async def close(self) -> None:
        for broker in self._opened:
            await broker.close()
        if self.clock is not None:
            await self.clock.close()


async def fail_on_leaks(queue: Queue) -> None:
    """Every key has a TTL, and no more jobs wait than may."""
    if queue.url is None:
        return
    waiting = Keys(queue.namespace).of_queue()[:4]
    async with Redis.from_url(queue.url) as redis:
        names = [name async for name in redis.scan_iter(match=f"visionchat:{{{queue.namespace}}}*", count=1000)]
        forever = [name for name in names if await redis.ttl(name) == -1]
        assert not forever, f"keys without a TTL: {forever}"
        assert sum([await redis.zcard(key) for key in waiting]) <= queue.max_waiting
