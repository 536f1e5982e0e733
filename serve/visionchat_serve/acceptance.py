"""From a checked request to the job that answers it. A refused one is told where it would have stood.

Knows the broker, not HTTP. Used by `gateway`.
"""

from __future__ import annotations

from dataclasses import dataclass

from visionchat_serve.broker import Broker, Reuse, unknown_job
from visionchat_serve.errors import QueueFull
from visionchat_serve.messages import ChatJob, Idempotency, Submitted
from visionchat_serve.place import place_at_the_end
from visionchat_serve.source import Job, LastingJob, SharedJob, Source


@dataclass(frozen=True, slots=True)
class Request:
    """A checked request. `reuse`: which answers of others will do."""

    job: ChatJob
    images: tuple[bytes, ...]
    once: Idempotency | None = None
    reuse: Reuse = Reuse.NOTHING


@dataclass(frozen=True, slots=True)
class Accepted:
    """`job` is whose answer comes from `source`; `how` as in `Submitted`."""

    job: ChatJob
    source: Source
    how: str


class Acceptance:
    """The way into one queue."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker

    async def chat(self, request: Request) -> Accepted:
        """Somebody waits for the answer. Raises what `Broker.submit` raises."""
        submitted = await self.submit(request)
        own = submitted.job_id == request.job.id
        job = request.job if own else await self._asked(submitted.job_id)
        return Accepted(job, self._source(request, submitted.job_id), submitted.how)

    def _source(self, request: Request, job_id: str) -> Source:
        if request.once is not None:
            return LastingJob(self._broker, job_id)
        if request.reuse is Reuse.SHARE:
            return SharedJob(self._broker, job_id, client=request.job.id)
        return Job(self._broker, job_id)

    async def submit(self, request: Request) -> Submitted:
        """Raises what `Broker.submit` raises."""
        try:
            return await self._broker.ask(request.job, request.images, request.once, request.reuse)
        except QueueFull as full:
            full.details = place_at_the_end(await self._broker.load()).body()
            raise

    async def _asked(self, job_id: str) -> ChatJob:
        [job] = await self._broker.asked([job_id])
        if job is None:
            raise unknown_job(job_id)  # it has expired just now
        return job
