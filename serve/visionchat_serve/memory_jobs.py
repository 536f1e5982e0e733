"""The jobs of the queue in memory: what is known of each, where it stands, how it moves on.

Everything is computed from one dictionary in order of arrival, in the plainest form; each step is what a Lua script
does in Redis. Time comes from `clock` (epoch seconds). Must not know waiting or readers. Used by `memory_broker`.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from enum import Enum, auto

from visionchat_serve import broker
from visionchat_serve.broker import BrokerPolicy, LeaseState, Work
from visionchat_serve.memory_answers import Answers
from visionchat_serve.messages import ChatJob, Claim, Finish, JobEvent, JobStatus, JobView, TokenChunk, status_after


class Status(Enum):
    QUEUED = auto()
    LEASED = auto()
    ENDED = auto()


@dataclass(slots=True, eq=False)
class Entry:
    """A job and all that is known about it."""

    job: ChatJob
    images: tuple[bytes, ...]
    expires_at: float
    queued_at: float
    work: Work
    status: Status = Status.QUEUED
    attempt: int = 0  # number of the last claim: the fence
    released: int = 0  # claims that were given back and do not count
    consumer: str | None = None
    leased_at: float = 0
    leased_until: float = 0
    first_at: float = 0  # when the first chunk of this attempt came
    delayed_until: float = 0
    cancelled: bool = False
    ended_at: float | None = None
    ended_by: int | None = None  # the attempt whose replica ended it
    finish: Finish | None = None
    dead: bool = False
    chunks: int = 0  # of this attempt
    reuses: bool = False  # another job's answer will do
    events: list[JobEvent] = field(default_factory=list)


class Jobs:
    """`known` holds every job that is not forgotten, in order of arrival."""

    def __init__(self, policy: BrokerPolicy, clock: Callable[[], float]) -> None:
        self.known: dict[str, Entry] = {}
        self._policy = policy
        self._clock = clock
        self._event_numbers = itertools.count(1)
        self.answers = Answers(policy, clock)
        self._leaders: dict[str, str] = {}  # by cache key the job that was leased last
        self._streak = 0  # interactive claims in a row

    # --- where jobs stand ---

    def find(self, job_id: str) -> Entry:
        self.sweep()
        if job_id not in self.known:
            raise broker.unknown_job(job_id)
        return self.known[job_id]

    def is_held(self, entry: Entry) -> bool:
        return entry.status is Status.LEASED and entry.leased_until > self._clock()

    def state(self, claim: Claim) -> LeaseState:
        """An expired lease still holds while nobody else has taken the job."""
        entry = self.known.get(claim.job.id)
        if entry is None or entry.status is not Status.LEASED or entry.attempt != claim.attempt:
            return LeaseState.LOST
        return LeaseState.CANCELLED if entry.cancelled else LeaseState.HELD

    def unanswered(self) -> list[Entry]:
        return [e for e in self.known.values() if e.status is not Status.ENDED]

    def held(self) -> list[Entry]:
        return [e for e in self.known.values() if self.is_held(e)]

    def lost(self) -> list[Entry]:
        """Jobs whose lease has expired, longest first."""
        expired = [e for e in self.known.values() if e.status is Status.LEASED and not self.is_held(e)]
        return sorted(expired, key=lambda e: (e.leased_until, e.job.id))

    def waiting(self) -> list[Entry]:
        """In the order in which they are claimed, if no batch job gets its turn before."""
        queued = [e for e in self.known.values() if e.status is Status.QUEUED and e.delayed_until <= self._clock()]
        return sorted(queued, key=lambda e: e.job.priority == "batch")

    def delayed(self) -> list[Entry]:
        later = [e for e in self.known.values() if e.status is Status.QUEUED and e.delayed_until > self._clock()]
        return sorted(later, key=lambda e: (e.delayed_until, e.job.id))

    def dead(self) -> list[Entry]:
        """Latest first."""
        dead = (e for e in self.known.values() if e.dead)
        return sorted(dead, key=lambda e: (e.ended_at or 0, e.job.id), reverse=True)

    def view(self, entry: Entry) -> JobView:
        queue = [*self.lost(), *self.waiting(), *self.delayed()]
        status: JobStatus = "processing" if self.is_held(entry) else "queued"
        return JobView(
            id=entry.job.id,
            owner=entry.job.owner,
            status=status_after(entry.finish) if entry.finish else status,
            attempt=entry.attempt,
            created_at=entry.job.created_at,
            ended_at=entry.ended_at,
            position=queue.index(entry) if entry in queue else None,
            finish=entry.finish,
        )

    # --- how they move on ---

    def sweep(self) -> None:
        """Forget what has expired, end what waits past its deadline."""
        now = self._clock()
        self.known = {i: e for i, e in self.known.items() if e.expires_at > now}
        self._leaders = {key: job_id for key, job_id in self._leaders.items() if job_id in self.known}
        for entry in self.known.values():
            if entry.status is Status.QUEUED and entry.job.deadline_at <= now:
                self.end(entry, broker.TIMED_OUT)
            elif entry.status is Status.QUEUED and 0 < entry.delayed_until <= now:
                entry.delayed_until, entry.queued_at = 0, now

    def next(self, is_reserved: Callable[[Entry], bool]) -> Entry | None:
        """The waiting job whose turn it is, of those that are not left for another replica, nor for the same job's
        answer."""
        waiting = [e for e in self.waiting() if not self._is_doubled(e) and not is_reserved(e)]
        batch = next((e for e in waiting if e.job.priority == "batch"), None)
        first = batch if batch and self._streak >= self._policy.batch_after else next(iter(waiting), None)
        if first is not None:
            self._streak = 0 if first.job.priority == "batch" else self._streak + 1
        return first

    def _is_doubled(self, entry: Entry) -> bool:
        """Whether the same is being answered just now."""
        leader = self.known.get(self._leaders.get(entry.job.cache_key, ""))
        return entry.reuses and leader is not None and leader is not entry and self.is_held(leader)

    def lease(self, entry: Entry, consumer: str) -> Claim | None:
        """None for a job that is ended instead, by an answer that was kept meanwhile."""
        if entry.reuses and entry.attempt == 0 and (events := self.answers.find(entry.job.cache_key)):
            self.end_as_before(entry, events)
            return None
        entry.status, entry.consumer, entry.chunks = Status.LEASED, consumer, 0
        entry.attempt += 1
        entry.leased_at = self._clock()
        if entry.job.cache_key:
            self._leaders[entry.job.cache_key] = entry.job.id
        self.extend(entry)
        return Claim(entry.job, entry.images, entry.attempt)

    def extend(self, entry: Entry) -> None:
        entry.leased_until = self._clock() + self._policy.lease.total_seconds()
        entry.expires_at = max(entry.expires_at, entry.leased_until + self._policy.result_ttl.total_seconds())

    def retry(self, entry: Entry, consumer: str) -> Claim | None:
        """What becomes of a lost job. One lost replica says nothing against it; after more, it may kill them."""
        lost = entry.attempt - entry.released
        if entry.cancelled:
            self.end(entry, broker.CANCELLED)
        elif entry.job.deadline_at <= self._clock():
            self.end(entry, broker.TIMED_OUT)
        elif lost >= self._policy.max_attempts:
            self._bury(entry)
        elif lost > 1:
            pause = min(self._policy.retry_delay * 2 ** (lost - 2), self._policy.max_retry_delay)
            entry.status, entry.delayed_until = Status.QUEUED, self._clock() + pause.total_seconds()
        else:
            return self.lease(entry, consumer)
        return None

    def append(self, entry: Entry, value: TokenChunk | Finish) -> None:
        entry.events.append(JobEvent(f"{next(self._event_numbers)}-0", entry.attempt, value))

    def end(self, entry: Entry, finish: Finish) -> None:
        self._mark_ended(entry, finish)
        entry.images = ()

    def end_as_before(self, entry: Entry, events: Sequence[JobEvent]) -> None:
        """A job that is answered by the events of an earlier one."""
        last = events[-1]
        assert isinstance(last.value, Finish)
        entry.status, entry.finish, entry.ended_at = Status.ENDED, last.value, self._clock()
        entry.attempt, entry.events = last.attempt, [_of_job(entry.job.id, event) for event in events]
        entry.expires_at = self._clock() + self._policy.result_ttl.total_seconds()
        entry.images = ()
        self.answers.close(entry.job.id, ended=True)

    def _mark_ended(self, entry: Entry, finish: Finish) -> None:
        entry.status, entry.finish, entry.ended_at = Status.ENDED, finish, self._clock()
        entry.expires_at = self._clock() + self._policy.result_ttl.total_seconds()
        self.answers.close(entry.job.id, ended=True)
        self.append(entry, finish)

    def _bury(self, entry: Entry) -> None:
        self._mark_ended(entry, broker.attempts_used_up(self._policy))
        entry.expires_at = self._clock() + self._policy.dead_ttl.total_seconds()
        entry.dead = True
        for old in self.dead()[self._policy.max_dead :]:
            self.forget_dead(old)

    def forget_dead(self, entry: Entry) -> None:
        entry.dead, entry.images = False, ()


def _of_job(job_id: str, event: JobEvent) -> JobEvent:
    value = event.value
    return replace(event, value=replace(value, job_id=job_id)) if isinstance(value, TokenChunk) else event
