"""The name of every key that the queue has in Redis: made here, and a job's own also in `redis_scripts/prelude.lua`.

The namespace is a hash tag, so that all keys of one queue live in one slot of a cluster and Lua may touch them
together. No key is ever found by scanning: a job's keys follow from its id. Every key has a TTL, which is at least
as long as that of the jobs it tells of.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Keys:
    """The keys of one namespace."""

    namespace: str

    def _name(self, *parts: str) -> str:
        return ":".join(("visionchat", f"{{{self.namespace}}}", *parts))

    def of_queue(self) -> list[str]:
        """What every script gets as KEYS, in the order of `redis_scripts/prelude.lua`, which says what they hold."""
        own = "interactive", "batch", "leased", "delayed", "deadlines", "dead", "state", "bell", "reports"
        return [self._name(name) for name in own]

    @property
    def dead(self) -> str:
        """Sorted set: jobs that no replica survived, by the ms at which they ended."""
        return self._name("dead")

    @property
    def bell(self) -> str:
        """Stream: moves when a job comes; replicas wait here."""
        return self._name("bell")

    @property
    def probe(self) -> str:
        """Text: written to see whether Redis takes what is written."""
        return self._name("probe")

    @property
    def fetch(self) -> str:
        """Text: bytes of the model that are fetched, and how many there will be; see `fetch_progress`."""
        return self._name("fetch")

    def wake(self, reader: str) -> str:
        """Stream: moves when a reader of answers has one more to follow."""
        return self._name("wake", reader)

    def owned(self, owner: str) -> str:
        """Sorted set: the owner's jobs, by arrival number."""
        return self._name("owned", owner)

    def once(self, owner: str, key: str) -> str:
        """Hash: the job that stands for an idempotency key. Hashed, because a client chose it."""
        return self._name("once", hashlib.sha256(f"{owner}\0{key}".encode()).hexdigest())

    def home(self, affinity: str) -> str:
        """Text: the replica that claimed the last job with this affinity."""
        return self._name("home", affinity)

    def of_owner(self, owner: str) -> list[str]:
        """What `submit.lua` gets of the owner's: jobs, rate, open jobs; it says what they hold."""
        return [self.owned(owner), self._name("rate", owner), self._name("open", owner)]

    def of_answers(self) -> list[str]:
        """What `finish.lua` gets of the kept answers; it says what they hold."""
        return [self._name("answers"), self._name("answer-sizes")]

    def answer(self, cache_key: str) -> str:
        """Stream: a kept answer, as the job's that gave it."""
        return self._name("answer", cache_key)

    def flight(self, cache_key: str) -> str:
        """String: the job that is being answered for all who ask the same."""
        return self._name("flight", cache_key)

    def leader(self, cache_key: str) -> str:
        """String: the job that was leased last of all that ask the same."""
        return self._name("leader", cache_key)

    def job(self, job_id: str) -> str:
        """Hash: the job, its status, attempt and deadline."""
        return self._name("job", job_id)

    def events(self, job_id: str) -> str:
        """Stream: the pieces of the answer and its end."""
        return self._name("events", job_id)

    def clients(self, job_id: str) -> str:
        """Set: who waits for a shared job."""
        return self._name("clients", job_id)

    def images(self, job_id: str) -> str:
        """List: the job's pictures, in order."""
        return self._name("images", job_id)
