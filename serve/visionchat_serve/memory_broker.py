"""The queue inside one process: the promises of `broker` in their plainest form, to read and to test against.

Nothing here survives the process. Time comes from `clock` (epoch seconds), so that a test can jump; waiting is
real. Must not know Redis. The contract tests hold this and `redis_broker` to the same behaviour.
"""

from __future__ import annotations

import asyncio
import itertools
import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import timedelta
from enum import Enum, auto

from visionchat_serve import broker
from visionchat_serve.broker import BrokerPolicy, LeaseState
from visionchat_serve.errors import NotFound, QueueFull
from visionchat_serve.messages import (
    ChatJob,
    Claim,
    Finish,
    JobEvent,
    QueueLoad,
    ReplicaReport,
    TokenChunk,
    TokenLogprob,
)

POLL = 0.02  # seconds until a waiting caller looks at the clock again


class _Status(Enum):
    QUEUED = auto()
    LEASED = auto()
    ENDED = auto()


@dataclass(slots=True)
class _Entry:
    """A job and all that is known about it."""

    job: ChatJob
    images: tuple[bytes, ...]
    expires_at: float
    status: _Status = _Status.QUEUED
    attempt: int = 0  # number of the last claim: the fence
    released: int = 0  # claims that were given back and do not count
    consumer: str | None = None
    leased_until: float = 0
    cancelled: bool = False
    ended_by: int | None = None  # the attempt whose replica ended it
    chunks: int = 0  # of this attempt
    events: list[JobEvent] = field(default_factory=list)


