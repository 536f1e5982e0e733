"""The queue between gateway and replicas, as a promise that `redis_broker` and `memory_broker` both keep.

A job is submitted once, claimed by one replica at a time under a lease, and ends exactly once. A replica that
stops renewing loses its lease; the next claim of the job has a higher attempt, and writes of the older one are
refused (fencing), so two answers are never mixed. Who calls: the gateway `submit`, `events`, `cancel`, `load`,
`reports`; a replica `claim`, `renew`, `publish`, `finish`, `release`, `report`, `leave`.

Every call may be repeated after `errors.Unavailable`, when nobody knows whether the first one arrived: a job is
not doubled, a chunk not written twice, an end not told twice.
"""

from __future__ import annotations

import re
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from datetime import timedelta
from enum import Enum
from typing import Protocol

from visionchat_serve.errors import InvalidRequest
from visionchat_serve.messages import ChatJob, Claim, Finish, JobEvent, QueueLoad, ReplicaReport, TokenLogprob


class LeaseState(Enum):
    """What a replica learns when it renews or publishes."""

    HELD = "held"
    CANCELLED = "cancelled"  # the client went away: stop, then finish(reason="cancelled")
    LOST = "lost"  # someone else has the job, or it has ended: stop and say nothing more


@dataclass(frozen=True, slots=True)
class BrokerPolicy:
    """The numbers behind the promises, the same for every broker."""

    lease: timedelta = timedelta(seconds=10)
    max_attempts: int = 3
    result_ttl: timedelta = timedelta(minutes=15)
    max_waiting: int = 1000


class Broker(Protocol):
    """All methods raise `errors.Unavailable` when the queue cannot be reached."""

    policy: BrokerPolicy

    async def submit(self, job: ChatJob, images: Sequence[bytes]) -> None:
        """Accept a job with its pictures; an id that is known already is left as it is.

        Raises `errors.QueueFull` when `policy.max_waiting` jobs are not yet answered.
        """

    async def claim(self, consumer: str, count: int, block: timedelta) -> list[Claim]:
        """Lease up to `count` jobs, oldest first, expired leases before new jobs; wait up to `block` for one.

        A job whose deadline has passed, that was cancelled, or that has used up its attempts is not returned
        but ended here, with an event that says why. Let it return rather than cancel it: a job caught in the
        middle waits for `leave` or for its lease to expire.
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
        """Give an unfinished job back, to be claimed before newer ones. The attempt is not counted against it,
        but its number is used up: this claim writes no more. False: the lease was lost."""

    def events(self, job_id: str, after: str = "0") -> AsyncIterator[JobEvent]:
        """The job's result stream from `after` on, waiting for more, ending after its `Finish`.

        A job that nobody claims by its deadline is ended by whoever reads here. Raises `errors.NotFound` when
        the job is unknown or its results have expired, `errors.InvalidRequest` when `after` is no event id.
        """

    async def cancel(self, job_id: str) -> bool:
        """Ask for the job to be stopped. A job that nobody holds ends at once; a replica learns it with its next
        `publish` or `renew`. False: unknown or already ended."""

    async def load(self) -> QueueLoad:
        """The backlog now. A job whose lease was given back or has expired counts as waiting."""

    async def report(self, report: ReplicaReport, ttl: timedelta) -> None:
        """A replica says that it is there and what it is; forgotten after `ttl`, or when it leaves."""

    async def reports(self) -> list[ReplicaReport]:
        """The replicas that are there, by name."""

    async def leave(self, consumer: str) -> None:
        """A replica goes: its name is forgotten, and what it still holds may be claimed by others at once."""

    async def ping(self) -> None:
        """Return when the queue answers."""

    async def close(self) -> None:
        """Release connections."""


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
