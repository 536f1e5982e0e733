"""What is so: reads the `Store`, Redis and Ray, and makes an `Observed` of it. No decision is taken here.

What cannot be seen is None, with the reason where people should know it. Secrets are read when needed and kept for
some minutes, rather than watched: an operator that may list all Secrets of a cluster is a risk.
"""

from __future__ import annotations

import base64
import time
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from visionchat_operator import environment, names
from visionchat_operator.api import VisionChatSpec
from visionchat_operator.kube import Kube
from visionchat_operator.nodes import nodes_for
from visionchat_operator.plan import PlanSettings
from visionchat_operator.queues import Queues, QueueUnavailable, QueueView, address
from visionchat_operator.ray_head import RayHead, RayUnavailable
from visionchat_operator.status_api import Mode, VisionChatStatus
from visionchat_operator.store import Store
from visionchat_operator.world import Key, Manifest, Observed, RayState, Ref, Worker
from visionchat_serve.messages import ReplicaReport

NEEDED_BY = "spec.queue names it, or else the operator's --redis-secret"
SECRET_AGE, SECRET_AGE_AFTER_FAILURE = timedelta(minutes=10), timedelta(seconds=30)
FETCH_AGE = timedelta(seconds=3)
RAY_AGE, RAY_AGE_WHEN_SETTLED = timedelta(seconds=1), timedelta(seconds=15)


class SecretMissing(Exception):
    """A Secret or a key in it that the spec names is not there."""


@dataclass(slots=True)
class _Aged:
    """A value and when it was read."""

    value: Any
    at: float

    def younger_than(self, age: timedelta) -> bool:
        return time.monotonic() - self.at < age.total_seconds()


