"""The queue between gateway and replicas, as a promise that `redis_broker` and `memory_broker` both keep.

A job is submitted once, claimed by one replica at a time under a lease, and ends exactly once. A replica that
stops renewing loses its lease; the next claim of the job has a higher attempt, and writes of the older one are
refused (fencing), so two answers are never mixed. Who calls: the gateway `submit`, `events`, `so_far`, `cancel`,
`describe`, `jobs`, `asked`, `load`, `reports`; the command line `dead`, `replay`, `purge_dead`; a replica `claim`,
`renew`, `publish`, `finish`, `release`, `report`, `leave`.

Every call may be repeated after `errors.Unavailable`, when nobody knows whether the first one arrived: a job is
not doubled, a chunk not written twice, an end not told twice.
"""

from __future__ import annotations

import re
import time
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, replace
from datetime import timedelta
from enum import Enum
from typing import Protocol

from visionchat_serve.errors import IdempotencyConflict, InvalidRequest, NotFound, QueueFull, RateLimited
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
    TokenLogprob,
)


class LeaseState(Enum):
    """What a replica learns when it renews or publishes."""

    HELD = "held"
    CANCELLED = "cancelled"  # the client went away: stop, then finish(reason="cancelled")
    LOST = "lost"  # someone else has the job, or it has ended: stop and say nothing more


class Reuse(Enum):
    """What a request with a `cache_key` may be answered by, beside its own job."""

    NOTHING = ""
    ANSWER = "answer"  # an answer that was kept
    SHARE = "share"  # also a job that is not answered yet, together with others who wait for it


@dataclass(frozen=True, slots=True)
class BrokerPolicy:
    """The numbers behind the promises, the same for every broker."""

    lease: timedelta = timedelta(seconds=10)
    max_attempts: int = 3
    result_ttl: timedelta = timedelta(minutes=15)
    max_waiting: int = 1000
    max_wait: timedelta = timedelta(minutes=10)  # a request that would wait longer, as measured, is not accepted
    batch_after: int = 4  # interactive claims in a row after which a waiting batch job goes first
    retry_delay: timedelta = timedelta(seconds=5)  # before the third attempt; doubled before each later one
    max_retry_delay: timedelta = timedelta(minutes=1)
    max_dead: int = 100
    dead_ttl: timedelta = timedelta(hours=24)
    idempotency_ttl: timedelta = timedelta(hours=24)
    max_listed: int = 1000  # jobs of one owner that `jobs` remembers
    affinity_wait: timedelta = timedelta(milliseconds=250)  # a job is left for its own replica this long
    cache_ttl: timedelta = timedelta(hours=1)
    cache_bytes: int = 16 << 20  # of all kept answers
    owner_rate: int = 0  # jobs a minute of one owner, as many at once; 0: no limit
    owner_open: int = 0  # jobs of one owner that are not yet answered; 0: no limit
    outage: timedelta = timedelta(minutes=1)  # readers of an answer wait this long for a queue that went away


