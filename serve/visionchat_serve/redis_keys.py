"""The name of every key that the queue has in Redis, and of the consumer group: made here and nowhere else.

The namespace is a hash tag, so that all keys of one queue live in one slot of a cluster and Lua may touch them
together. No key is ever found by scanning: a job's keys follow from its id.
"""

from __future__ import annotations

from dataclasses import dataclass

GROUP = "replicas"
RELEASED = "-released-"  # the consumer that holds what was given back, until a replica takes it


@dataclass(frozen=True, slots=True)
class Keys:
    """The keys of one namespace."""

    namespace: str

    def _name(self, *parts: str) -> str:
        return ":".join(("visionchat", f"{{{self.namespace}}}", *parts))

    @property
    def jobs(self) -> str:
        """Stream: one entry per job that is not answered, in order of arrival. The only key without a TTL."""
        return self._name("jobs")

    @property
    def reports(self) -> str:
        """Hash: by replica name, what it reported and until when that holds."""
        return self._name("reports")

    def job(self, job_id: str) -> str:
        """Hash: the job, its status, attempt and deadline."""
        return self._name("job", job_id)

    def events(self, job_id: str) -> str:
        """Stream: the pieces of the answer and its end."""
        return self._name("job", job_id, "events")

    def images(self, job_id: str) -> str:
        """List: the job's pictures, in order."""
        return self._name("job", job_id, "images")

    def of_job(self, job_id: str) -> list[str]:
        """What the scripts about one job get as KEYS, in the order of `redis_scripts/prelude.lua`."""
        return [self.jobs, self.job(job_id), self.events(job_id), self.images(job_id)]
