"""The queues in Redis: how much there is to do and what the replicas report. Must not know Kubernetes.

One broker for each address and queue, made when first asked for.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import timedelta

from redis.asyncio import Redis
from redis.exceptions import RedisError

from visionchat_operator.world import Load
from visionchat_serve.errors import VisionChatError
from visionchat_serve.fetch_progress import FetchProgress
from visionchat_serve.messages import QueueLoad, ReplicaReport
from visionchat_serve.redis_address import clients, with_authority, with_password
from visionchat_serve.redis_broker import RedisBroker
from visionchat_serve.redis_link import RedisLink

PATIENCE = timedelta(seconds=3)


class QueueUnavailable(Exception):
    """Redis does not answer, or its address cannot be used."""


@dataclass(frozen=True, slots=True)
class QueueView:
    """A queue at one moment."""

    load: Load
    reports: tuple[ReplicaReport, ...]


class Queues:
    """Looks into queues."""

    def __init__(self) -> None:
        self._brokers: dict[str, tuple[str, RedisBroker]] = {}

    async def look(self, url: str, queue: str) -> QueueView:
        """Load and reports of the queue named `queue`."""
        try:
            broker = await self._broker(url, queue)
            async with asyncio.timeout(PATIENCE.total_seconds()):
                load, reports = await broker.load(), await broker.reports()
        except TimeoutError as error:
            raise QueueUnavailable("Redis does not answer") from error
        except VisionChatError as error:
            raise QueueUnavailable(error.inside or error.message) from error  # no client reads it
        return QueueView(_load(load, len(reports)), tuple(reports))

    async def fetch_progress(self, url: str, queue: str) -> FetchProgress | None:
        """What the Job that fetches the model has told, if it has lately."""
        link = RedisLink(url)
        try:
            async with asyncio.timeout(PATIENCE.total_seconds()):
                return await FetchProgress.told(link, queue)
        except (TimeoutError, VisionChatError):
            return None  # `look` says what is wrong with Redis
        finally:
            await link.close()

    async def _broker(self, url: str, queue: str) -> RedisBroker:
        known = self._brokers.get(queue)
        if known is not None and known[0] == url:
            return known[1]
        if known is not None:
            await known[1].close()
        broker = RedisBroker.from_url(url, queue)
        self._brokers[queue] = url, broker
        return broker

    async def purge(self, url: str, queue: str) -> None:
        """Delete every key of the queue, and the state that its Ray cluster kept there."""
        await self.forget(queue)
        patterns = (f"visionchat:{{{queue}}}*", f"RAY{queue}@*")
        try:
            async with self._connection(url) as redis:
                for pattern in patterns:
                    async for name in redis.scan_iter(match=pattern, count=1000):
                        await self._unlink(redis, name)
        except (RedisError, OSError, ValueError) as error:
            raise QueueUnavailable(f"the queue's keys could not be deleted: {error}") from error

    @asynccontextmanager
    async def _connection(self, url: str) -> AsyncIterator[Redis]:
        redis, others = clients(url, socket_timeout=PATIENCE.total_seconds())
        try:
            yield redis
        finally:
            for client in (redis, *others):
                await client.aclose()

    async def _unlink(self, redis: Redis, name: bytes) -> None:
        await redis.unlink(name)

    async def forget(self, queue: str) -> None:
        """Close what was opened for the queue."""
        known = self._brokers.pop(queue, None)
        if known is not None:
            await known[1].close()

    async def close(self) -> None:
        for queue in list(self._brokers):
            await self.forget(queue)


def address(url: str, password: str | None, authority: str | None) -> str:
    """The whole address; `authority` is the PEM text of who vouches for the server. Raises `QueueUnavailable`."""
    try:
        url = url if password is None else with_password(url, password)
        return url if authority is None else with_authority(url, ssl_ca_data=authority)
    except ValueError as error:
        raise QueueUnavailable(f"queue.caSecret does not fit the queue's address: {error}") from error


def _load(load: QueueLoad, replicas: int) -> Load:
    """`seconds` is for all that report together; scaling asks what one alone would need."""
    work, oldest = load.seconds * replicas, load.oldest
    return Load(load.backlog, timedelta(seconds=oldest) if oldest else None, timedelta(seconds=work) if work else None)