class Observer:
    """Looks at one VisionChat at a time."""

    def __init__(
        self, store: Store, kube: Kube, queues: Queues, ray: RayHead, settings: PlanSettings, sees_nodes: bool
    ) -> None:
        self._store, self._kube, self._queues, self._ray = store, kube, queues, ray
        self._settings, self._sees_nodes = settings, sees_nodes
        self.route_api = True
        self._secrets: dict[tuple[str, str], _Aged] = {}
        self._rays: dict[Key, _Aged] = {}
        self._read: dict[Key, tuple[str, VisionChatSpec, VisionChatStatus]] = {}
        self._queue_failed: set[Key] = set()
        self._fetched: dict[Key, _Aged] = {}

    async def observe(self, key: Key) -> Observed | None:
        """None: there is no such VisionChat (any more)."""
        body = self._store.visionchat(key)
        if body is None:
            await self._forget(key)
            return None
        metadata = body["metadata"]
        spec, status = self._parsed(key, body)
        view, fault = await self._look(key, spec)
        children = dict(self._store.children(key))
        pods = [manifest for ref, manifest in children.items() if ref.kind == "Pod"]
        token = await self._token(key)
        if token is not None:
            children[Ref("Secret", names.ray_token(key))] = {"metadata": {}}
        fetched = await self._fetch_progress(key, spec, status) if view is not None else None
        ray = await self._ray_state(key, token, children, pods, view)
        workers = workers_of(pods, view.reports if view else None, ray)
        return Observed(
            key=key,
            uid=metadata["uid"],
            generation=metadata["generation"],
            spec=spec,
            status=status,
            workers=workers,
            fetched=fetched,
            fetchers=tuple(p for p in pods if p["metadata"].get("labels", {}).get(names.COMPONENT) == names.MODEL),
            children={ref: manifest for ref, manifest in children.items() if ref.kind != "Pod"},
            load=view.load if view else None,
            load_fault=fault,
            ray=ray,
            nodes=self._nodes(key, spec),
            deleting="deletionTimestamp" in metadata,
            deleted_at=_time(metadata["deletionTimestamp"]) if "deletionTimestamp" in metadata else None,
            finalizers=tuple(metadata.get("finalizers", ())),
            route_api=self.route_api,
        )

    def _parsed(self, key: Key, body: Manifest) -> tuple[VisionChatSpec, VisionChatStatus]:
        version = body["metadata"]["resourceVersion"]
        known = self._read.get(key)
        if known is None or known[0] != version:
            spec = VisionChatSpec.model_validate(body.get("spec") or {})
            status = VisionChatStatus.model_validate(body.get("status") or {})
            known = self._read[key] = version, spec, status
        return known[1], known[2]

    async def _look(self, key: Key, spec: VisionChatSpec) -> tuple[QueueView | None, str | None]:
        try:
            view = await self._queues.look(await self.redis_url(key, spec), names.queue(key))
        except (QueueUnavailable, SecretMissing) as error:
            self._queue_failed.add(key)
            return None, str(error)
        self._queue_failed.discard(key)
        return view, None

    async def _fetch_progress(self, key: Key, spec: VisionChatSpec, status: VisionChatStatus) -> str | None:
        """Asked for now and then, while a model is fetched."""
        if status.model != "Fetching":
            self._fetched.pop(key, None)
            return None
        known = self._fetched.get(key)
        if known is None or not known.younger_than(FETCH_AGE):
            progress = await self._queues.fetch_progress(await self.redis_url(key, spec), names.queue(key))
            known = self._fetched[key] = _Aged(None if progress is None else str(progress), time.monotonic())
        text: str | None = known.value
        return text

    async def redis_url(self, key: Key, spec: VisionChatSpec) -> str:
        """The address of the queue, with all that is in Secrets. Raises `SecretMissing` and `QueueUnavailable`."""
        found: dict[str, str] = {}
        for variable in environment.redis(spec, self._settings.defaults):
            reference = variable.get("valueFrom", {}).get("secretKeyRef")
            value = variable.get("value", "")
            found[variable["name"]] = await self._secret_value(key, **reference) if reference else value
        if (authority := spec.queue.ca_secret) is not None:
            pem = await self._secret_value(key, authority.name, authority.key or "ca.crt")
            found[environment.AUTHORITY] = pem
        return address(found[environment.URL], found.get(environment.PASSWORD), found.get(environment.AUTHORITY))

    async def _secret_value(self, where: Key, name: str, key: str) -> str:
        age = SECRET_AGE_AFTER_FAILURE if where in self._queue_failed else SECRET_AGE
        data = await self._secret(where.namespace, name, age)
        if data is None:
            raise SecretMissing(f"there is no Secret {name} in namespace {where.namespace}; {NEEDED_BY}")
        if key not in data:
            raise SecretMissing(f"the Secret {name} has no key {key}; {NEEDED_BY}")
        return base64.b64decode(data[key]).decode().strip()

    async def _secret(self, namespace: str, name: str, age: timedelta) -> dict[str, str] | None:
        known = self._secrets.get((namespace, name))
        if known is None or not known.younger_than(age):
            secret = await self._kube.read("Secret", namespace, name)
            known = _Aged(None if secret is None else secret.get("data", {}), time.monotonic())
            self._secrets[namespace, name] = known
        data: dict[str, str] | None = known.value
        return data

    async def _token(self, key: Key) -> str | None:
        name = names.ray_token(key)
        known = self._secrets.get((key.namespace, name))
        age = timedelta(0) if known is None or known.value is None else SECRET_AGE
        data = await self._secret(key.namespace, name, age)
        return base64.b64decode(data["token"]).decode() if data else None

    async def token(self, key: Key) -> str:
        """Ray's token. Raises `SecretMissing`."""
        token = await self._token(key)
        if token is None:
            raise SecretMissing(f"Ray's token for {key.name} is not there yet")
        return token

    async def _ray_state(
        self, key: Key, token: str | None, children: dict[Ref, Manifest], pods: list[Manifest], view: QueueView | None
    ) -> RayState | None:
        head = children.get(Ref("Deployment", names.head(key)), {})
        if token is None or not head.get("status", {}).get("replicas"):
            self._rays.pop(key, None)
            return None
        known = self._rays.get(key)
        age = RAY_AGE_WHEN_SETTLED if _settled(known.value if known else None, pods, view) else RAY_AGE
        if known is None or not known.younger_than(age):
            try:
                state = await self._ray.state(key, token)
            except RayUnavailable:
                state = None
            known = self._rays[key] = _Aged(state, time.monotonic())
        found: RayState | None = known.value
        return found

    def forget_ray(self, key: Key) -> None:
        """What Ray said is not so any more: the operator has just told it otherwise."""
        self._rays.pop(key, None)

    def _nodes(self, key: Key, spec: VisionChatSpec) -> Any:
        if not self._sees_nodes:
            return None
        return nodes_for(key, spec, self._store.of_kind("Node"), self._store.of_kind("Pod"))

    async def _forget(self, key: Key) -> None:
        self._read.pop(key, None)
        self._rays.pop(key, None)
        self._fetched.pop(key, None)
        self._secrets.pop((key.namespace, names.ray_token(key)), None)
        await self._queues.forget(names.queue(key))


