"""One question and its answer as the gateway sees them: follow, and let go when the client leaves.

Both forms of the API, streamed and whole, go through here, so that there is one place where an answer can end:
by its `Finish`, by an error, by its deadline, or by the client going away (then the job is cancelled, and the
replica stops within a token). Knows the broker, not HTTP.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, AsyncIterator, Iterator, Mapping
from contextlib import aclosing
from datetime import timedelta
from typing import TypeVar

from visionchat_serve.answer import Answer, Choice, Piece
from visionchat_serve.errors import JobTimedOut, Unavailable
from visionchat_serve.messages import ChatJob, Finish
from visionchat_serve.source import Source

T = TypeVar("T")

GRACE = timedelta(seconds=5)  # past its deadline a job is ended by its replica; past this as well, by the gateway


class Exchange:
    """`job` is whose answer comes from `source`. `submitted_at`, `first_text_at` and `last_text_at` are
    `time.monotonic()` seconds, for metrics."""

    def __init__(self, job: ChatJob, source: Source) -> None:
        self.job = job
        self.submitted_at = time.monotonic()
        self._began_at = time.time()
        self.first_text_at: float | None = None
        self.last_text_at: float | None = None
        self._source = source
        self._answer = Answer()

    @property
    def choices(self) -> Mapping[int, Choice]:
        """The answers so far, by index."""
        return self._answer.choices

    @property
    def finish(self) -> Finish:
        """How the answer ended; only after `deltas` was read to its end."""
        assert self._answer.finish is not None
        return self._answer.finish

    async def deltas(self, pauses: Iterator[timedelta]) -> AsyncGenerator[Piece | None, None]:
        """What is new as it comes, None after a pause without any. Raises what ended the job, if not well."""
        events = self._source.events()
        try:
            async with aclosing(with_pauses(events, pauses)) as paced:
                async for event in paced:
                    piece = self._answer.feed(event) if event is not None else None
                    if piece:
                        self._note_text()
                    if piece or event is None:
                        yield piece
                    if event is None:
                        self._check_deadline()
        finally:
            if self._answer.finish is None:
                await self._let_go()

    def _note_text(self) -> None:
        self.last_text_at = time.monotonic()
        self.first_text_at = self.first_text_at or self.last_text_at

    def _check_deadline(self) -> None:
        """An answer that is there already is given whatever its age: whoever asks again is given `GRACE` to read it."""
        if time.time() > max(self.job.deadline_at, self._began_at) + GRACE.total_seconds():
            raise JobTimedOut("no replica answered before the request's deadline; ask again later")

    async def _let_go(self) -> None:
        # Shielded: in a request that is itself being cancelled, a plain await here would be cancelled too.
        await asyncio.shield(asyncio.ensure_future(self._try_let_go()))

    async def _try_let_go(self) -> None:
        try:
            await self._source.left()
        except Unavailable:
            return  # the queue is away; the job's deadline ends it


async def with_pauses(source: AsyncIterator[T], pauses: Iterator[timedelta]) -> AsyncGenerator[T | None, None]:
    """The items of `source`, and None whenever a pause passes without one. Each wait takes the next of `pauses`."""
    pending: asyncio.Future[T] | None = None
    try:
        while True:
            if pending is None:
                pending = asyncio.ensure_future(anext(source))
            done, _ = await asyncio.wait({pending}, timeout=next(pauses).total_seconds())
            if not done:
                yield None
                continue
            finished, pending = pending, None
            try:
                item = finished.result()
            except StopAsyncIteration:
                return
            yield item
    finally:
        if pending is not None:
            pending.cancel()
            await asyncio.gather(pending, return_exceptions=True)
        if isinstance(source, AsyncGenerator):
            await source.aclose()
