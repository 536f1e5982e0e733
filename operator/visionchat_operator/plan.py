"""From what is seen to what is to be done: `plan(observed, settings, now)`. Pure, and the same for the same input.

Scaling says how many replicas, pinning says how many of them get CPUs of their own, rollout says which pods come and
go, children says what else there is, conditions say why. The reconciler carries a plan out; the simulation and the
property tests look at it.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import datetime, timedelta

from visionchat_operator import children, conditions, model_files, names, pinning, rollout, scaling
from visionchat_operator.api import GatewayKind, VisionChatSpec
from visionchat_operator.children import Owner
from visionchat_operator.environment import Defaults
from visionchat_operator.status_api import (
    QueueStatus,
    ReplicaCounts,
    ReplicaStatus,
    VisionChatStatus,
)
from visionchat_operator.world import Decision, Load, Manifest, Observed, Ref, Worker

PLAN_AGAIN = timedelta(seconds=30)  # although nothing has changed
FAREWELL = timedelta(minutes=5)  # so long a queue that cannot be deleted keeps its VisionChat from going
NEVER_DELETED = {"PersistentVolumeClaim", "Secret", "Pod"}  # data, the token, and what rollout decides on


@dataclass(frozen=True, slots=True)
class PlanSettings:
    """What the operator was started with."""

    defaults: Defaults = field(default_factory=Defaults)
    operator_namespace: str = "visionchat-system"


@dataclass(frozen=True, slots=True)
class Removal:
    """An object to delete; with `uid` only if it is still that one."""

    ref: Ref
    uid: str | None = None


@dataclass(frozen=True, slots=True)
class Plan:
    """What is to be done, in this order: apply, create, delete, Serve's number of replicas, status."""

    status: VisionChatStatus
    apply: tuple[Manifest, ...] = ()
    create: tuple[Manifest, ...] = ()  # if they are not there; never changed later
    token: bool = False  # Ray's token is to be made up
    delete: tuple[Removal, ...] = ()
    serve_target: int | None = None  # None: leave it
    decisions: tuple[Decision, ...] = ()
    finalizer: bool = False  # whether there should be one
    forget_queue: bool = False
    patient: bool = True  # try again if the queue cannot be forgotten
    requeue_after: timedelta = PLAN_AGAIN  # when the passing of time alone may change the plan


def plan(observed: Observed, settings: PlanSettings, now: datetime) -> Plan:
    """What to do now. Calling it again on the outcome, at the same moment, changes nothing."""
    if observed.deleting:
        return _farewell(observed, now)
    return _Planner(observed, settings, now).plan()


def _farewell(observed: Observed, now: datetime) -> Plan:
    """Owner references take the children away. Only a queue that is to be deleted has to wait for the replicas."""
    if names.FINALIZER not in observed.finalizers:
        return Plan(observed.status)
    head = Removal(Ref("Deployment", names.head(observed.key)))
    removals = tuple(Removal(Ref("Pod", w.name), w.uid) for w in observed.workers if not w.deleting)
    if any(not rollout.is_stuck(w, now) for w in observed.workers):
        return Plan(observed.status, delete=removals, finalizer=True)
    if head.ref in observed.children:
        return Plan(observed.status, delete=(head,), finalizer=True)
    waited = now - (observed.deleted_at or now)
    return Plan(observed.status, finalizer=False, forget_queue=True, patient=waited < FAREWELL)


