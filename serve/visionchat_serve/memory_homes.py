"""Which replica has an affinity at home, in memory: the one that claimed the last job with it.

What `claim.lua` does with the `home` keys. Used by `memory_broker`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping

from visionchat_serve.broker import BrokerPolicy
from visionchat_serve.memory_jobs import Entry


class Homes:
    """Time comes from `clock` (epoch seconds)."""

    def __init__(self, policy: BrokerPolicy, clock: Callable[[], float]) -> None:
        self._wait = policy.affinity_wait.total_seconds()
        self._ttl = (policy.lease + policy.result_ttl).total_seconds()
        self._clock = clock
        self._homes: dict[str, tuple[float, str]] = {}  # until when, replica

    def note(self, entry: Entry) -> None:
        """The entry was claimed just now."""
        now = self._clock()
        self._homes = {affinity: home for affinity, home in self._homes.items() if home[0] > now}
        if entry.job.affinity and entry.consumer is not None:
            self._homes[entry.job.affinity] = now + self._ttl, entry.consumer

    def is_reserved(self, entry: Entry, consumer: str, held: list[Entry], places: Mapping[str, int]) -> bool:
        """Is another replica better for this job, and as free as `consumer`? `places` of those that report."""
        now = self._clock()
        until, home = self._homes.get(entry.job.affinity, (0.0, consumer))
        if until <= now or home == consumer or entry.queued_at + self._wait <= now:
            return False
        busy = Counter(other.consumer for other in held)
        return busy[home] < places.get(home, 0) and busy[home] <= busy[consumer]
