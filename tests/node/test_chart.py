"""helm on a real cluster: install (the session's own), test, upgrade, uninstall."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from node.conftest import READY_SECONDS
from node.users import Users
from support.chart import RELEASE
from support.cluster_fixtures import Chats, eventually
from support.cluster_parts import REDIS, SYSTEM, helm_says, install, visionchat
from support.real_cluster import RealCluster


@pytest.fixture
def demo(cluster: RealCluster) -> Iterator[Chats]:
    """A VisionChat in the release's own namespace, where the chart's test looks for it."""
    cluster.apply(visionchat(SYSTEM))
    chats = Chats(cluster.api, SYSTEM)
    eventually(lambda: chats.condition("Ready")[0] == "True", "it is ready", READY_SECONDS)
    yield chats
    cluster.kubectl("-n", SYSTEM, "delete", "visionchat", "demo", "--ignore-not-found", "--wait=false")
    cluster.kubectl(
        "-n", SYSTEM, "delete", "pods", "-l", "app.kubernetes.io/instance=demo", "--force", "--grace-period=0"
    )


def test_helm_test_upgrade_and_uninstall(cluster: RealCluster, demo: Chats) -> None:
    assert "Phase:          Succeeded" in helm_says(cluster, "test", RELEASE, "--namespace", SYSTEM)
    address = cluster.api.get(f"/api/v1/namespaces/{SYSTEM}/services/demo")["spec"]["clusterIP"]
    redis = pod_of(cluster, REDIS)
    with Users(f"http://{address}", 2) as users:
        eventually(lambda: users.answered() > 2, "people are answered", 60)
        install(cluster, **{"operator.pod.annotations": {"example.org/reason": "another version"}})
        number = users.answered()
        eventually(lambda: users.answered() > number + 2, "people are answered after the upgrade", 60)
    assert users.problems == []
    assert pod_of(cluster, REDIS) == redis
    said = helm_says(cluster, "uninstall", RELEASE, "--namespace", SYSTEM, "--wait")
    assert "kept due to the resource policy" in said
    assert demo.get() is not None
    assert cluster.api.get(f"/api/v1/namespaces/{SYSTEM}/persistentvolumeclaims/data-{REDIS}-0") is not None
    eventually(lambda: pod_of(cluster, REDIS) is None, "Redis is gone")
    install(cluster)  # for the other tests


def pod_of(cluster: RealCluster, name: str) -> str | None:
    """The uid of the pod."""
    pods = cluster.api.get(f"/api/v1/namespaces/{SYSTEM}/pods?labelSelector=app.kubernetes.io/name={name}")["items"]
    return pods[0]["metadata"]["uid"] if pods else None