def _settled(ray: RayState | None, pods: Sequence[Manifest], view: QueueView | None) -> bool:
    """Nothing is on its way: every pod reports, and Serve has as many replicas as there are pods."""
    if ray is None or view is None or any("deletionTimestamp" in pod["metadata"] for pod in pods):
        return False
    return ray.deployed and ray.target == len(pods) == len(view.reports)


def workers_of(
    pods: Sequence[Manifest], reports: Sequence[ReplicaReport] | None, ray: RayState | None
) -> tuple[Worker, ...]:
    """The replicas' pods, by name. When no report can be read, Ray says which of them serve; when Ray cannot be asked
    either, those that have joined are taken to serve: what may be working is not to be thrown away."""
    by_pod = {report.pod: report for report in reports or ()}
    unseen = reports is None and ray is None
    found = []
    for pod in sorted(pods, key=lambda p: p["metadata"]["name"]):
        if pod["metadata"].get("labels", {}).get(names.COMPONENT) == names.WORKER:
            report = by_pod.get(pod["metadata"]["name"])
            found.append(_worker(pod, report, None if reports is not None else ray, unseen))
    return tuple(found)


def _worker(pod: Manifest, report: ReplicaReport | None, ray: RayState | None, unseen: bool) -> Worker:
    metadata, spec, status = pod["metadata"], pod["spec"], pod.get("status", {})
    conditions = {condition["type"]: condition for condition in status.get("conditions", ())}
    ready = conditions.get("Ready", {}).get("status") == "True"
    scheduled = conditions.get("PodScheduled", {})
    unschedulable = scheduled.get("status") == "False" and scheduled.get("reason") == "Unschedulable"
    failed = status.get("phase") in ("Failed", "Succeeded")
    ip = status.get("podIP")
    return Worker(
        name=metadata["name"],
        uid=metadata["uid"],
        mode=Mode(metadata["labels"].get(names.MODE_LABEL, Mode.SHARED.value)),
        revision=metadata["labels"].get(names.REVISION_LABEL, ""),
        created=_time(metadata["creationTimestamp"]),
        node=spec.get("nodeName"),
        ip=ip,
        ready=ready,
        serving=ready and (unseen or report is not None or (ray is not None and ip in ray.running)),
        deleting="deletionTimestamp" in metadata,
        ends_by=_time(metadata["deletionTimestamp"]) if "deletionTimestamp" in metadata else None,
        failed=failed,
        failure=status.get("reason") if failed else None,
        unschedulable_since=_time(scheduled["lastTransitionTime"]) if unschedulable else None,
        jobs=None if report is None else report.running,
        cpuset=None if report is None else report.cpus,
        threads=None if report is None else report.threads,
        containers=len(spec.get("containers", ())),
    )


def _time(text: str) -> datetime:
    return datetime.fromisoformat(text)
