"""What people are told: conditions with a reason and a message. Pure; `plan` calls it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Literal

from visionchat_operator.pinning import PinningDecision
from visionchat_operator.status_api import Condition, Mode
from visionchat_operator.world import Decision, Node, Worker

ORDER = ("Ready", "Progressing", "Degraded", "LoadKnown", "CPUPinned")
GOOD = {"Ready": "True", "Degraded": "False", "LoadKnown": "True"}  # the others are neither good nor bad


@dataclass(frozen=True, slots=True)
class Finding:
    """A condition before it has a time."""

    type: str
    holds: bool
    reason: str
    message: str


@dataclass(frozen=True, slots=True)
class Situation:
    """What the conditions are made of."""

    desired: int
    serving: int
    suspended: bool
    model: str
    fetching: str  # how far the model's files are, for people
    head_ready: bool
    rolling: str | None
    fault: str | None  # why the queue's load is not known
    no_room_to_roll: bool
    waiting_for_pins: bool
    stuck: tuple[Worker, ...] = ()  # pods that do not end


def findings(it: Situation, pinned: Finding) -> list[Finding]:
    return [_ready(it), _progressing(it), _degraded(it, pinned), _load_known(it), pinned]


def _ready(it: Situation) -> Finding:
    if it.suspended:
        return Finding("Ready", False, "Suspended", "spec.suspend is set; accepted jobs wait in the queue")
    if not it.head_ready:
        return Finding("Ready", False, "HeadNotReady", "the gateway is not up yet")
    if it.desired == 0:
        return Finding("Ready", True, "ScaledToZero", "no job is waiting; the first one starts a replica")
    if it.serving == 0:
        return Finding("Ready", False, *_why_none_serves(it))
    return Finding("Ready", True, "Serving", f"{it.serving} of {it.desired} replicas are warm")


def _why_none_serves(it: Situation) -> tuple[str, str]:
    if it.model != "Present" and it.model != "Embedded":
        return f"Model{it.model}", "the model's files are not there yet"
    return "NoReplicaReady", "no replica is warm yet"


def _progressing(it: Situation) -> Finding:
    if it.model == "Fetching":
        return Finding("Progressing", True, "FetchingModel", _and("the model is fetched onto its claim", it.fetching))
    if it.rolling is not None:
        return Finding("Progressing", True, "Rolling", it.rolling)
    if it.serving != it.desired:
        return Finding("Progressing", True, "Scaling", f"from {it.serving} to {it.desired} warm replicas")
    return Finding("Progressing", False, "Settled", "everything is as it should be")


def _degraded(it: Situation, pinned: Finding) -> Finding:
    if it.model == "Failed":
        message = "the Job that fetches the model failed; delete it to try again"
        return Finding("Degraded", True, "ModelFailed", _and(message, it.fetching))
    if it.waiting_for_pins:
        return Finding("Degraded", True, pinned.reason, pinned.message)
    if it.stuck:
        return Finding("Degraded", True, "PodStuck", _stuck(it.stuck))
    if it.no_room_to_roll:
        message = "no node has room for a new replica beside the old one, so the old one stops first"
        return Finding("Degraded", True, "NoRoomToRoll", message)
    if it.fault is not None:
        return Finding("Degraded", True, "QueueUnreachable", "the number of replicas is held until Redis answers")
    return Finding("Degraded", False, "Healthy", "nothing is wrong")


def _and(message: str, more: str) -> str:
    return f"{message}; {more}" if more else message


def _stuck(pods: Sequence[Worker]) -> str:
    where = ", ".join(f"{pod.name} on node {pod.node}" for pod in pods)
    advice = "where the node is gone for good, `kubectl delete pod NAME --force` lets the name go"
    return f"not ended long after their grace: {where}; other replicas go on without them; {advice}"


def _load_known(it: Situation) -> Finding:
    if it.fault is not None:
        return Finding("LoadKnown", False, "QueueUnreachable", it.fault)
    return Finding("LoadKnown", True, "QueueAnswers", "the queue's load is known")


def cpu_pinned(workers: Sequence[Worker], nodes: Sequence[Node] | None, cpus: int, pinning: PinningDecision) -> Finding:
    """From what the replicas report, not from what was asked for."""
    live = [w for w in workers if not w.deleting and not w.failed]
    if pinning.mode == Mode.SHARED and not any(w.mode == Mode.PINNED for w in live):
        return Finding("CPUPinned", False, "NotAsked", "replicas are to run on shared CPUs")
    missing = [w for w in live if not is_pinned(w, live, nodes, cpus)]
    if live and not missing:
        return Finding("CPUPinned", True, "Pinned", f"{len(live)} replicas report {cpus} CPUs of their own each")
    if pinning.reason not in ("Pinned", "Shared"):
        return Finding("CPUPinned", False, pinning.reason, pinning.message)
    if not missing:
        return Finding("CPUPinned", False, "Pending", "there is no replica yet")
    return Finding("CPUPinned", False, *_why_not(missing[0], {n.name: n for n in nodes or ()}, cpus))


def is_pinned(worker: Worker, others: Iterable[Worker], nodes: Sequence[Node] | None, cpus: int) -> bool:
    """It asked for CPUs of its own, reports so many, and nobody else on its node reports one of them."""
    if worker.mode != Mode.PINNED or worker.cpuset is None or len(worker.cpuset) != cpus:
        return False
    if any(n.name == worker.node and n.cpus <= cpus for n in nodes or ()):
        return False  # the whole node is no CPU of one's own
    mine = set(worker.cpuset)
    beside = (w for w in others if w.name != worker.name and w.node == worker.node)
    return not any(mine & set(w.cpuset or ()) for w in beside)


def _why_not(worker: Worker, nodes: Mapping[str, Node], cpus: int) -> tuple[str, str]:
    where = f"pod {worker.name}"
    if worker.mode == Mode.SHARED:
        return "Switching", f"{where} still runs on shared CPUs"
    if worker.containers > 1:
        return "SidecarInjected", f"{where} has {worker.containers} containers: somebody injected a sidecar"
    if worker.cpuset is None:
        return "Pending", f"{where} has not reported its CPUs yet"
    node = nodes.get(worker.node or "")
    if len(worker.cpuset) > cpus or (node is not None and len(worker.cpuset) == node.cpus):
        message = f"{where} may use {len(worker.cpuset)} CPUs of node {worker.node}: its kubelet does not pin"
        return "NodePolicyNone", f"{message} (cpuManagerPolicy is not static)"
    return "CpusetDiffers", f"{where} reports {len(worker.cpuset)} CPUs, not {cpus} of its own"


def stamped(
    found: Iterable[Finding], before: Iterable[Condition], generation: int, now: datetime
) -> tuple[list[Condition], list[Decision]]:
    """Conditions with the time since when they are so, and those that turned."""
    old = {condition.type: condition for condition in before}
    conditions, turned = [], []
    for finding in sorted(found, key=lambda f: ORDER.index(f.type)):
        status: Literal["True", "False"] = "True" if finding.holds else "False"
        last = old.get(finding.type)
        same = last is not None and last.status == status
        conditions.append(
            Condition(
                type=finding.type,
                status=status,
                reason=finding.reason,
                message=finding.message,
                last_transition_time=last.last_transition_time if last is not None and same else now,
                observed_generation=generation,
            )
        )
        good = GOOD.get(finding.type)
        if good is not None and not same and (last is not None or status == good):
            turned.append(Decision(finding.reason, f"{finding.type} is {status}: {finding.message}", status != good))
    return conditions, turned
