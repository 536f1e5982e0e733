"""Where an answer comes from, and what happens to it when the client that waits for it leaves.

Knows the broker, not HTTP. Made by `acceptance`, read by `exchange`.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Protocol

from visionchat_serve.broker import Broker
from visionchat_serve.messages import JobEvent


class Source(Protocol):
    """One client's way to an answer."""

    def events(self) -> AsyncIterator[JobEvent]:
        """The events of the job that answers, from the start to the end."""

    async def left(self) -> None:
        """The client went away, or the answer ended badly."""


class Job:
    """A job that is answered for this client alone: without the client it is cancelled."""

    def __init__(self, broker: Broker, job_id: str) -> None:
        self._broker = broker
        self._job_id = job_id

    def events(self) -> AsyncIterator[JobEvent]:
        return self._broker.events(self._job_id)

    async def left(self) -> None:
        await self._broker.cancel(self._job_id)


class LastingJob(Job):
    """A job that its client may come back for, by an idempotency key: it goes on."""

    async def left(self) -> None:
        return


class SharedJob(Job):
    """A job that several clients may wait for: it is cancelled when the last of them has gone."""

    def __init__(self, broker: Broker, job_id: str, client: str) -> None:
        super().__init__(broker, job_id)
        self._client = client

    async def left(self) -> None:
        await self._broker.let_go(self._job_id, self._client)
