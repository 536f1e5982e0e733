"""Carries a plan out: the only place where the operator changes anything. Takes no decision.

The status comes first, because it is the operator's memory: whatever is interrupted after it is planned again from the
same decision. Every step may be repeated. Nothing is written that is so already.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import secrets
from collections.abc import Sequence
from typing import Any

from visionchat_operator import children, names
from visionchat_operator.children import Owner
from visionchat_operator.drift import differs, signed
from visionchat_operator.kube import ApiException, Kube
from visionchat_operator.metrics import OperatorMetrics
from visionchat_operator.observe import Observer, SecretMissing
from visionchat_operator.plan import Plan
from visionchat_operator.queues import Queues, QueueUnavailable
from visionchat_operator.ray_head import RayHead
from visionchat_operator.store import Store, version
from visionchat_operator.world import Decision, Key, Manifest, Observed, Ref

log = logging.getLogger(__name__)


class Applier:
    """Raises what `Kube`, `Queues` and `RayHead` raise; the reconciler tries again."""

    def __init__(
        self, store: Store, kube: Kube, queues: Queues, ray: RayHead, observer: Observer, metrics: OperatorMetrics
    ) -> None:
        self._store, self._kube, self._queues, self._ray = store, kube, queues, ray
        self._observer, self._metrics = observer, metrics
        self._accepted: dict[tuple[Key, Ref], tuple[str, int]] = {}

    async def carry_out(self, plan: Plan, seen: Observed) -> None:
        if seen.deleting:
            await self._farewell(plan, seen)
            return
        await self._set_finalizer(plan.finalizer, seen)
        await self._write_status(plan, seen)
        await self._tell(plan.decisions, seen)
        for manifest in plan.apply:
            await self._apply(seen, signed(manifest))
        if plan.token:
            owner = Owner(seen.key, seen.uid)
            await self._kube.create(children.ray_token(owner, secrets.token_hex(32)))
        for manifest in plan.create:
            if self._store.get(manifest["kind"], seen.key.namespace, manifest["metadata"]["name"]) is None:
                await self._kube.create(manifest)
        for removal in plan.delete:
            await self._kube.delete(seen.key.namespace, removal.ref, removal.uid)
        await self._tell_ray(plan, seen)

    async def _farewell(self, plan: Plan, seen: Observed) -> None:
        for removal in plan.delete:
            await self._kube.delete(seen.key.namespace, removal.ref, removal.uid)
        if plan.forget_queue:
            await self._forget_queue(plan.patient, seen)
        await self._set_finalizer(plan.finalizer, seen)

    async def _forget_queue(self, patient: bool, seen: Observed) -> None:
        """Without patience a queue that cannot be reached is left behind; all its keys have a time to live."""
        try:
            await self._queues.purge(await self._observer.redis_url(seen.key, seen.spec), names.queue(seen.key))
        except (QueueUnavailable, SecretMissing) as error:
            if patient:
                raise
            left = Decision("QueueLeft", f"the queue's keys are left in Redis until they expire: {error}", warning=True)
            with contextlib.suppress(ApiException):  # the namespace may be going too, and then takes no events
                await self._tell([left], seen)

    async def _set_finalizer(self, wanted: bool, seen: Observed) -> None:
        if wanted == (names.FINALIZER in seen.finalizers):
            return
        others = [f for f in seen.finalizers if f != names.FINALIZER]
        body = self._store.visionchat(seen.key)
        if body is not None:
            finalizers = [*others, names.FINALIZER] if wanted else others
            await self._kube.set_finalizers(seen.key, finalizers, body["metadata"]["resourceVersion"])

    async def _write_status(self, plan: Plan, seen: Observed) -> None:
        status = plan.status.model_dump(mode="json", by_alias=True, exclude_none=True)
        body = self._store.visionchat(seen.key)
        if body is not None and body.get("status") != status:
            await self._kube.write_status(seen.key, seen.uid, status)

    async def _tell(self, decisions: Sequence[Decision], seen: Observed) -> None:
        for decision in decisions:
            level = logging.WARNING if decision.warning else logging.INFO
            log.log(level, "%s/%s %s: %s", *seen.key, decision.reason, decision.message)
            self._metrics.decisions.labels(decision.reason).inc()
        await asyncio.gather(*(self._kube.tell(seen.key, seen.uid, decision) for decision in decisions))

    async def _apply(self, seen: Observed, manifest: Manifest) -> None:
        ref = Ref(manifest["kind"], manifest["metadata"]["name"])
        live = self._store.get(ref.kind, seen.key.namespace, ref.name)
        mark = manifest["metadata"]["annotations"][names.APPLIED]
        if not differs(manifest, live):
            return
        if live is not None and self._accepted.get((seen.key, ref)) == (mark, version(live)):
            return  # the API server writes some of it in another way
        if live is not None:
            log.info("%s/%s: put back %s %s", *seen.key, *ref)
        answer: dict[str, Any] = await self._kube.apply(manifest)
        self._accepted[seen.key, ref] = mark, version(answer)

    async def _tell_ray(self, plan: Plan, seen: Observed) -> None:
        if seen.ray is None:
            return
        joined = sum(w.ready and not w.deleting for w in seen.workers)
        if not seen.ray.deployed:
            await self._ray.deploy(seen.key, await self._observer.token(seen.key), joined)
            self._observer.forget_ray(seen.key)
        elif plan.serve_target is not None and plan.serve_target != seen.ray.target:
            await self._ray.scale(seen.key, await self._observer.token(seen.key), plan.serve_target)
            self._observer.forget_ray(seen.key)

    def forget(self, key: Key) -> None:
        self._accepted = {place: mark for place, mark in self._accepted.items() if place[0] != key}
