"""What nodes can give: whole CPUs that a VisionChat may have exclusively. Pure; `observe` calls it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from decimal import Decimal

from visionchat_operator import names
from visionchat_operator.api import VisionChatSpec
from visionchat_operator.status_api import Mode
from visionchat_operator.store import owner_of
from visionchat_operator.world import Key, Manifest, Node


def nodes_for(key: Key, spec: VisionChatSpec, nodes: Iterable[Manifest], pods: Sequence[Manifest]) -> tuple[Node, ...]:
    """Nodes that the replicas may run on, with what other VisionChats have pinned there taken off."""
    others: dict[str, Decimal] = {}
    for pod in pods:
        node = pod["spec"].get("nodeName")
        pinned = pod["metadata"].get("labels", {}).get(names.MODE_LABEL) == Mode.PINNED.value
        if node and pinned and owner_of("Pod", pod) != key and pod.get("status", {}).get("phase") != "Failed":
            others[node] = others.get(node, Decimal(0)) + _requested(pod)
    usable = (node for node in nodes if _usable(node, spec))
    return tuple(sorted((_node(node, others) for node in usable), key=lambda n: n.name))


def _node(node: Manifest, others: dict[str, Decimal]) -> Node:
    name, status = node["metadata"]["name"], node.get("status", {})
    allocatable = quantity(status.get("allocatable", {}).get("cpu", "0")) - others.get(name, Decimal(0))
    return Node(name, max(0, int(allocatable)), int(quantity(status.get("capacity", {}).get("cpu", "0"))))


def _usable(node: Manifest, spec: VisionChatSpec) -> bool:
    body, labels = node.get("spec", {}), node["metadata"].get("labels", {})
    if body.get("unschedulable") or not labels.items() >= spec.pod_template.node_selector.items():
        return False
    hard = [t for t in body.get("taints", ()) if t["effect"] in ("NoSchedule", "NoExecute")]
    return all(any(_tolerates(toleration, taint) for toleration in spec.pod_template.tolerations) for taint in hard)


def _tolerates(toleration: Manifest, taint: Manifest) -> bool:
    if toleration.get("effect") not in (None, "", taint["effect"]):
        return False
    if toleration.get("operator", "Equal") == "Exists":
        return toleration.get("key") in (None, "", taint["key"])
    return bool(toleration.get("key") == taint["key"] and toleration.get("value", "") == taint.get("value", ""))


def _requested(pod: Manifest) -> Decimal:
    requests = (c.get("resources", {}).get("requests", {}).get("cpu", "0") for c in pod["spec"]["containers"])
    return sum((quantity(request) for request in requests), Decimal(0))


def quantity(text: str) -> Decimal:
    """Kubernetes' notation of a number of CPUs: "2", "1500m", "0.5"."""
    return Decimal(text[:-1]) / 1000 if text.endswith("m") else Decimal(text)