class Broker(Protocol):
    """All methods raise `errors.Unavailable` when the queue cannot be reached."""

    policy: BrokerPolicy

    async def submit(self, job: ChatJob, images: Sequence[bytes], idempotency: Idempotency | None = None) -> str:
        """Accept a job with its pictures; the id of the job that stands for the request.

        That is another one when the same owner used the key before, with the same fingerprint, and that job is not
        forgotten yet. An id that is known already is left as it is. Raises `errors.IdempotencyConflict` when the key
        was used with another fingerprint, `errors.QueueFull` with `retry_after` when `policy.max_waiting` jobs
        are not yet answered or those ahead of this one take longer than `policy.max_wait`, and `errors.RateLimited`
        with `retry_after` when the owner has asked more than `policy.owner_rate` or `policy.owner_open` allow.
        """

    async def ask(
        self,
        job: ChatJob,
        images: Sequence[bytes],
        idempotency: Idempotency | None = None,
        reuse: Reuse = Reuse.NOTHING,
    ) -> Submitted:
        """`submit` for a job whose `cache_key` says when another answer will do; raises the same.

        A job that is answered by a kept answer has ended at once. One that is shared is cancelled when all who wait
        for it, each named by the id of the own job, have `let_go`. Neither is refused or counted by any limit. While
        another job with the same `cache_key` is leased, one that may reuse answers waits for that answer: it is ended
        by it when its turn comes, or claimed if there is none.
        """

    async def let_go(self, job_id: str, client: str) -> bool:
        """`client` does not wait for a shared job any more: it is cancelled when nobody does. False: it goes on for
        others, or has ended."""

    async def claim(self, consumer: str, count: int, block: timedelta) -> list[Claim]:
        """Lease up to `count` jobs, expired leases before new jobs; wait up to `block` for one.

        Waiting jobs go oldest first, interactive ones before batch; but after `policy.batch_after` interactive jobs
        in a row a waiting batch job goes first. A job with an `affinity` is left for the replica that claimed the last
        one with the same, for `policy.affinity_wait` after it began to wait and as long as that replica reports
        itself, has a place free and does not hold more jobs than `consumer`. A lost job is tried again at once the
        first time and delayed from then on; one that has used up its attempts is ended and put on the dead list. A job
        whose deadline has passed or that was cancelled is ended here as well, with an event that says why. Let it
        return rather than cancel it: a job caught in the middle waits for `leave` or for its lease to expire.
        """

    async def renew(self, consumer: str, claims: Sequence[Claim]) -> list[LeaseState]:
        """Extend the leases, one state per claim in the same order."""

    async def publish(
        self, claim: Claim, index: int, text: str, choice: int = 0, logprobs: tuple[TokenLogprob, ...] = ()
    ) -> LeaseState:
        """Append a piece of answer to the job's result stream; CANCELLED and LOST: nothing was written.

        `index` counts from 0, over all choices. One that was written already is not written again. A gap means that
        the queue forgot a piece (a crash of its machine): LOST, because this answer cannot become whole any more.
        """

    async def finish(self, claim: Claim, finish: Finish) -> bool:
        """End the job and drop it from the queue in one step. False: the lease was lost, nothing written."""

    async def release(self, claim: Claim) -> bool:
        """Give an unfinished job back, to wait at its old place. The attempt is not counted against it,
        but its number is used up: this claim writes no more. False: the lease was lost."""

    def events(self, job_id: str, after: str = "0") -> AsyncIterator[JobEvent]:
        """The job's result stream from `after` on, waiting for more, ending after its `Finish`.

        A job that nobody claims by its deadline is ended by whoever reads here. Once reading has begun, a queue that
        goes away is waited for, up to `policy.outage`, and nothing is lost or told twice. Raises `errors.NotFound` when
        the job is unknown or its results have expired, `errors.InvalidRequest` when `after` is no event id.
        """

    async def cancel(self, job_id: str) -> bool:
        """Ask for the job to be stopped. A job that nobody holds ends at once; a replica learns it with its next
        `publish` or `renew`. False: unknown or already ended."""

    async def describe(self, job_id: str) -> JobView:
        """The job now. Raises `errors.NotFound` when it is unknown or its results have expired."""

    async def jobs(self, owner: str, limit: int, before: str | None = None) -> list[JobView]:
        """The owner's jobs that are not forgotten, newest first; only those older than the job `before`.

        Raises `errors.NotFound` when `before` is not in that list any more.
        """

    async def asked(self, ids: Sequence[str]) -> list[ChatJob | None]:
        """The jobs as they were submitted, in the same order; None for one that is forgotten."""

    async def so_far(self, job_id: str) -> list[JobEvent]:
        """What the job's result stream holds now, without waiting for more; nothing for an unknown job."""

    async def dead(self, limit: int) -> list[JobView]:
        """Jobs that used up their attempts, latest first; `finish` says why. The oldest are forgotten over
        `policy.max_dead` and after `policy.dead_ttl`."""

    async def replay(self, job_id: str) -> str:
        """Ask a dead job's question anew, and take it off the dead list; the new job's id.

        Raises `errors.NotFound` when it is not on the list or its pictures are gone, and what `submit` raises.
        """

    async def purge_dead(self) -> int:
        """Forget all dead jobs and their pictures; how many."""

    async def load(self) -> QueueLoad:
        """The backlog now. A job whose lease was given back or has expired counts as waiting."""

    async def report(self, report: ReplicaReport, ttl: timedelta) -> None:
        """A replica says that it is there and what it is; forgotten after `ttl`, or when it leaves."""

    async def reports(self) -> list[ReplicaReport]:
        """The replicas that are there, by name."""

    async def leave(self, consumer: str) -> None:
        """A replica goes: its name is forgotten, and what it still holds may be claimed by others at once."""

    async def ping(self) -> None:
        """Return when the queue answers and takes what is written."""

    async def close(self) -> None:
        """Release connections."""


