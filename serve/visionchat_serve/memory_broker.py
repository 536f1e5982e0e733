"""The queue inside one process: the promises of `broker` in their plainest form, to read and to test against.

Nothing here survives the process. Time comes from `clock` (epoch seconds), so that a test can jump; waiting is
real. Must not know Redis. The contract tests hold this and `redis_broker` to the same behaviour.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import suppress
from datetime import timedelta

from visionchat_serve import broker
from visionchat_serve.broker import BrokerPolicy, LeaseState, Reuse
from visionchat_serve.memory_homes import Homes
from visionchat_serve.memory_jobs import Entry, Jobs, Status
from visionchat_serve.memory_speed import Speed
from visionchat_serve.messages import (
    ChatJob,
    Claim,
    Finish,
    Idempotency,
    JobEvent,
    JobView,
    QueueLoad,
    ReplicaReport,
    Submitted,
    TokenChunk,
    TokenLogprob,
)

MINUTE = 60.0
POLL = 0.02  # seconds until a waiting caller looks at the clock again


class MemoryBroker:
    """See `broker.Broker`."""

    def __init__(self, policy: BrokerPolicy | None = None, clock: Callable[[], float] = time.time) -> None:
        self.policy = policy or BrokerPolicy()
        self._clock = clock
        self._jobs = Jobs(self.policy, clock)
        self._homes = Homes(self.policy, clock)
        self._reports: dict[str, tuple[float, ReplicaReport]] = {}
        self._once: dict[tuple[str, str], tuple[float, str, str]] = {}  # until when, fingerprint, job
        self._speed = Speed()
        self._rates: dict[str, float] = {}  # until when the owners' rates are used up
        self._changed = asyncio.Event()

    # --- the gateway's side ---

    async def submit(self, job: ChatJob, images: Sequence[bytes], idempotency: Idempotency | None = None) -> str:
        return (await self.ask(job, images, idempotency)).job_id

    async def ask(
        self,
        job: ChatJob,
        images: Sequence[bytes],
        idempotency: Idempotency | None = None,
        reuse: Reuse = Reuse.NOTHING,
    ) -> Submitted:
        self._jobs.sweep()
        if (earlier := self._earlier(job, idempotency)) is not None:
            return Submitted(earlier, "known")
        if (reused := self._reused(job, idempotency, reuse)) is not None:
            return reused
        self._check_owner(job, await self.load())
        await self._check_room(job)
        self._rates[job.owner] = self._used_until(job.owner)
        self._remember(job, images, idempotency).reuses = reuse is not Reuse.NOTHING
        if reuse is Reuse.SHARE:
            self._jobs.answers.open(job.cache_key, job.id)
        self._wake()
        return Submitted(job.id, "accepted")

    def _remember(self, job: ChatJob, images: Sequence[bytes], idempotency: Idempotency | None) -> Entry:
        expires_at = max(job.deadline_at, self._clock()) + self.policy.result_ttl.total_seconds()
        entry = Entry(job, tuple(images), expires_at, self._clock(), self._speed.work_of(job))
        self._jobs.known[job.id] = entry
        if idempotency is not None:
            until = self._clock() + self.policy.idempotency_ttl.total_seconds()
            self._once[job.owner, idempotency.key] = until, idempotency.fingerprint, job.id
        return entry

    def _reused(self, job: ChatJob, idempotency: Idempotency | None, reuse: Reuse) -> Submitted | None:
        answers = self._jobs.answers
        if reuse is not Reuse.NOTHING and (events := answers.find(job.cache_key)):
            self._jobs.end_as_before(self._remember(job, (), idempotency), events)
            return Submitted(job.id, "hit")
        leader = answers.leader(job.cache_key) if reuse is Reuse.SHARE else None
        if leader is None:
            return None
        now, theirs = self._clock(), self._jobs.known[leader].job.deadline_at
        if theirs - now < (job.deadline_at - now) / 2:
            return None
        return Submitted(answers.join(job.cache_key, job.id), "joined")

    async def let_go(self, job_id: str, client: str) -> bool:
        return self._jobs.answers.let_go(job_id, client) and await self.cancel(job_id)

    def _earlier(self, job: ChatJob, idempotency: Idempotency | None) -> str | None:
        """The job that stands for the request already."""
        if job.id in self._jobs.known:
            return job.id
        self._once = {key: used for key, used in self._once.items() if used[0] > self._clock()}
        used = self._once.get((job.owner, idempotency.key)) if idempotency else None
        if idempotency is None or used is None:
            return None
        if used[1] != idempotency.fingerprint:
            raise broker.key_reused()
        return used[2] if used[2] in self._jobs.known else None

    def _check_owner(self, job: ChatJob, load: QueueLoad) -> None:
        unanswered = sum(e.job.owner == job.owner and e.status is not Status.ENDED for e in self._jobs.known.values())
        if self.policy.owner_open and unanswered >= self.policy.owner_open:
            raise broker.too_many_open(self.policy, load.pace)
        early = self._used_until(job.owner) - MINUTE - self._clock()
        if early > 0:
            raise broker.too_fast(self.policy, early)

    def _used_until(self, owner: str) -> float:
        """The owner's allowance as one number: each job moves it on by its share of a minute, and it may be a minute
        ahead."""
        share = MINUTE / self.policy.owner_rate if self.policy.owner_rate else 0
        return max(self._rates.get(owner, 0), self._clock()) + share

    async def _check_room(self, job: ChatJob) -> None:
        load = await self.load()
        if load.backlog >= self.policy.max_waiting:
            raise broker.queue_full(self.policy, load.pace)
        batch = sum(e.job.priority == "batch" for e in self._jobs.waiting())
        ahead = load.backlog - (batch if job.priority == "interactive" else 0)
        too_long = ahead * load.pace - self.policy.max_wait.total_seconds()
        if too_long > 0:
            raise broker.queue_slow(self.policy, too_long + load.pace)

    async def events(self, job_id: str, after: str = "0") -> AsyncIterator[JobEvent]:
        last = broker.resume_point(after)
        while True:
            entry = self._jobs.find(job_id)
            if entry.status is Status.LEASED and not self._jobs.is_held(entry):
                self._end_if_late(entry)
            ended = entry.status is Status.ENDED
            news = [e for e in entry.events if broker.resume_point(e.id) > last]
            for event in news:
                last = broker.resume_point(event.id)
                yield event
            if ended:
                return
            if not news:
                await self._wait(POLL)

    def _end_if_late(self, entry: Entry) -> None:
        if self._clock() >= entry.job.deadline_at:
            self._jobs.end(entry, broker.TIMED_OUT)

    async def cancel(self, job_id: str) -> bool:
        self._jobs.sweep()
        entry = self._jobs.known.get(job_id)
        if entry is None or entry.status is Status.ENDED:
            return False
        entry.cancelled = True
        self._jobs.answers.close(job_id, ended=False)
        if not self._jobs.is_held(entry):
            self._jobs.end(entry, broker.CANCELLED)
            self._wake()
        return True

    async def describe(self, job_id: str) -> JobView:
        return self._jobs.view(self._jobs.find(job_id))

    async def jobs(self, owner: str, limit: int, before: str | None = None) -> list[JobView]:
        self._jobs.sweep()
        own = [e for e in self._jobs.known.values() if e.job.owner == owner][-self.policy.max_listed :]
        if before is not None:
            ids = [e.job.id for e in own]
            if before not in ids:
                raise broker.unknown_job(before)
            own = own[: ids.index(before)]
        return [self._jobs.view(e) for e in reversed(own)][:limit]

    async def asked(self, ids: Sequence[str]) -> list[ChatJob | None]:
        self._jobs.sweep()
        found = [self._jobs.known.get(job_id) for job_id in ids]
        return [entry.job if entry is not None else None for entry in found]

    async def so_far(self, job_id: str) -> list[JobEvent]:
        self._jobs.sweep()
        entry = self._jobs.known.get(job_id)
        return list(entry.events) if entry is not None else []

    async def dead(self, limit: int) -> list[JobView]:
        self._jobs.sweep()
        return [self._jobs.view(e) for e in self._jobs.dead()[:limit]]

    async def replay(self, job_id: str) -> str:
        self._jobs.sweep()
        entry = self._jobs.known.get(job_id)
        if entry is None or not entry.dead:
            raise broker.not_dead(job_id)
        new_id = await self.submit(broker.replay_of(entry.job, entry.images), entry.images)
        self._jobs.forget_dead(entry)
        return new_id

    async def purge_dead(self) -> int:
        self._jobs.sweep()
        dead = self._jobs.dead()
        for entry in dead:
            self._jobs.forget_dead(entry)
        return len(dead)

    async def load(self) -> QueueLoad:
        self._jobs.sweep()
        queued = self._jobs.waiting()
        waiting = len(self._jobs.lost()) + len(queued)
        oldest = max((self._clock() - entry.job.created_at for entry in queued), default=0.0)
        slots = sum(report.max_running for report in await self.reports())
        held, delayed = len(self._jobs.held()), len(self._jobs.delayed())
        pace = self._speed.pace([entry.work for entry in self._jobs.unanswered()]) / max(slots, 1)
        return QueueLoad(waiting, held, delayed, pace, max(0.0, oldest))

    async def reports(self) -> list[ReplicaReport]:
        return [report for _, (until, report) in sorted(self._reports.items()) if until > self._clock()]

    # --- the replica's side ---

    async def claim(self, consumer: str, count: int, block: timedelta) -> list[Claim]:
        give_up_at = time.monotonic() + block.total_seconds()
        while True:
            claims = await self._claim_now(consumer, count)
            left = give_up_at - time.monotonic()
            if claims or left <= 0:
                return claims
            await self._wait(min(left, POLL))

    async def _claim_now(self, consumer: str, count: int) -> list[Claim]:
        self._jobs.sweep()
        claims: list[Claim] = []
        for entry in self._jobs.lost():
            if len(claims) < count and (claim := self._jobs.retry(entry, consumer)):
                claims.append(claim)
                self._homes.note(entry)
        places = {report.replica: report.max_running for report in await self.reports()}
        while len(claims) < count and (waiting := self._jobs.next(self._reserved_from(consumer, places))):
            if (claim := self._jobs.lease(waiting, consumer)) is not None:
                claims.append(claim)
                self._homes.note(waiting)
        return claims

    def _reserved_from(self, consumer: str, places: Mapping[str, int]) -> Callable[[Entry], bool]:
        held = self._jobs.held()
        return lambda entry: self._homes.is_reserved(entry, consumer, held, places)

    async def renew(self, consumer: str, claims: Sequence[Claim]) -> list[LeaseState]:
        states = [self._jobs.state(claim) for claim in claims]
        for claim, state in zip(claims, states, strict=True):
            if state is not LeaseState.LOST:
                self._jobs.extend(self._jobs.known[claim.job.id])
        return states

    async def publish(
        self, claim: Claim, index: int, text: str, choice: int = 0, logprobs: tuple[TokenLogprob, ...] = ()
    ) -> LeaseState:
        if (state := self._jobs.state(claim)) is not LeaseState.HELD:
            return state
        entry = self._jobs.known[claim.job.id]
        if index > entry.chunks:
            return LeaseState.LOST
        if index == entry.chunks:
            entry.first_at = entry.first_at if entry.chunks else self._clock()
            entry.chunks += 1
            self._jobs.append(entry, TokenChunk(claim.job.id, claim.attempt, index, text, choice, logprobs))
            self._wake()
        return state

    async def finish(self, claim: Claim, finish: Finish) -> bool:
        entry = self._jobs.known.get(claim.job.id)
        if entry is None or self._jobs.state(claim) is LeaseState.LOST:
            return entry is not None and entry.ended_by == claim.attempt  # told twice after a lost reply
        good = finish.reason in ("stop", "length")
        if good:
            self._learn(entry, finish)
        self._jobs.end(entry, finish)
        if good and entry.job.cache_key:
            self._jobs.answers.keep(entry.job.cache_key, entry.events)
        entry.ended_by = claim.attempt
        self._wake()
        return True

    def _learn(self, entry: Entry, finish: Finish) -> None:
        now = self._clock()
        first_at = entry.first_at if entry.chunks else now
        written = finish.usage.completion_tokens
        self._speed.learn(entry.work.prompt, first_at - entry.leased_at, written, now - first_at)

    async def release(self, claim: Claim) -> bool:
        state = self._jobs.state(claim)
        if state is LeaseState.LOST:
            return False
        entry = self._jobs.known[claim.job.id]
        entry.status, entry.released, entry.queued_at = Status.QUEUED, entry.released + 1, self._clock()
        if state is LeaseState.CANCELLED:
            self._jobs.end(entry, broker.CANCELLED)
        self._wake()
        return True

    async def report(self, report: ReplicaReport, ttl: timedelta) -> None:
        self._reports[report.replica] = (self._clock() + ttl.total_seconds(), report)

    async def leave(self, consumer: str) -> None:
        self._reports.pop(consumer, None)
        for entry in self._jobs.held():
            if entry.consumer == consumer:
                entry.leased_until = self._clock()
        self._wake()

    async def ping(self) -> None:
        return

    async def close(self) -> None:
        return

    # --- waiting ---

    def _wake(self) -> None:
        self._changed.set()
        self._changed = asyncio.Event()

    async def _wait(self, seconds: float) -> None:
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._changed.wait()
