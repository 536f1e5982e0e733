"""A full listing now and then: it mends what a watch has missed, and finds out when a watch is dead.

A watch can hang without an error, so that nothing seems to happen in the cluster. Here a listing says how far the
cluster is; a watch that has not come as far within its grace is dead, and the operator is not healthy any more.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from datetime import timedelta

from visionchat_operator.handlers import Watches, selector_of
from visionchat_operator.kube import Kube
from visionchat_operator.metrics import OperatorMetrics
from visionchat_operator.store import Store, version
from visionchat_operator.world import Key

log = logging.getLogger(__name__)

PERIOD, GRACE = timedelta(minutes=2), timedelta(seconds=10)
SETTLED = timedelta(seconds=5)  # the watches have begun by then


class Resync:
    """`kinds` in `namespace`, None: everywhere."""

    def __init__(
        self,
        kube: Kube,
        store: Store,
        watches: Watches,
        metrics: OperatorMetrics,
        wake: Callable[[Key], None],
        kinds: tuple[str, ...],
        namespace: str | None,
        period: timedelta = PERIOD,
        grace: timedelta = GRACE,
        settled: timedelta = SETTLED,
    ) -> None:
        self._kube, self._store, self._watches, self._metrics = kube, store, watches, metrics
        self._wake, self._kinds, self._namespace = wake, kinds, namespace
        self._period, self._grace, self._settled = period, grace, settled
        self.dead: str | None = None  # the kind whose watch is dead

    async def first(self) -> None:
        """Fill the store before anything is decided."""
        for kind in self._kinds:
            await self._list(kind)

    async def run(self) -> None:
        """For ever. Raises what `Kube` raises when the cluster cannot be listed."""
        await asyncio.sleep(min(self._settled, self._period).total_seconds())
        await self.first()  # no watch tells what was deleted between the first listing and its own beginning
        while True:
            await asyncio.sleep(self._period.total_seconds())
            for kind in self._kinds:
                newest = await self._list(kind)
                await self._check(kind, newest)

    async def _list(self, kind: str) -> int:
        """How far the cluster is with this kind."""
        bodies = await self._kube.listing(kind, self._namespace, selector_of(kind))
        missed, any_missed = self._store.replace(kind, bodies, self._namespace)
        if any_missed and kind in self._watches.newest:
            self._metrics.missed.labels(kind).inc(len(missed))
        for key in missed:
            self._wake(key)
        return max((version(body) for body in bodies), default=0)

    async def _check(self, kind: str, newest: int) -> None:
        if self._watches.newest.get(kind, 0) < newest:
            await asyncio.sleep(self._grace.total_seconds())
        behind = self._watches.newest.get(kind, 0) < newest
        if behind and self.dead is None:
            log.error("the watch of %s is dead: it has not seen version %d", kind, newest)
            self.dead = kind
        elif not behind and self.dead == kind:
            self.dead = None