@dataclass(frozen=True, slots=True)
class Work:
    """What an answer takes, in tokens: to be read, and to be written."""

    prompt: int
    written: int

    @classmethod
    def of(cls, job: ChatJob) -> Work:
        """At most this much."""
        return cls(max(1, job.prompt_tokens), job.sampling.max_tokens * job.sampling.n)


CANCELLED = Finish("cancelled", message="the request was cancelled before it was answered")
TIMED_OUT = Finish(
    "error", error_code="timeout", message="the request's deadline passed before it was answered; ask again later"
)
PICTURES_LOST = Finish(
    "error", error_code="service_unavailable", message="the queue has lost this request's pictures; ask again"
)


def attempts_used_up(policy: BrokerPolicy) -> Finish:
    """How a job ends whose replicas all died over it."""
    message = f"{policy.max_attempts} replicas in turn were lost while they answered this request"
    return Finish("error", error_code="replica_lost", message=message)


def resume_point(after: str) -> tuple[int, int]:
    """The two numbers of an event id, which order a stream; "0" is its start."""
    if not re.fullmatch(r"\d{1,18}(-\d{1,18})?", after, re.ASCII):
        raise InvalidRequest(f"{after!r} is not an event id; use the `id` of an event, or 0 for the start")
    first, _, second = after.partition("-")
    return int(first), int(second or 0)


UNMEASURED_RETRY = timedelta(seconds=5)  # when to try again, as long as no answer was measured


def queue_full(policy: BrokerPolicy, retry_after: float) -> QueueFull:
    """Too many jobs; `retry_after` seconds as measured, or 0."""
    message = f"{policy.max_waiting} requests are not answered yet; try again later"
    return QueueFull(message, retry_after=timedelta(seconds=retry_after) or UNMEASURED_RETRY)


def queue_slow(policy: BrokerPolicy, retry_after: float) -> QueueFull:
    """Too much work; `retry_after` seconds from now there will be less."""
    message = f"a request would wait longer than {policy.max_wait}; try again later"
    return QueueFull(message, retry_after=timedelta(seconds=retry_after))


def too_fast(policy: BrokerPolicy, retry_after: float) -> RateLimited:
    """More than the owner's rate."""
    message = f"this API key may send {policy.owner_rate} requests a minute; send the next one later"
    return RateLimited(message, retry_after=timedelta(seconds=retry_after))


def too_many_open(policy: BrokerPolicy, retry_after: float) -> RateLimited:
    """More at a time than the owner may; `retry_after` seconds as measured, or 0."""
    message = f"this API key may have {policy.owner_open} requests that are not answered yet; wait for one of them"
    return RateLimited(message, retry_after=timedelta(seconds=retry_after) or UNMEASURED_RETRY)


def key_reused() -> IdempotencyConflict:
    """The same key with another body."""
    return IdempotencyConflict("this Idempotency-Key was used with another request; use a new one for each request")


def unknown_job(job_id: str) -> NotFound:
    """No such job, or not any more."""
    return NotFound(f"there is no job {job_id!r}; it was never accepted, or its result has expired")


def not_dead(job_id: str) -> NotFound:
    """A replay of what is not on the dead list."""
    return NotFound(f"job {job_id!r} is not on the dead list; it may be replayed or forgotten already")


def replay_of(job: ChatJob, images: Sequence[bytes]) -> ChatJob:
    """The same question anew, with as much time. The id follows from the old one: replayed twice it is one job."""
    if len(images) != job.image_count:
        raise NotFound(f"the pictures of job {job.id!r} have expired; it cannot be asked again")
    now = time.time()
    return replace(job, id=f"{job.id}-replay", created_at=now, deadline_at=now + job.deadline_at - job.created_at)