class MemoryBroker:
    """See `broker.Broker`."""

    def __init__(self, policy: BrokerPolicy | None = None, clock: Callable[[], float] = time.time) -> None:
        self.policy = policy or BrokerPolicy()
        self._clock = clock
        self._entries: dict[str, _Entry] = {}  # in order of arrival
        self._reports: dict[str, tuple[float, ReplicaReport]] = {}
        self._event_numbers = itertools.count(1)
        self._changed = asyncio.Event()

    # --- the gateway's side ---

    async def submit(self, job: ChatJob, images: Sequence[bytes]) -> None:
        backlog = (await self.load()).backlog
        if job.id in self._entries:
            return
        if backlog >= self.policy.max_waiting:
            raise QueueFull(f"{self.policy.max_waiting} requests are not answered yet; try again later")
        expires_at = max(job.deadline_at, self._clock()) + self.policy.result_ttl.total_seconds()
        self._entries[job.id] = _Entry(job, tuple(images), expires_at)
        self._wake()

    async def events(self, job_id: str, after: str = "0") -> AsyncIterator[JobEvent]:
        last = broker.resume_point(after)
        while True:
            entry = self._find(job_id)
            if not self._is_held(entry) and self._clock() >= entry.job.deadline_at:
                self._end(entry, broker.TIMED_OUT)
            ended = entry.status is _Status.ENDED
            news = [e for e in entry.events if broker.resume_point(e.id) > last]
            for event in news:
                last = broker.resume_point(event.id)
                yield event
            if ended:
                return
            if not news:
                await self._wait(POLL)

    async def cancel(self, job_id: str) -> bool:
        self._forget_expired()
        entry = self._entries.get(job_id)
        if entry is None or entry.status is _Status.ENDED:
            return False
        entry.cancelled = True
        if not self._is_held(entry):
            self._end(entry, broker.CANCELLED)
        return True

    async def load(self) -> QueueLoad:
        self._forget_expired()
        unanswered = [e for e in self._entries.values() if e.status is not _Status.ENDED]
        leased = sum(self._is_held(e) for e in unanswered)
        return QueueLoad(waiting=len(unanswered) - leased, leased=leased)

    async def reports(self) -> list[ReplicaReport]:
        return [report for _, (until, report) in sorted(self._reports.items()) if until > self._clock()]

    # --- the replica's side ---

    async def claim(self, consumer: str, count: int, block: timedelta) -> list[Claim]:
        give_up_at = time.monotonic() + block.total_seconds()
        while True:
            self._forget_expired()
            free = (e for e in list(self._entries.values()) if e.status is not _Status.ENDED and not self._is_held(e))
            claims = list(itertools.islice((self._lease(e, consumer) for e in free if not self._ended_now(e)), count))
            left = give_up_at - time.monotonic()
            if claims or left <= 0:
                return claims
            await self._wait(min(left, POLL))

    def _ended_now(self, entry: _Entry) -> bool:
        """End a job that must not be tried (again), with the reason."""
        if entry.cancelled:
            self._end(entry, broker.CANCELLED)
        elif self._clock() >= entry.job.deadline_at:
            self._end(entry, broker.TIMED_OUT)
        elif entry.attempt - entry.released >= self.policy.max_attempts:
            self._end(entry, broker.attempts_used_up(self.policy))
        return entry.status is _Status.ENDED

    def _lease(self, entry: _Entry, consumer: str) -> Claim:
        entry.status, entry.consumer, entry.chunks = _Status.LEASED, consumer, 0
        entry.attempt += 1
        self._extend(entry)
        return Claim(entry.job, entry.images, entry.attempt, entry_id=entry.job.id)

    async def renew(self, consumer: str, claims: Sequence[Claim]) -> list[LeaseState]:
        states = [self._state(claim) for claim in claims]
        for claim, state in zip(claims, states, strict=True):
            if state is not LeaseState.LOST:
                self._extend(self._entries[claim.job.id])
        return states

    async def publish(
        self, claim: Claim, index: int, text: str, choice: int = 0, logprobs: tuple[TokenLogprob, ...] = ()
    ) -> LeaseState:
        if (state := self._state(claim)) is not LeaseState.HELD:
            return state
        entry = self._entries[claim.job.id]
        if index > entry.chunks:
            return LeaseState.LOST
        if index == entry.chunks:
            entry.chunks += 1
            self._append(entry, TokenChunk(claim.job.id, claim.attempt, index, text, choice, logprobs))
        return state

    async def finish(self, claim: Claim, finish: Finish) -> bool:
        if self._state(claim) is not LeaseState.LOST:
            self._end(self._entries[claim.job.id], finish)
            self._entries[claim.job.id].ended_by = claim.attempt
        entry = self._entries.get(claim.job.id)
        return entry is not None and entry.ended_by == claim.attempt  # also when told twice

    async def release(self, claim: Claim) -> bool:
        if self._state(claim) is LeaseState.LOST:
            return False
        entry = self._entries[claim.job.id]
        entry.status, entry.released = _Status.QUEUED, entry.released + 1
        self._wake()
        return True

    async def report(self, report: ReplicaReport, ttl: timedelta) -> None:
        self._reports[report.replica] = (self._clock() + ttl.total_seconds(), report)

    async def leave(self, consumer: str) -> None:
        self._reports.pop(consumer, None)
        for entry in self._entries.values():
            if entry.consumer == consumer:
                entry.leased_until = self._clock()
        self._wake()

    async def ping(self) -> None:
        return

    async def close(self) -> None:
        return

    # --- what both sides stand on ---

    def _find(self, job_id: str) -> _Entry:
        self._forget_expired()
        if job_id not in self._entries:
            raise NotFound(f"there is no job {job_id!r}; it was never accepted, or its result has expired")
        return self._entries[job_id]

    def _is_held(self, entry: _Entry) -> bool:
        return entry.status is _Status.LEASED and entry.leased_until > self._clock()

    def _state(self, claim: Claim) -> LeaseState:
        """An expired lease still holds while nobody else has taken the job."""
        entry = self._entries.get(claim.job.id)
        if entry is None or entry.status is not _Status.LEASED or entry.attempt != claim.attempt:
            return LeaseState.LOST
        return LeaseState.CANCELLED if entry.cancelled else LeaseState.HELD

    def _extend(self, entry: _Entry) -> None:
        entry.leased_until = self._clock() + self.policy.lease.total_seconds()
        entry.expires_at = max(entry.expires_at, entry.leased_until + self.policy.result_ttl.total_seconds())

    def _append(self, entry: _Entry, value: TokenChunk | Finish) -> None:
        entry.events.append(JobEvent(f"{next(self._event_numbers)}-0", entry.attempt, value))
        self._wake()

    def _end(self, entry: _Entry, finish: Finish) -> None:
        if entry.status is _Status.ENDED:
            return
        entry.status, entry.images = _Status.ENDED, ()
        entry.expires_at = self._clock() + self.policy.result_ttl.total_seconds()
        self._append(entry, finish)

    def _forget_expired(self) -> None:
        for job_id in [i for i, e in self._entries.items() if e.expires_at <= self._clock()]:
            del self._entries[job_id]

    def _wake(self) -> None:
        self._changed.set()
        self._changed = asyncio.Event()

    async def _wait(self, seconds: float) -> None:
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._changed.wait()
