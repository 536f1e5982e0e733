"""The connections to Redis: scripts loaded, failures named, nothing waited for without an end.

A call fails with `errors.Unavailable` within seconds when Redis is away or hangs; nothing is retried behind the
caller's back, and the next call connects anew. Which Redis it is and what it said stands in the log and in the error's
`inside`, not in what clients are told. Must not know jobs or keys. Used by `redis_broker`.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager
from datetime import timedelta
from functools import cache
from importlib.resources import files
from typing import Any
from urllib.parse import urlsplit

from redis.asyncio import Redis
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff
from redis.commands.core import AsyncScript
from redis.exceptions import (
    ClusterDownError,
    MasterDownError,
    NoPermissionError,
    NoScriptError,
    OutOfMemoryError,
    ReadOnlyError,
    RedisError,
)
from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import TimeoutError as RedisTimeoutError

from visionchat_serve.errors import ConfigError, QueueCannotWrite, Unavailable
from visionchat_serve.redis_address import clients

log = logging.getLogger(__name__)

REPLY_TIMEOUT = timedelta(seconds=5)  # longer than any wait that is asked of Redis
CONNECT_TIMEOUT = timedelta(seconds=3)
MAX_CONNECTIONS = 32  # calls at the same time; further ones wait for their turn

# Redis is away, or there but cannot serve now: full, read-only, disk full, forbidden … In a script's error the kind
# is sometimes only in the text.
_UNAVAILABLE = (
    RedisConnectionError,
    RedisTimeoutError,
    OSError,
    OutOfMemoryError,
    ReadOnlyError,
    MasterDownError,
    ClusterDownError,
    NoPermissionError,
)
_UNAVAILABLE_WORDS = ("OOM ", "READONLY", "MISCONF", "MASTERDOWN", "CLUSTERDOWN", "NOREPLICAS", "NOPERM", "NOAUTH")
_CANNOT_WRITE = {
    "MISCONF": "the queue cannot save what it is given: its disk is full or failing; room must be made on the server",
    "OOM ": "the queue's memory is full; try again when some of its jobs are answered",
    "command not allowed when used memory": "the queue's memory is full; try again when some of its jobs are answered",
    "READONLY": "the queue takes nothing new just now: its Redis is a read-only replica",
    "NOREPLICAS": "the queue takes nothing new just now: its Redis misses its replicas",
}
_AWAY = "the queue does not answer; try again in a few seconds"
LOG_EVERY = timedelta(seconds=10)  # while Redis is away every call fails


class RedisLink:
    """One pool of connections to one Redis, or to the master that Sentinels name."""

    def __init__(self, url: str) -> None:
        try:
            self._redis, self._sentinels = clients(
                url,
                socket_timeout=REPLY_TIMEOUT.total_seconds(),
                socket_connect_timeout=CONNECT_TIMEOUT.total_seconds(),
                retry=Retry(NoBackoff(), 0),
                max_connections=2 * MAX_CONNECTIONS,  # more than are ever used: one that is closing still counts
                protocol=2,  # one shape of replies, whatever the server's age
            )
        except ValueError as error:
            raise ConfigError(f"the Redis address {_without_secrets(url)} is not usable: {error}") from error
        self._place = _without_secrets(url)
        self._turns = asyncio.Semaphore(MAX_CONNECTIONS)
        self._running: set[asyncio.Future[Any]] = set()
        self._logged_at = float("-inf")

    def script(self, name: str) -> AsyncScript:
        """A script of `redis_scripts/`; sent again by itself when Redis has forgotten it."""
        return self._redis.register_script(_source(name))

    async def call(self, command: Callable[[Redis], Awaitable[Any]]) -> Any:
        """The reply of a command."""
        return await self._apart(lambda: command(self._redis))

    async def run(self, script: AsyncScript, keys: Sequence[str], args: Sequence[Any]) -> Any:
        """The reply of a script."""
        return await self._apart(lambda: script(keys, args))

    async def run_each(self, script: AsyncScript, calls: Sequence[tuple[Sequence[str], Sequence[Any]]]) -> list[Any]:
        """The replies of several calls of a script, in one round trip."""
        if len(calls) < 2:
            return [await self.run(script, *call) for call in calls]
        replies: list[Any] = await self._apart(lambda: self._pipelined(script, calls))
        return replies

    async def _apart(self, command: Callable[[], Awaitable[Any]]) -> Any:
        """Run a command in a task of its own, which outlives a caller that is cancelled.

        redis-py 8.1 may swallow a cancellation while it connects, so that the caller would go on; and a caller
        inside an anyio scope is cancelled again at every await, also at those that hand the connection back.
        The task is cancelled once and cleans up in peace.
        """
        task = asyncio.ensure_future(self._in_turn(command))
        self._running.add(task)
        task.add_done_callback(self._forget)
        try:
            await asyncio.wait([task])
            with self._failures_named():
                return task.result()
        finally:
            task.cancel()

    async def _in_turn(self, command: Callable[[], Awaitable[Any]]) -> Any:
        async with asyncio.timeout(REPLY_TIMEOUT.total_seconds()):
            await self._turns.acquire()
        try:
            return await command()
        finally:
            self._turns.release()

    def _forget(self, task: asyncio.Future[Any]) -> None:
        self._running.discard(task)
        if not task.cancelled():
            task.exception()  # seen, even if nobody waits for it any more

    async def _pipelined(self, script: AsyncScript, calls: Sequence[tuple[Sequence[str], Sequence[Any]]]) -> list[Any]:
        # Not with the script object, which would ask before each pipeline whether Redis still knows the script.
        pipeline = self._redis.pipeline(transaction=False)
        for keys, args in calls:
            pipeline.evalsha(script.sha, len(keys), *keys, *args)
        replies = await pipeline.execute(raise_on_error=False)
        return [await self._or_again(reply, script, call) for reply, call in zip(replies, calls, strict=True)]

    async def _or_again(self, reply: Any, script: AsyncScript, call: tuple[Sequence[str], Sequence[Any]]) -> Any:
        if isinstance(reply, NoScriptError):
            return await script(*call)
        if isinstance(reply, Exception):
            raise reply
        return reply

    async def close(self) -> None:
        """Close all connections, when those whose callers went away are back."""
        for task in self._running:
            task.cancel()
        if self._running:
            await asyncio.wait(set(self._running))
        for client in (self._redis, *self._sentinels):
            await client.aclose()

    @contextmanager
    def _failures_named(self) -> Iterator[None]:
        try:
            yield
        except (RedisError, OSError) as error:
            if isinstance(error, _UNAVAILABLE) or any(word in str(error) for word in _UNAVAILABLE_WORDS):
                raise self._unavailable(error) from error
            raise

    def _unavailable(self, error: Exception) -> Unavailable:
        inside = f"Redis at {self._place}: {error}"
        if time.monotonic() - self._logged_at > LOG_EVERY.total_seconds():
            self._logged_at = time.monotonic()
            log.warning("%s", inside)
        for word, message in _CANNOT_WRITE.items():
            if word in str(error):
                return QueueCannotWrite(message, inside=inside)
        return Unavailable(_AWAY, inside=inside)


@cache
def _source(name: str) -> str:
    folder = files("visionchat_serve") / "redis_scripts"
    return "\n".join((folder / f"{part}.lua").read_text(encoding="utf-8") for part in ("prelude", name))


def _without_secrets(url: str) -> str:
    parts = urlsplit(url)
    scheme = f"{parts.scheme}://" if parts.scheme else ""
    return f"{scheme}{parts.netloc.rpartition('@')[2]}{parts.path.rpartition('@')[2]}"