class _Planner:
    """The steps of one plan; each adds to what the next one needs."""

    def __init__(self, observed: Observed, settings: PlanSettings, now: datetime) -> None:
        self._seen, self._settings, self._now = observed, settings, now
        self._spec = observed.spec
        self._owner = Owner(observed.key, observed.uid)
        self._rendered = children.render(
            observed.key, observed.uid, self._spec, settings.defaults, settings.operator_namespace
        )
        self._revision = children.revision(observed.key, self._spec, settings.defaults)

    def plan(self) -> Plan:
        seen, spec, now = self._seen, self._spec, self._now
        state = scaling.ScalingState.of(seen.status.scaling)
        scaled = scaling.desired_replicas(spec, seen.status.replicas.desired, seen.load, state, now)
        before = pinning.PinningState.of(seen.status.pinning)
        pinned = pinning.decide(spec, scaled.replicas, seen.load, seen.workers, seen.nodes, before, now)
        model, model_objects = self._model()
        steps = self._steps(scaled.replicas, pinned, model)
        applied = self._children(waits=steps.rolling is not None or model in ("Fetching", "Failed"))
        status, turned = self._status(scaled, pinned, steps, model)
        decisions = [*_scaled(seen.status, scaled), *_pinned(before, pinned), *steps.decisions, *turned]
        return Plan(
            status,
            apply=tuple(applied),
            create=(*model_objects, *self._new_workers(steps)),
            token=Ref("Secret", names.ray_token(seen.key)) not in seen.children,
            delete=(*self._leftovers(model_objects), *_removals(steps)),
            serve_target=serve_target(seen),
            decisions=tuple(decisions),
            finalizer=spec.queue.delete_with_resource,
            requeue_after=min(filter(None, (PLAN_AGAIN, scaled.wake_after, pinned.wake_after))),
        )

    def _steps(self, replicas: int, pinned: pinning.PinningDecision, model: str) -> rollout.Steps:
        wanted = rollout.Wanted(
            replicas=replicas,
            pinned=pinned.pinned,
            revision=self._revision,
            minimum=min(replicas, max(1, self._spec.scaling.min_replicas)),
            hold=pinned.hold,
            fallback=self._spec.pinning.fallback,
        )
        indices = (names.worker_index(self._seen.key, w.name) for w in self._seen.workers)
        used = frozenset(index for index in indices if index is not None)
        if model not in model_files.READY:  # the old ones go on until the new model is there
            return rollout.only_surplus(wanted, self._seen.workers, self._now)
        return rollout.next_steps(wanted, self._seen.workers, used, self._now)

    def _model(self) -> tuple[str, list[Manifest]]:
        """State of the model's files, and what brings them."""
        spec, seen = self._spec, self._seen
        if spec.model.embedded:
            return "Embedded", []
        if spec.model.folder is not None:
            return "Present", []
        job = children.model_job(self._owner, spec, self._settings.defaults)
        there = seen.children.get(Ref("Job", job["metadata"]["name"]))
        objects = [job] if spec.model.claim_name else [children.model_claim(self._owner, spec), job]
        return model_files.state(there), objects

    def _fetching(self) -> str:
        name = children.model_job_name(self._seen.key, self._spec)
        pods = [p for p in self._seen.fetchers if p["metadata"]["labels"].get("job-name", name) == name]
        return model_files.progress(self._seen.children.get(Ref("Job", name)), pods, self._seen.fetched)

    def _children(self, waits: bool) -> list[Manifest]:
        """`waits`: old replicas answer still, so the gateway stays as it is until the new ones do."""
        rendered = self._rendered
        left_out = set() if self._seen.route_api else {Ref("HTTPRoute", names.gateway(self._seen.key))}
        head = Ref("Deployment", names.head(self._seen.key))
        wanted = next(manifest for manifest in rendered if manifest["kind"] == head.kind)
        live = self._seen.children.get(head)
        # Another image may hold another Ray, and new replicas could not join the old head.
        if waits and not self._spec.suspend and live is not None and _image(live) == _image(wanted):
            left_out |= {head, Ref("ConfigMap", names.settings(self._seen.key))}
        return [m for m in rendered if Ref(m["kind"], m["metadata"]["name"]) not in left_out]

    def _new_workers(self, steps: rollout.Steps) -> list[Manifest]:
        defaults = self._settings.defaults
        return [children.worker(self._owner, self._spec, index, mode, defaults) for index, mode in steps.create]

    def _leftovers(self, created: list[Manifest]) -> list[Removal]:
        right = {Ref(m["kind"], m["metadata"]["name"]) for m in (*self._rendered, *created)}
        return [
            Removal(ref, manifest["metadata"].get("uid"))
            for ref, manifest in sorted(self._seen.children.items())
            if ref not in right and ref.kind not in NEVER_DELETED and "deletionTimestamp" not in manifest["metadata"]
        ]

    def _status(
        self, scaled: scaling.ScalingDecision, pinned: pinning.PinningDecision, steps: rollout.Steps, model: str
    ) -> tuple[VisionChatStatus, list[Decision]]:
        seen, spec = self._seen, self._spec
        live = [w for w in seen.workers if not w.deleting and not w.failed]
        serving = [w for w in live if w.serving]
        truly = [w for w in serving if conditions.is_pinned(w, live, seen.nodes, spec.cpus_per_replica)]
        situation = conditions.Situation(
            desired=scaled.replicas,
            serving=len(serving),
            suspended=spec.suspend,
            model=model,
            fetching=self._fetching(),
            head_ready=_available(seen.children.get(Ref("Deployment", names.head(seen.key)))),
            rolling=steps.rolling,
            fault=seen.load_fault if seen.load is None else None,
            no_room_to_roll=steps.no_room,
            waiting_for_pins=pinned.hold and pinned.pinned < scaled.replicas,
            stuck=tuple(w for w in seen.workers if rollout.is_stuck(w, self._now)),
        )
        finding = conditions.cpu_pinned(seen.workers, seen.nodes, spec.cpus_per_replica, pinned)
        found = conditions.findings(situation, finding)
        stamped, turned = conditions.stamped(found, seen.status.conditions, seen.generation, self._now)
        counts = ReplicaCounts(
            desired=scaled.replicas,
            ready=len(serving),
            pinned=len(truly),
            shared=len(serving) - len(truly),
            current=len(seen.workers),
        )
        status = VisionChatStatus(
            observed_generation=seen.generation,
            conditions=stamped,
            replicas=counts,
            queue=_queue(seen.load) or seen.status.queue,
            mode=pinned.mode,
            mode_since=pinned.state.since,
            replica_list=[_replica(w) for w in sorted(live, key=lambda w: w.name)],
            model=model,
            url=url(seen, spec),
            selector=names.selector_text(seen.key, names.WORKER),
            scaling=scaled.state.memory(),
            pinning=pinned.state.memory(),
        )
        return status, turned


