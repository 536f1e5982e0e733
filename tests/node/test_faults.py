"""Parts are taken away while people ask: what was accepted is answered, once and rightly. Prints how long it took."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from node.conftest import Service, new_namespace
from node.users import Users
from support.cluster_fixtures import eventually
from support.cluster_parts import OPERATOR, REDIS, SYSTEM, rolled_out
from support.real_cluster import RealCluster
from support.real_node import NAME

USERS = 4
BACK_SECONDS = 180


@pytest.fixture(scope="module")
def service(cluster: RealCluster) -> Iterator[Service]:
    with new_namespace(cluster) as namespace:
        service = Service(cluster, namespace)
        service.apply()
        yield service


@pytest.fixture(scope="module")
def stalls() -> Iterator[dict[str, tuple[int, int, float, float]]]:
    """By fault: questions, asked again, longest time without an answer, longest answer."""
    found: dict[str, tuple[int, int, float, float]] = {}
    yield found
    print("\n| fault | questions | asked again | nobody answered for, s | longest answer, s |\n|---|---|---|---|---|")
    for fault, (asked, again, stall, longest) in found.items():
        print(f"| {fault} | {asked} | {again} | {stall:.1f} | {longest:.1f} |")


def delete_replica(service: Service) -> None:
    service.cluster.kubectl("-n", service.namespace, "delete", "pod", service.replica()["pod"], "--wait=false")


def kill_replica(service: Service) -> None:
    pod = service.replica()["pod"]
    service.cluster.kubectl("-n", service.namespace, "delete", "pod", pod, "--force", "--grace-period=0")


def delete_head(service: Service) -> None:
    _delete_pods(service, service.namespace, "app.kubernetes.io/component=head")


def delete_redis(service: Service) -> None:
    _delete_pods(service, SYSTEM, f"app.kubernetes.io/name={REDIS}")
    rolled_out(service.cluster, f"statefulset/{REDIS}")


def delete_operator(service: Service) -> None:
    _delete_pods(service, SYSTEM, f"app.kubernetes.io/name={OPERATOR}")
    rolled_out(service.cluster, f"deployment/{OPERATOR}")


def restart_kubelet(service: Service) -> None:
    service.cluster.node.stop_kubelet()
    service.cluster.node.start_kubelet()
    service.cluster.wait_for_node()


def drain_node(service: Service) -> None:
    drain = ["drain", NAME, "--ignore-daemonsets", "--delete-emptydir-data", "--force", "--timeout=150s"]
    service.cluster.kubectl(*drain, seconds=160)
    service.cluster.kubectl("uncordon", NAME)


def _delete_pods(service: Service, namespace: str, label: str) -> None:
    service.cluster.kubectl("-n", namespace, "delete", "pods", "-l", label, "--wait=false")


FAULTS: dict[str, Callable[[Service], None]] = {
    "replica deleted": delete_replica,
    "replica killed": kill_replica,
    "Ray head deleted": delete_head,
    "Redis deleted": delete_redis,
    "operator deleted": delete_operator,
    "kubelet restarted": restart_kubelet,
    "node drained": drain_node,
}


@pytest.mark.parametrize("fault", FAULTS)
def test_what_was_accepted_is_answered(
    fault: str, service: Service, stalls: dict[str, tuple[int, int, float, float]]
) -> None:
    with Users(service.url, USERS) as users:
        eventually(lambda: users.answered() > USERS, "people are answered", 60)
        began = time.monotonic()
        FAULTS[fault](service)
        eventually(lambda: service.ready(1) and settled(service), f"{fault}: it is back", BACK_SECONDS)
        number = users.answered()
        eventually(lambda: users.answered() > number + USERS, "people are answered again", BACK_SECONDS)
    assert users.problems == []
    again = sum(one.tries > 1 for one in users.outcomes)
    stalls[fault] = len(users.outcomes), again, users.stall(began), max(one.seconds for one in users.outcomes)


def settled(service: Service) -> bool:
    """No pod is going, and all are ready: VisionChat's own, Redis and the operator."""
    listed = [service.api.get(f"/api/v1/namespaces/{name}/pods")["items"] for name in (service.namespace, SYSTEM)]
    return all(is_ready(pod) for items in listed for pod in items) and len(listed[0]) == len(listed[1]) == 2


def is_ready(pod: dict[str, Any]) -> bool:
    conditions = {one["type"]: one["status"] for one in pod["status"].get("conditions", ())}
    return conditions.get("Ready") == "True" and "deletionTimestamp" not in pod["metadata"]
