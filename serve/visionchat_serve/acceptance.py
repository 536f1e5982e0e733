"""From a checked request to the job that answers it. A refused one is told where it would have stood.

Knows the broker, not HTTP. Used by `gateway`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from visionchat_serve.broker import Broker, unknown_job
from visionchat_serve.errors import QueueFull
from visionchat_serve.messages import ChatJob, Idempotency
from visionchat_serve.place import place_at_the_end
from visionchat_serve.source import Job, LastingJob, Source


@dataclass(frozen=True, slots=True)
class Accepted:
    """`job` is whose answer it is. `replayed`: an earlier request with the same idempotency key made it."""

    job: ChatJob
    source: Source
    replayed: bool = False


class Acceptance:
    """The way into one queue."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker

    async def chat(self, job: ChatJob, images: Sequence[bytes], once: Idempotency | None) -> Accepted:
        """Somebody waits for the answer. Raises what `Broker.submit` raises."""
        job_id = await self.submit(job, images, once)
        if once is None:
            return Accepted(job, Job(self._broker, job_id))
        return Accepted(await self._asked(job_id), LastingJob(self._broker, job_id), replayed=job_id != job.id)

    async def submit(self, job: ChatJob, images: Sequence[bytes], once: Idempotency | None) -> str:
        """The id of the job that stands for the request. Raises what `Broker.submit` raises."""
        try:
            return await self._broker.submit(job, images, once)
        except QueueFull as full:
            full.details = place_at_the_end(await self._broker.load()).body()
            raise

    async def _asked(self, job_id: str) -> ChatJob:
        [job] = await self._broker.asked([job_id])
        if job is None:
            raise unknown_job(job_id)  # it has expired just now
        return job
