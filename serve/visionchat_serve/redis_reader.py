"""All open answers of one gateway on one connection to Redis, however many clients wait.

One task asks for the news of all streams that somebody follows, with one `XREAD` that waits until any of them moves;
a new follower wakes it through a stream of the reader's own. Now and then it looks whether the jobs are still there,
all in one round trip. A follower who is too slow is let go, and comes back for the rest when it has read what it got:
Redis keeps it, this process need not. While Redis is away the task waits for `outage`; then all followers learn it.
Must not know who writes the streams. Part of `redis_broker`.
"""

from __future__ import annotations

import asyncio
import logging
import math
import time
import uuid
from collections.abc import AsyncGenerator, AsyncIterator, Iterable
from contextlib import aclosing, suppress
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any

from redis.asyncio import Redis

from visionchat_serve.broker import resume_point, unknown_job
from visionchat_serve.errors import Unavailable
from visionchat_serve.messages import ChunkDetails, Finish, JobEvent, TokenChunk, decode
from visionchat_serve.redis_calls import RedisCalls
from visionchat_serve.redis_keys import Keys
from visionchat_serve.redis_link import RedisLink
from visionchat_serve.redis_policy import ms

log = logging.getLogger(__name__)

EVENTS_WAIT = timedelta(seconds=3)  # one wait at Redis; below the socket timeout, which catches a hung Redis
EVENTS_AT_ONCE = 64
BEHIND = 2 * EVENTS_AT_ONCE  # events that are kept for a follower who is slower than the answer
OUTAGE_PAUSE = timedelta(milliseconds=500)
WAKE_TTL = timedelta(minutes=1)  # longer than any wait

News = JobEvent | Exception | None  # None: nothing comes any more


class _Follower:
    """What one follower has still to read."""

    def __init__(self) -> None:
        self._news: asyncio.Queue[News] = asyncio.Queue(BEHIND)
        self._is_behind = False

    def tell(self, news: News) -> bool:
        """False: there is no room, and this one is to be told no more."""
        self._is_behind = self._news.full()
        if not self._is_behind:
            self._news.put_nowait(news)
        return not self._is_behind

    async def told(self) -> AsyncIterator[News]:
        """All of it; ends when it was told no more."""
        while not (self._is_behind and self._news.empty()):
            yield await self._news.get()


@dataclass(eq=False, slots=True)
class _Stream:
    """A job's stream with all who follow it. `cursor` is the last entry that was read, `look_at` when to look at the
    job again, in `time.monotonic()` seconds; `ended`: what is there is all that comes."""

    cursor: str
    look_at: float
    ended: bool = False
    followers: list[_Follower] = field(default_factory=list)

    def tell(self, news: News) -> None:
        self.followers = [follower for follower in self.followers if follower.tell(news)]

    def leave(self, follower: _Follower) -> None:
        self.followers = [other for other in self.followers if other is not follower]


