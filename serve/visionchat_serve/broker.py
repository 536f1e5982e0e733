"""The queue between gateway and replicas, as a promise that `redis_broker` and `memory_broker` both keep.

A job is submitted once, claimed by one replica at a time under a lease, and ends exactly once. A replica that
stops renewing loses its lease; the next claim of the job has a higher attempt, and writes of the older one are
refused (fencing), so two answers are never mixed. Who calls: the gateway `submit`, `events`, `cancel`, `load`;
a replica `claim`, `renew`, `publish`, `finish`, `release`.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from datetime import timedelta
from enum import Enum
from typing import Protocol

from visionchat_serve.messages import ChatJob, Claim, Finish, JobEvent, QueueLoad


class LeaseState(Enum):
    """What a replica learns when it renews."""

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
        """Accept a job with its pictures. Raises `errors.QueueFull` above `policy.max_waiting` backlog."""

    async def claim(self, consumer: str, count: int, block: timedelta) -> list[Claim]:
        """Lease up to `count` jobs, oldest first, expired leases before new jobs; wait up to `block` for one.

        A job whose deadline has passed, that was cancelled, or that has used up its attempts is not returned
        but ended here, with an event that says why.
        """

    async def renew(self, consumer: str, claims: Sequence[Claim]) -> list[LeaseState]:
        """Extend the leases, one state per claim in the same order."""

    async def publish(self, claim: Claim, index: int, text: str) -> bool:
        """Append a piece of answer to the job's result stream. False: the lease was lost, nothing written."""

    async def finish(self, claim: Claim, finish: Finish) -> bool:
        """End the job and drop it from the queue in one step. False: the lease was lost, nothing written."""

    async def release(self, claim: Claim) -> bool:
        """Give an unfinished job back to the front of the queue without counting the attempt."""

    def events(self, job_id: str, after: str = "0") -> AsyncIterator[JobEvent]:
        """The job's result stream from `after` on, waiting for more, ending after its `Finish`.

        Raises `errors.NotFound` when the job is unknown or its results have expired.
        """

    async def cancel(self, job_id: str) -> bool:
        """Ask for the job to be stopped. A waiting job ends at once. False: unknown or already ended."""

    async def load(self) -> QueueLoad:
        """The backlog now."""

    async def ping(self) -> None:
        """Return when the queue answers."""

    async def close(self) -> None:
        """Release connections."""
