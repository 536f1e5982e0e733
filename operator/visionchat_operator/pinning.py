"""Whether replicas should have CPUs of their own, and how many can. Pure; `plan` calls it.

The mode (`Mode`) changes only after the queue has been over or under its threshold for the dwell time, and a mode
lasts for the dwell time at least. Apart from it stands what nodes allow: when a kubelet refuses to pin a pod, pinning
is not tried again for a time that doubles with every refusal; meanwhile new pods are shared, or wait, as the spec says.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta

from visionchat_operator.api import Fallback, PinningMode, VisionChatSpec
from visionchat_operator.status_api import Mode, PinningMemory
from visionchat_operator.world import Load, Node, Worker

FIRST_BACK_OFF = timedelta(seconds=30)
LONGEST_BACK_OFF = timedelta(minutes=30)
REFUSALS = ("SMTAlignmentError", "UnexpectedAdmissionError", "OutOfcpu", "TopologyAffinityError")
UNSCHEDULABLE_FOR = timedelta(seconds=60)  # so long a pinned pod may look for a node
NO_ROOM = "NoRoom"  # the scheduler found no node for a pinned pod


@dataclass(frozen=True, slots=True)
class PinningState:
    """What is remembered between decisions; in the status as `PinningMemory`."""

    mode: Mode = Mode.SHARED
    since: datetime | None = None
    crossed_since: datetime | None = None
    refusals: int = 0
    refused_at: datetime | None = None
    refused_reason: str | None = None

    @classmethod
    def of(cls, memory: PinningMemory) -> PinningState:
        return cls(
            memory.mode,
            memory.since,
            memory.crossed_since,
            memory.refusals,
            memory.refused_at,
            memory.refused_reason,
        )

    def memory(self) -> PinningMemory:
        return PinningMemory(
            mode=self.mode,
            since=self.since,
            crossed_since=self.crossed_since,
            refusals=self.refusals,
            refused_at=self.refused_at,
            refused_reason=self.refused_reason,
        )

    @property
    def retry_at(self) -> datetime | None:
        """When pinning may be tried again after a refusal."""
        if self.refused_at is None or not self.refusals:
            return None
        doublings = min(self.refusals - 1, 16)
        return self.refused_at + min(FIRST_BACK_OFF * (1 << doublings), LONGEST_BACK_OFF)


@dataclass(frozen=True, slots=True)
class PinningDecision:
    """The mode, and how many of the replicas are to be pinned now; `hold`: do not create the others either."""

    mode: Mode
    pinned: int
    hold: bool
    reason: str
    message: str
    state: PinningState
    wake_after: timedelta | None = None


def decide(
    spec: VisionChatSpec,
    replicas: int,
    load: Load | None,
    workers: Sequence[Worker],
    nodes: Sequence[Node] | None,
    state: PinningState,
    now: datetime,
) -> PinningDecision:
    """`replicas` is how many there should be."""
    state, wake = _mode(spec, replicas, load, state, now)
    state = _after_refusals(workers, spec.pinning.fallback, state, now)
    if state.mode == Mode.SHARED:
        return PinningDecision(Mode.SHARED, 0, False, "Shared", "replicas run on shared CPUs", state, wake)
    return _allowed(spec, replicas, workers, nodes, state, now, wake)


def _mode(
    spec: VisionChatSpec, replicas: int, load: Load | None, state: PinningState, now: datetime
) -> tuple[PinningState, timedelta | None]:
    if spec.pinning.mode != PinningMode.QUEUE_DEPTH:
        mode = Mode.PINNED if spec.pinning.mode == PinningMode.ALWAYS else Mode.SHARED
        return _switched(state, mode, now) if mode != state.mode else replace(state, crossed_since=None), None
    if load is None:
        return state, None
    if not _crossed(spec, replicas, load, state.mode):
        return replace(state, crossed_since=None), None
    crossed = state.crossed_since
    since = now if crossed is None or crossed > now else crossed
    ready_at = max(since, state.since or since) + spec.pinning.dwell
    if now < ready_at:
        return replace(state, crossed_since=since), ready_at - now
    return _switched(state, Mode.SHARED if state.mode == Mode.PINNED else Mode.PINNED, now), None


def _crossed(spec: VisionChatSpec, replicas: int, load: Load, mode: Mode) -> bool:
    """The queue is beyond the threshold that would change the mode. Exact: no division."""
    each = max(1, replicas)
    if mode == Mode.SHARED:
        return load.depth > spec.pinning.pin_above * each
    return load.depth < spec.pinning.unpin_below * each or load.depth == spec.pinning.unpin_below == 0


def _switched(state: PinningState, mode: Mode, now: datetime) -> PinningState:
    return PinningState(mode=mode, since=now)


def _after_refusals(workers: Sequence[Worker], fallback: Fallback, state: PinningState, now: datetime) -> PinningState:
    """Count a refusal once, however many pods were refused together; forget them when a later pinned pod runs."""
    reasons = [reason for w in sorted(workers, key=lambda w: w.name) if (reason := refusal(w, fallback, now))]
    if reasons:
        reason = reasons[0]
        return replace(state, refusals=state.refusals + 1, refused_at=now, refused_reason=reason)
    since = state.refused_at  # that an older one runs says nothing: there was room for that one and no more
    if since and any(w.mode == Mode.PINNED and w.ready and not w.deleting and w.created > since for w in workers):
        return replace(state, refusals=0, refused_at=None, refused_reason=None)
    return state


def refusal(worker: Worker, fallback: Fallback, now: datetime) -> str | None:
    """Why this pinned pod will not run. One that waits for room is left waiting where the spec says so."""
    if worker.mode != Mode.PINNED or worker.deleting:
        return None
    if worker.failed:
        return worker.failure if worker.failure in REFUSALS else None
    since = worker.unschedulable_since
    out_of_patience = since is not None and now - since >= UNSCHEDULABLE_FOR
    return NO_ROOM if out_of_patience and fallback == Fallback.SHARED else None


def room(nodes: Sequence[Node] | None, cpus: int) -> int | None:
    """How many pinned replicas the nodes can hold; None: the nodes cannot be seen, the scheduler will tell."""
    return None if nodes is None else sum(node.pinnable // cpus for node in nodes)


def _allowed(
    spec: VisionChatSpec,
    replicas: int,
    workers: Sequence[Worker],
    nodes: Sequence[Node] | None,
    state: PinningState,
    now: datetime,
    wake: timedelta | None,
) -> PinningDecision:
    falls_back = spec.pinning.fallback == Fallback.SHARED
    standing = sum(w.mode == Mode.PINNED and w.ready and not w.deleting for w in workers)
    if state.retry_at is not None and now < state.retry_at:
        meanwhile = "the replicas run on shared CPUs" if falls_back else "the replicas wait"
        message = f"a node refused to pin ({state.refused_reason}, {state.refusals} times in a row); {meanwhile}"
        pause = min(filter(None, (wake, state.retry_at - now)))
        reason = state.refused_reason or "Refused"
        return PinningDecision(state.mode, min(standing, replicas), not falls_back, reason, message, state, pause)
    there_is = room(nodes, spec.cpus_per_replica)
    if there_is is not None and there_is < replicas:
        rest = "the others run on shared CPUs" if falls_back else "the others wait"
        message = f"the nodes can pin {there_is} of {replicas} replicas with {spec.cpus_per_replica} CPUs; {rest}"
        return PinningDecision(state.mode, there_is, not falls_back, NO_ROOM, message, state, wake)
    return PinningDecision(state.mode, replicas, False, "Pinned", "replicas get CPUs of their own", state, wake)