class RedisReader:
    """`follow` as often as you like."""

    def __init__(self, link: RedisLink, keys: Keys, calls: RedisCalls, outage: timedelta) -> None:
        self._link = link
        self._keys = keys
        self._calls = calls
        self._outage = outage
        self._streams: dict[str, _Stream] = {}
        self._task: asyncio.Task[None] | None = None
        self._wake_key = keys.wake(uuid.uuid4().hex)
        self._woken = "0"
        self._waits = False  # at Redis, for the streams that it knew when it began

    async def follow(self, job_id: str, after: str) -> AsyncIterator[JobEvent]:
        """See `Broker.events`."""
        while True:
            async with aclosing(self._follow(job_id, after)) as news:
                async for event in news:
                    if event is None:
                        return
                    if resume_point(event.id) > resume_point(after):
                        after = event.id
                        yield event
                    if isinstance(event.value, Finish):
                        return

    async def _follow(self, job_id: str, after: str) -> AsyncGenerator[JobEvent | None, None]:
        """Until the end, which is None, or as far as a slow follower gets."""
        wait: int | None = await self._calls.run("look", job_id, ms(EVENTS_WAIT))
        if wait is None:
            raise unknown_job(job_id)
        follower = _Follower()
        stream = self._add(job_id, after, follower, wait)
        try:
            await self._wake()
            async for event in follower.told():
                if isinstance(event, Exception):
                    raise event
                yield event
        finally:
            stream.leave(follower)
            if not stream.followers:
                self._drop(job_id, stream)

    async def close(self) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    def _add(self, job_id: str, after: str, follower: _Follower, wait: int) -> _Stream:
        stream = self._streams.setdefault(job_id, _Stream(after, 0))
        stream.followers.append(follower)
        stream.cursor = min(stream.cursor, after, key=resume_point)  # others skip what they have seen
        stream.look_at, stream.ended = time.monotonic() + wait / 1000, wait == 0
        if self._task is None or self._task.done():
            self._task = asyncio.create_task(self._run(), name="redis-reader")
            self._task.add_done_callback(self._tell_why)
        return stream

    def _drop(self, job_id: str, stream: _Stream) -> None:
        if self._streams.get(job_id) is stream:  # else somebody has come anew
            del self._streams[job_id]

    async def _wake(self) -> None:
        """Let the reader take up what is new, if it waits at Redis."""
        if self._waits:
            with suppress(Unavailable):  # the reader itself learns it, and knows what to do
                await self._link.call(self._ring)

    async def _ring(self, redis: Redis) -> None:
        pipeline = redis.pipeline(transaction=True)
        pipeline.xadd(self._wake_key, {"follow": 1}, maxlen=1, approximate=False)
        pipeline.pexpire(self._wake_key, ms(WAKE_TTL))
        await pipeline.execute()

    def _tell_why(self, task: asyncio.Task[None]) -> None:
        """The reader has ended: those who still follow learn with which error."""
        if not task.cancelled() and (error := task.exception()) is not None:
            for stream in self._streams.values():
                stream.tell(error if isinstance(error, Exception) else None)

    async def _run(self) -> None:
        away_since: float | None = None
        while self._streams:
            try:
                await self._look()
                await self._read()
                away_since = None
            except Unavailable as error:
                away_since = away_since or time.monotonic()
                if time.monotonic() - away_since >= self._outage.total_seconds():
                    raise
                log.warning("the readers wait for the queue to come back: %s", error)
                await asyncio.sleep(OUTAGE_PAUSE.total_seconds())

    async def _look(self) -> None:
        """See how the jobs stand whose turn it is."""
        due = [(job_id, s) for job_id, s in self._streams.items() if not s.ended and s.look_at <= time.monotonic()]
        waits = await self._calls.run_each("look", [(job_id, ms(EVENTS_WAIT)) for job_id, _ in due])
        for (job_id, stream), wait in zip(due, waits, strict=True):
            if wait is None:
                stream.tell(unknown_job(job_id))
                self._drop(job_id, stream)
            else:
                stream.look_at, stream.ended = time.monotonic() + wait / 1000, wait == 0

    async def _read(self) -> None:
        """Give out what has come, or wait until something comes or a job is to be looked at."""
        asked = dict(self._streams)
        keys = {self._keys.events(job_id): (job_id, stream, stream.cursor) for job_id, stream in asked.items()}
        cursors: dict[Any, Any] = {key: cursor for key, (_, _, cursor) in keys.items()}
        cursors[self._wake_key] = self._woken
        block = self._wait(asked.values())
        self._waits = block is not None
        try:
            reply = await self._link.call(lambda redis: redis.xread(cursors, count=EVENTS_AT_ONCE, block=block))
        finally:
            self._waits = False
        news = {key.decode(): entries for key, entries in reply or ()}
        if self._wake_key in news:
            self._woken = news.pop(self._wake_key)[-1][0].decode()
        for key, (job_id, stream, cursor) in keys.items():
            if stream.cursor == cursor:  # else somebody came who wants more of it
                self._give_out(job_id, stream, news.get(key, []))

    def _wait(self, streams: Iterable[_Stream]) -> int | None:
        """In ms; None for not at all."""
        if any(stream.ended for stream in streams):
            return None
        until = min((stream.look_at for stream in streams), default=0.0)
        return max(1, math.ceil((until - time.monotonic()) * 1000))

    def _give_out(self, job_id: str, stream: _Stream, entries: list[tuple[bytes, dict[bytes, bytes]]]) -> None:
        for entry_id, fields in entries:
            stream.tell(event_of(job_id, entry_id, fields))
            stream.cursor = entry_id.decode()
        if stream.ended and not entries:
            stream.tell(None)
        if not stream.followers or (stream.ended and not entries):
            self._drop(job_id, stream)


def event_of(job_id: str, entry_id: bytes, fields: dict[bytes, bytes]) -> JobEvent:
    """A stream's entry as what it tells."""
    attempt = int(fields[b"attempt"])
    if b"finish" in fields:
        return JobEvent(entry_id.decode(), attempt, decode(Finish, fields[b"finish"]))
    more = decode(ChunkDetails, fields[b"more"]) if b"more" in fields else ChunkDetails()
    text = fields[b"text"].decode()
    chunk = TokenChunk(job_id, attempt, int(fields[b"index"]), text, more.choice, more.logprobs)
    return JobEvent(entry_id.decode(), attempt, chunk)
