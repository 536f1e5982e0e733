"""An operator for all namespaces, which sees the nodes, with no more rights than `manifests/rbac.yaml` gives it.

`start_operator` fails a test whose operator was forbidden something, here and everywhere.
"""

from __future__ import annotations

from pathlib import Path

from support.cluster_fixtures import Chats, Start, eventually
from support.played_node import CPUS, PlayedNode


def test_the_operator_needs_no_more_rights_than_its_manifest_gives(
    start_operator: Start, node: PlayedNode, chats: Chats
) -> None:
    start_operator(["--lease-namespace", "visionchat-system"], everywhere=True)
    pinning = {"mode": "Always"}
    chats.create(pinning=pinning, gateway={"kind": "Ingress", "host": "a.example"}, queue={"deleteWithResource": True})
    eventually(lambda: chats.ready(1), "one replica is ready")
    chats.create("fetched", model={"id": "some/model"}, gateway={"kind": "HTTPRoute", "gatewayName": "g"})
    eventually(lambda: chats.all_of("apis/batch/v1", "jobs"), "the Job is there")
    chats.change(suspend=True, gateway={"kind": "None", "host": None})
    eventually(lambda: not chats.all_of("apis/networking.k8s.io/v1", "ingresses"), "the Ingress is gone")
    for name in ("demo", "fetched"):
        chats.api.delete(f"{chats.path}/{name}")
    eventually(lambda: chats.get() is None, "it is deleted")


def test_no_rule_has_a_wildcard() -> None:
    text = (Path(__file__).parents[2] / "manifests" / "rbac.yaml").read_text()
    assert "*" not in text
    assert "nodes/proxy" not in text


def test_replicas_that_no_node_can_pin_wait_or_share(start_operator: Start, node: PlayedNode, chats: Chats) -> None:
    """The node can give its CPUs but one; a replica takes half of them."""
    start_operator(everywhere=True)
    cpus = CPUS // 2
    pinning = {"mode": "Always", "fallback": "Wait"}
    chats.create(pinning=pinning, cpusPerReplica=cpus, scaling={"policy": "Manual"}, replicas=2)
    eventually(lambda: chats.condition("Degraded") == ("True", "NoRoom"), "it says that one waits")
    eventually(lambda: chats.status()["replicas"]["ready"] == 1, "the other serves")
    assert modes(chats) == ["Pinned"]
    chats.change(pinning={"fallback": "Shared"})
    eventually(lambda: modes(chats) == ["Pinned", "Shared"] and chats.ready(2), "it shares where it may")
    assert chats.condition("CPUPinned") == ("False", "NoRoom")
    assert chats.condition("Degraded")[0] == "False"
    chats.change(cpusPerReplica=2)
    eventually(lambda: modes(chats) == ["Pinned", "Pinned"] and chats.ready(2), "with fewer CPUs both have room")
    eventually(lambda: chats.condition("CPUPinned") == ("True", "Pinned"), "and are pinned")


def modes(chats: Chats) -> list[str]:
    return sorted(pod["metadata"]["labels"]["visionchat.dev/mode"] for pod in chats.pods())
