"""The Redis servers that the contract suite runs on, and the queue that each of its tests gets."""

from __future__ import annotations

import uuid
from datetime import timedelta
from pathlib import Path
from typing import Any

from redis.asyncio import Redis

from visionchat_serve.broker import Broker, BrokerPolicy
from visionchat_serve.memory_broker import MemoryBroker
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
