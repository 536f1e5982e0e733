"""What runs in a replica's pod, as far as the queue can tell: the real `Replica`, with an engine that is scripted."""

from __future__ import annotations

import asyncio
from datetime import timedelta

from support.scripted_engine import ScriptedEngine, loader
from visionchat_serve.broker import Broker
from visionchat_serve.replica import Replica


class PlayedReplica:
    """Claims real jobs. `stop` drains it as a SIGTERM would; `ended` as soon as the job in hand is answered."""

    def __init__(self, broker: Broker, pod: str) -> None:
        self.engine = ScriptedEngine()
        short = timedelta(milliseconds=200)
        self._replica = Replica(loader(self.engine), broker, f"replica-{pod}", (0,), claim_wait=short, pod=pod)
        self._drain: asyncio.Task[None] | None = None

    async def start(self) -> None:
        await self._replica.start()

    def stop(self, patience: timedelta = timedelta(seconds=75)) -> None:
        if self._drain is None:
            self._drain = asyncio.create_task(self._replica.drain(patience))

    @property
    def ended(self) -> bool:
        return self._drain is not None and self._drain.done()

    async def kill(self) -> None:
        """The end of the test."""
        self.engine.release.set()
        self.stop(timedelta(0))
        assert self._drain is not None
        await self._drain
