"""One loop for each VisionChat: look, plan, carry out, wait for news or for the time to look again.

Level-triggered: an event only says that it is worth looking, never what to do. Loops share nothing but the store, so
one that waits for a slow Redis does not hold up the others.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from datetime import UTC, datetime, timedelta

from aiohttp import ClientError
from pydantic import ValidationError

from visionchat_operator.apply import Applier
from visionchat_operator.kube import ApiException
from visionchat_operator.metrics import OperatorMetrics
from visionchat_operator.observe import Observer, SecretMissing
from visionchat_operator.plan import PlanSettings, plan
from visionchat_operator.queues import QueueUnavailable
from visionchat_operator.ray_head import RayUnavailable
from visionchat_operator.store import Store
from visionchat_operator.world import Key, Observed

log = logging.getLogger(__name__)

LOOK_AGAIN = timedelta(seconds=1)  # how often a queue's load is read
HANDS = 8  # so many VisionChats are changed at once: a start with hundreds does not bury the API server
BREATH = timedelta(milliseconds=50)  # so long news is collected before it is looked at
FIRST_PAUSE, LONGEST_PAUSE = timedelta(seconds=1), timedelta(seconds=30)
EXPECTED = (ApiException, ClientError, TimeoutError, QueueUnavailable, RayUnavailable, SecretMissing, ValidationError)


class Reconciler:
    """`wake` may be called at any time, for any key."""

    def __init__(
        self,
        store: Store,
        observer: Observer,
        applier: Applier,
        settings: PlanSettings,
        metrics: OperatorMetrics,
        clock: Callable[[], datetime] = lambda: datetime.now(UTC),
    ) -> None:
        self._store, self._observer, self._applier = store, observer, applier
        self._settings, self._metrics, self._clock = settings, metrics, clock
        self._news: dict[Key, asyncio.Event] = {}
        self._loops: dict[Key, asyncio.Task[None]] = {}
        self._hands = asyncio.Semaphore(HANDS)
        self._stopped = False
        self.fault: BaseException | None = None  # what ended a loop that should not have ended

    def wake(self, key: Key) -> None:
        """Something about this VisionChat or its children has changed."""
        if key not in self._loops:
            if self._stopped or self._store.visionchat(key) is None:
                return
            self._news[key] = asyncio.Event()
            self._loops[key] = asyncio.create_task(self._loop(key), name=f"{key.namespace}/{key.name}")
            self._loops[key].add_done_callback(lambda task: self._ended(key, task))
            self._metrics.resources.set(len(self._loops))
        self._news[key].set()

    def wake_all(self) -> None:
        for key in self._store.visionchats():
            self.wake(key)

    async def stop(self) -> None:
        self._stopped = True
        tasks = list(self._loops.values())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def _ended(self, key: Key, task: asyncio.Task[None]) -> None:
        self._loops.pop(key, None)
        self._news.pop(key, None)
        self._applier.forget(key)
        self._metrics.resources.set(len(self._loops))
        if not task.cancelled() and (error := task.exception()) is not None:
            log.error("%s/%s: the loop has ended", *key, exc_info=error)
            self.fault = error
        elif self._store.visionchat(key) is not None:
            self.wake(key)  # it came back meanwhile

    async def _loop(self, key: Key) -> None:
        turn = _Turn()
        while True:
            self._news[key].clear()
            pause = LOOK_AGAIN
            try:
                if not await self.reconcile(key, turn):
                    return
                turn.failures = 0
            except EXPECTED as error:
                turn.seen = None
                turn.failures += 1
                pause = min(FIRST_PAUSE * (1 << min(turn.failures - 1, 10)), LONGEST_PAUSE)
                self._metrics.errors.labels(type(error).__name__).inc()
                if turn.is_new(describe(error)):
                    log.warning("%s/%s: %s; trying again", *key, turn.said)
            await self._wait(key, pause)

    async def _wait(self, key: Key, pause: timedelta) -> None:
        try:
            async with asyncio.timeout(pause.total_seconds()):
                await self._news[key].wait()
        except TimeoutError:
            return
        await asyncio.sleep(BREATH.total_seconds())

    async def reconcile(self, key: Key, turn: _Turn) -> bool:
        """Look, and do what is to be done. False: the VisionChat is gone."""
        seen = await self._observer.observe(key)
        if seen is None:
            return False
        now = self._clock().replace(microsecond=0)
        if seen == turn.seen and now < turn.due:
            return True
        async with self._hands:
            with self._metrics.reconciles.time():
                planned = plan(seen, self._settings, now)
                await self._applier.carry_out(planned, seen)
        turn.seen, turn.due = seen, now + planned.requeue_after
        return True


class _Turn:
    """What a loop remembers from one turn to the next, only to spare work."""

    def __init__(self) -> None:
        self.seen: Observed | None = None
        self.due = datetime.min.replace(tzinfo=UTC)
        self.failures = 0
        self.said = ""

    def is_new(self, text: str) -> bool:
        """One line of log for a fault, however often it comes."""
        new = text != self.said or self.failures == 1
        self.said = text
        return new


def describe(error: BaseException) -> str:
    """For people, in one line."""
    if isinstance(error, ApiException):
        return f"the API server answers {error.status}: {(error.body or error.reason or '')[:300]}"
    return str(error) or repr(error)
