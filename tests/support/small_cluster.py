"""A cluster small enough to reason about: nodes with CPUs, replica pods that start, drain and end, all by a clock.

Plays API server, scheduler, kubelet and Ray for the planner's property tests and for the simulation: carries plans
out, and shows what `plan` would observe. Pods are placed first come, first served; a pinned one takes whole CPUs.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta

from visionchat_operator.api import VisionChatSpec
from visionchat_operator.names import MODE_LABEL, REVISION_LABEL
from visionchat_operator.plan import Plan, PlanSettings, plan
from visionchat_operator.status_api import Mode, VisionChatStatus
from visionchat_operator.world import Key, Load, Manifest, Node, Observed, RayState, Ref, Worker

START = datetime(2026, 1, 1, tzinfo=UTC)
KEY = Key("default", "demo")


@dataclass
class SmallCluster:
    """`nodes`: name -> CPUs. `refuses`: nodes whose kubelet refuses to pin. Times are what it takes a pod."""

    spec: VisionChatSpec
    nodes: dict[str, int] = field(default_factory=lambda: {"a": 64})
    reserved: int = 1
    refuses: frozenset[str] = frozenset()
    start_up: timedelta = timedelta(seconds=40)
    drain: timedelta = timedelta(seconds=5)
    now: datetime = START
    status: VisionChatStatus = field(default_factory=VisionChatStatus)
    workers: dict[str, Worker] = field(default_factory=dict)
    gone_at: dict[str, datetime] = field(default_factory=dict)
    children: dict[Ref, Manifest] = field(default_factory=dict)
    generation: int = 1
    settings: PlanSettings = field(default_factory=PlanSettings)
    pods_made: int = 0
    held: frozenset[str] = frozenset()  # pods, by uid, with a job in hand: they end after it

    def observe(self, load: Load | None) -> Observed:
        return Observed(
            key=KEY,
            uid="1",
            generation=self.generation,
            spec=self.spec,
            status=self.status,
            workers=tuple(self.workers[name] for name in sorted(self.workers)),
            children=dict(self.children),
            load=load,
            load_fault=None if load else "Redis is away",
            ray=RayState(True, 0, frozenset(w.ip for w in self.workers.values() if w.serving and w.ip)),
            nodes=tuple(Node(n, cpus - self.reserved, cpus) for n, cpus in self.nodes.items()),
        )

    def plan(self, load: Load | None) -> Plan:
        return plan(self.observe(load), self.settings, self.now)

    def carry_out(self, made: Plan) -> None:
        for manifest in made.apply:
            ref = Ref(manifest["kind"], manifest["metadata"]["name"])
            status = {"availableReplicas": 1} if ref.kind == "Deployment" else {}
            self.children[ref] = manifest | {"status": status}
        for manifest in made.create:
            self._create(manifest)
        for removal in made.delete:
            self._delete(removal.ref)
        if made.token:
            self.children[Ref("Secret", f"{KEY.name}-ray")] = {"metadata": {}}
        self.status = made.status

    def _create(self, manifest: Manifest) -> None:
        name, labels = manifest["metadata"]["name"], manifest["metadata"]["labels"]
        if manifest["kind"] != "Pod":
            status = {"succeeded": 1} if manifest["kind"] == "Job" else {}
            self.children.setdefault(Ref(manifest["kind"], name), manifest | {"status": status})
        elif name not in self.workers:
            self.pods_made += 1
            mode = Mode(labels[MODE_LABEL])
            uid = f"pod-{self.pods_made}"
            self.workers[name] = Worker(name, uid, mode, labels[REVISION_LABEL], self.now, ip=uid)

    def _delete(self, ref: Ref) -> None:
        worker = self.workers.get(ref.name) if ref.kind == "Pod" else None
        if worker is None:
            self.children.pop(ref, None)
        elif not worker.deleting:
            self.workers[ref.name] = replace(worker, deleting=True)
            self.gone_at[ref.name] = self.now + (self.drain if worker.serving else timedelta(0))

    def jobs_in_hand(self, busy: frozenset[str]) -> None:
        """Which pods (by uid) work on a job, as their reports say."""
        for worker in list(self.workers.values()):
            jobs = int(worker.uid in busy) if worker.serving else None
            if worker.jobs != jobs:
                self.workers[worker.name] = replace(worker, jobs=jobs)

    def advance(self, by: timedelta) -> None:
        """Let time pass: pods end, are placed, refused, become warm."""
        self.now += by
        for name, when in list(self.gone_at.items()):
            if when <= self.now and self.workers[name].uid not in self.held:
                del self.gone_at[name], self.workers[name]
        for worker in sorted(self.workers.values(), key=lambda w: w.created):
            self.workers[worker.name] = self._moved_on(worker)

    def _moved_on(self, worker: Worker) -> Worker:
        if worker.deleting or worker.failed:
            return worker
        if worker.node is None:
            node = self._place(worker)
            if node is None:
                return replace(worker, unschedulable_since=worker.unschedulable_since or self.now)
            if worker.mode == Mode.PINNED and node in self.refuses:
                return replace(worker, node=node, failed=True, failure="SMTAlignmentError", unschedulable_since=None)
            return replace(worker, node=node, created=self.now, unschedulable_since=None)
        warm = self.now - worker.created >= self.start_up
        if worker.ready and worker.serving == warm:
            return worker
        return replace(worker, ready=True, serving=warm, jobs=worker.jobs if warm else None)

    def _place(self, worker: Worker) -> str | None:
        need = self.spec.cpus_per_replica if worker.mode == Mode.PINNED else self.spec.cpus_per_replica / 4
        return next((n for n in self.nodes if self.free(n) >= need), None)

    def free(self, node: str) -> float:
        """CPUs of the node that nothing has requested; a pod that is ending still holds its own."""
        held = [w for w in self.workers.values() if w.node == node and not w.failed]
        each = self.spec.cpus_per_replica
        return self.nodes[node] - self.reserved - sum(each if w.mode == Mode.PINNED else each / 4 for w in held)

    @property
    def live(self) -> list[Worker]:
        return [w for w in self.workers.values() if not w.deleting and not w.failed]

    @property
    def serving(self) -> list[Worker]:
        return [w for w in self.live if w.serving]
