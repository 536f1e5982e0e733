"""Kept answers and shared jobs of the queue in memory, in the plainest form; what Lua does in Redis.

Must not know waiting or leases. Used by `memory_broker` and `memory_jobs`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from visionchat_serve.broker import BrokerPolicy
from visionchat_serve.messages import JobEvent, encode


@dataclass(frozen=True, slots=True)
class Kept:
    """An answer as the events of the job that gave it."""

    expires_at: float
    size: int
    events: tuple[JobEvent, ...]


@dataclass(slots=True)
class Flight:
    """A job that is not answered yet, and who waits for it."""

    job_id: str
    clients: set[str] = field(default_factory=set)


class Answers:
    """By cache key."""

    def __init__(self, policy: BrokerPolicy, clock: Callable[[], float]) -> None:
        self._policy = policy
        self._clock = clock
        self._kept: dict[str, Kept] = {}
        self._flights: dict[str, Flight] = {}  # those that may be joined
        self._shared: dict[str, Flight] = {}  # all, by job

    def find(self, key: str) -> tuple[JobEvent, ...]:
        """The events of a kept answer, none if there is none."""
        self._kept = {k: kept for k, kept in self._kept.items() if kept.expires_at > self._clock()}
        return self._kept[key].events if key in self._kept else ()

    def keep(self, key: str, events: Sequence[JobEvent]) -> None:
        """Unless it is too large, or several attempts left something in it."""
        size = sum(len(encode(event)) for event in events)
        if size > self._policy.cache_bytes or len({event.attempt for event in events}) > 1:
            return
        self.find(key)
        self._kept.pop(key, None)
        self._kept[key] = Kept(self._clock() + self._policy.cache_ttl.total_seconds(), size, tuple(events))
        while sum(kept.size for kept in self._kept.values()) > self._policy.cache_bytes:
            del self._kept[next(iter(self._kept))]

    def leader(self, key: str) -> str | None:
        """The job that may be joined."""
        return self._flights[key].job_id if key in self._flights else None

    def open(self, key: str, job_id: str) -> None:
        """Let others join the job."""
        self._flights[key] = self._shared[job_id] = Flight(job_id, {job_id})

    def join(self, key: str, client: str) -> str:
        """One more waits; the job's id."""
        self._flights[key].clients.add(client)
        return self._flights[key].job_id

    def let_go(self, job_id: str, client: str) -> bool:
        """One less waits. Whether nobody does."""
        flight = self._shared.get(job_id)
        if flight is not None:
            flight.clients.discard(client)
        return flight is None or not flight.clients

    def close(self, job_id: str, ended: bool) -> None:
        """Nobody more may join; when it has ended, nobody waits."""
        self._flights = {key: flight for key, flight in self._flights.items() if flight.job_id != job_id}
        if ended:
            self._shared.pop(job_id, None)
