"""CPUs of their own, as the kubelet gives them: what the status says is what the kubelet and the kernel say."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from node.conftest import Service
from node.users import Users
from support.cluster_fixtures import eventually
from support.cluster_parts import install
from support.real_cluster import RealCluster
from visionchat_serve.client import Timing, ask

ANSWER = "A red circle and a blue square on a white background."


def answer(service: Service, picture: Path) -> str:
    return "".join(ask(service.url, [picture], "What do you see?", Timing()))


def test_a_queue_that_grows_pins_and_one_that_shrinks_unpins(service: Service, cluster: RealCluster) -> None:
    service.apply(pinning={"mode": "QueueDepth", "pinAbove": 4, "unpinBelow": 1, "dwellSeconds": 5})
    assert service.condition("CPUPinned") == ("False", "NotAsked")
    with Users(service.url, 8) as users:
        eventually(lambda: service.condition("CPUPinned") == ("True", "Pinned"), "the replica is pinned", 180)
        replica = service.replica()
        assert (replica["mode"], replica["threads"]) == ("Pinned", 1)
        assert kubelet_gave(service, cluster, replica["pod"]) == replica["cpuset"]
        assert cpus_of_the_process(service, replica["pod"]) == replica["cpuset"]
        assert service.status()["replicas"]["pinned"] == 1
        assert set(service.doctor(replica["pod"]).values()) == {"good"}
    eventually(lambda: service.ready(1) and service.replica()["mode"] == "Shared", "it is shared again", 180)
    assert service.condition("CPUPinned") == ("False", "NotAsked")
    eventually(lambda: not cluster.node.cpu_state().get("entries"), "the kubelet has its CPUs back")
    assert len(users.outcomes) > 8
    assert users.problems == []


def kubelet_gave(service: Service, cluster: RealCluster, pod: str) -> str:
    uid = service.api.get(f"/api/v1/namespaces/{service.namespace}/pods/{pod}")["metadata"]["uid"]
    (cpus,) = cluster.node.cpu_state()["entries"][uid].values()
    return str(cpus)


def cpus_of_the_process(service: Service, pod: str) -> str:
    return service.inside(pod, "grep", "Cpus_allowed_list", "/proc/1/status").split()[1]


def test_more_cpus_than_can_be_exclusive(service: Service, picture: Path) -> None:
    service.apply(cpusPerReplica=2, pinning={"mode": "Always"})
    eventually(lambda: service.ready(1), "a replica is warm")
    assert service.condition("CPUPinned") == ("False", "NoRoom")
    assert service.replica()["mode"] == "Shared"
    assert answer(service, picture) == ANSWER
    assert len(service.events("NoRoom")) <= 1
    assert [pod["metadata"]["name"] for pod in service.workers()] == [service.replica()["pod"]]


@pytest.fixture
def operator_that_sees_no_nodes(cluster: RealCluster, namespace: str) -> Iterator[None]:
    """Held to one namespace, it learns from the scheduler that there is no room."""
    install(cluster, **{"operator.extraArgs": [f"--namespace={namespace}"]})
    yield
    install(cluster)


@pytest.mark.usefixtures("operator_that_sees_no_nodes")
def test_the_scheduler_finds_no_room(service: Service, picture: Path) -> None:
    service.apply(cpusPerReplica=2, pinning={"mode": "Always"})
    assert service.condition("CPUPinned") == ("False", "NoRoom")
    assert service.replica()["mode"] == "Shared"
    assert answer(service, picture) == ANSWER
    assert len(service.events("NoRoom")) == 1
    assert service.status()["pinning"]["refusals"] == 1


@pytest.fixture
def kubelet_without_pinning(cluster: RealCluster) -> Iterator[None]:
    def restart(policy: str) -> None:
        cluster.node.stop_kubelet(forget=True)
        cluster.node.policy = policy
        cluster.node.start_kubelet()
        eventually(lambda: cluster.node.cpu_state().get("policyName") == policy, f"the policy is {policy}", 60)

    restart("none")
    yield
    restart("static")


@pytest.mark.usefixtures("kubelet_without_pinning")
def test_a_kubelet_that_does_not_pin(service: Service, picture: Path) -> None:
    service.apply(pinning={"mode": "Always"})
    eventually(lambda: service.condition("CPUPinned")[1] == "NodePolicyNone", "the status says why", 60)
    assert service.condition("CPUPinned") == ("False", "NodePolicyNone")
    assert service.doctor(service.replica()["pod"])["cpu-policy"] == "warning"
    assert answer(service, picture) == ANSWER
