"""The operator's parts in the test's own process, without watches: each turn lists the cluster first.

For tests that must cut an operator off between two things it does, or let its clock run faster.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from aiohttp import ClientSession

from support.played_node import PlayedNode
from visionchat_operator.api import KIND
from visionchat_operator.apply import Applier
from visionchat_operator.environment import Defaults
from visionchat_operator.handlers import CHILD_KINDS, Watches
from visionchat_operator.kube import Kube, connected
from visionchat_operator.metrics import OperatorMetrics
from visionchat_operator.observe import Observer
from visionchat_operator.plan import PlanSettings, plan
from visionchat_operator.queues import Queues, QueueView
from visionchat_operator.ray_head import RayHead
from visionchat_operator.resync import Resync
from visionchat_operator.store import Store
from visionchat_operator.world import Key, Observed

LIFE_SECONDS = 30


class Killed(BaseException):
    """Nothing in the operator may catch this, as nothing can catch a SIGKILL."""


class Scissors:
    """Cuts a life off after its n-th call to the API server, to Redis or to Ray; None: never.

    Every call that changes something counts, and every other kind of call the first time: a life that only waits and
    looks again would have no end of them.
    """

    def __init__(self, calls: int | None) -> None:
        self._left = calls
        self._known: set[str] = set()

    def snip(self, place: str, changes: bool) -> None:
        if not changes and place in self._known:
            return
        self._known.add(place)
        if self._left is not None:
            self._left -= 1
            if self._left <= 0:
                raise Killed


class _Kube(Kube):
    scissors: Scissors

    async def _call(self, verb: str, kind: str, path: str, *args: Any, **kwargs: Any) -> Any:
        answer = await super()._call(verb, kind, path, *args, **kwargs)
        self.scissors.snip(f"{verb} {kind}", verb != "GET")
        return answer


class _Ray(RayHead):
    scissors: Scissors

    async def _call(self, verb: str, *args: Any, **kwargs: Any) -> Any:
        answer = await super()._call(verb, *args, **kwargs)
        self.scissors.snip(f"{verb} Ray", verb != "GET")
        return answer


class _Queues(Queues):
    scissors: Scissors

    async def look(self, url: str, queue: str) -> QueueView:
        view = await super().look(url, queue)
        self.scissors.snip("look into Redis", False)
        return view

    async def _unlink(self, redis: Any, name: bytes) -> None:
        await super()._unlink(redis, name)
        self.scissors.snip("unlink in Redis", True)


def clock() -> datetime:
    return datetime.now(UTC).replace(microsecond=0)


@dataclass
class Lives:
    """What all lives of one test's operator have in common."""

    kubeconfig: Path
    node: PlayedNode
    redis_url: str
    key: Key
    now: Callable[[], datetime] = clock
    first_seen: dict[str, datetime] = field(default_factory=dict)

    def live(self, done: Callable[[], Any], cut: int | None = None) -> bool:
        """One life, until `done`; False: it was cut off before."""
        try:
            asyncio.run(self._live(done, Scissors(cut)))
        except Killed:
            return False
        return True

    async def _live(self, done: Callable[[], Any], scissors: Scissors) -> None:
        settings = PlanSettings(Defaults(redis_url=self.redis_url), self.key.namespace)
        metrics, store, queues = OperatorMetrics(), Store(), _Queues()
        async with connected(self.kubeconfig) as api, ClientSession() as http:
            kube, ray = _Kube(api, store, metrics), _Ray(http, self.node.head_url)
            kube.scissors = ray.scissors = queues.scissors = scissors
            observer = Observer(store, kube, queues, ray, settings, sees_nodes=False)
            applier = Applier(store, kube, queues, ray, observer, metrics)
            watches = Watches(store, lambda _: None, lambda: None)
            kinds = (KIND, *CHILD_KINDS)
            resync = Resync(kube, store, watches, metrics, lambda _: None, kinds, self.key.namespace)
            try:
                async with asyncio.timeout(LIFE_SECONDS):
                    while not await asyncio.to_thread(done):
                        await resync.first()
                        if (seen := await observer.observe(self.key)) is not None:
                            await applier.carry_out(plan(self._dated(seen), settings, self.now()), seen)
            finally:
                await queues.close()

    def _dated(self, seen: Observed) -> Observed:
        """Pods as old as `now` makes them: the API server's own clock does not go ahead with it."""
        born = {worker.uid: self.first_seen.setdefault(worker.uid, self.now()) for worker in seen.workers}
        return replace(seen, workers=tuple(replace(worker, created=born[worker.uid]) for worker in seen.workers))