def serve_target(seen: Observed) -> int | None:
    """Ray Serve's number of replicas: one for each pod that has joined.

    A pod that goes counts until Ray has begun to drain it: then Serve, told to have one fewer, takes that one, and
    not one that works.
    """
    if seen.ray is None or not seen.ray.deployed:
        return None
    staying = sum(w.ready and not w.deleting and not w.failed for w in seen.workers)
    going = sum(w.deleting and w.ip in seen.ray.running for w in seen.workers if w.ip is not None)
    return staying + going


def url(seen: Observed, spec: VisionChatSpec) -> str:
    """Where the API answers."""
    gateway = spec.gateway
    if gateway.kind == GatewayKind.NONE or gateway.host is None:
        return f"http://{names.gateway(seen.key)}.{seen.key.namespace}.svc"
    return f"{'https' if gateway.tls_secret_name else 'http'}://{gateway.host}"


def _scaled(before: VisionChatStatus, scaled: scaling.ScalingDecision) -> list[Decision]:
    if scaled.replicas == before.replicas.desired:
        return []
    return [Decision(scaled.reason, f"{before.replicas.desired} -> {scaled.replicas} replicas: {scaled.message}")]


def _pinned(before: pinning.PinningState, decided: pinning.PinningDecision) -> list[Decision]:
    now = decided.state
    if now.refusals > before.refusals:
        return [Decision(now.refused_reason or "Refused", decided.message, warning=True)]
    if now.mode != before.mode:
        return [Decision(f"Mode{now.mode.value}", f"new replicas are {now.mode.value.lower()}")]
    return []


def _removals(steps: rollout.Steps) -> list[Removal]:
    return [Removal(Ref("Pod", worker.name), worker.uid) for worker in steps.delete]


def _available(deployment: Manifest | None) -> bool:
    return bool((deployment or {}).get("status", {}).get("availableReplicas"))


def _image(deployment: Manifest) -> str | None:
    (container, *_) = deployment["spec"]["template"]["spec"]["containers"]
    image: str | None = container.get("image")
    return image


def _queue(load: Load | None) -> QueueStatus | None:
    if load is None:
        return None
    return QueueStatus(depth=load.depth, oldest_seconds=coarse(load.oldest), work_seconds=coarse(load.work))


def coarse(duration: timedelta | None) -> int | None:
    """Seconds to one or two digits, so that a status is not written anew with every tick of the clock."""
    if duration is None:
        return None
    whole = max(0, int(duration.total_seconds()))
    step = 10 ** max(0, len(str(whole)) - 1) // 2 or 1
    return whole // step * step


def _replica(worker: Worker) -> ReplicaStatus:
    cpuset = None if worker.cpuset is None else cpu_list(worker.cpuset)
    return ReplicaStatus(pod=worker.name, node=worker.node, mode=worker.mode, cpuset=cpuset, threads=worker.threads)


def cpu_list(cpus: tuple[int, ...]) -> str:
    """As the kernel writes it: "0-3,6"."""
    runs: list[list[int]] = []
    for cpu in sorted(set(cpus)):
        if runs and runs[-1][-1] == cpu - 1:
            runs[-1].append(cpu)
        else:
            runs.append([cpu])
    return ",".join(str(run[0]) if len(run) == 1 else f"{run[0]}-{run[-1]}" for run in runs)
