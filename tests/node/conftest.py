"""The node tier: a real Kubernetes with a real kubelet, containerd and static CPU manager on this machine.

One cluster for all tests of a session, with Redis and the operator as pods; a namespace for each test.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from support.cluster_fixtures import Chats, eventually
from support.cluster_parts import SYSTEM, fill, share_queue, visionchat
from support.real_cluster import RealCluster, real_cluster
from support.real_node import missing

READY_SECONDS = 240  # of a service: Python, Ray and torch start thrice, on two CPUs


@pytest.fixture(scope="session")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RealCluster]:
    if (why := missing()) is not None:
        pytest.skip(why)
    with real_cluster(tmp_path_factory.mktemp("cluster")) as cluster:
        fill(cluster)
        yield cluster
    assert cluster.node.traces.left() == []


_numbers = itertools.count(1)


@pytest.fixture
def namespace(cluster: RealCluster, request: pytest.FixtureRequest) -> Iterator[str]:
    with new_namespace(cluster) as name:
        yield name
        if request.node.stash.get(FAILED, False):
            print(cluster.describe(name, SYSTEM))


@contextmanager
def new_namespace(cluster: RealCluster) -> Iterator[str]:
    """Everything in it is gone afterwards, CPUs included."""
    name = f"test-{next(_numbers)}"
    cluster.kubectl("create", "namespace", name)
    share_queue(cluster, name)
    try:
        yield name
    finally:
        cluster.kubectl("-n", name, "delete", "visionchats,deployments", "--all", "--wait=false")
        cluster.kubectl("-n", name, "delete", "pods", "--all", "--force", "--grace-period=0")  # nobody is served now
        cluster.kubectl("delete", "namespace", name, "--wait=false")
        eventually(lambda: not cluster.node.cpu_state().get("entries"), "the kubelet has its CPUs back", 60)


FAILED = pytest.StashKey[bool]()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Any:
    report = yield
    if report.when == "call":
        item.stash[FAILED] = report.failed
    return report


class Service(Chats):
    """One VisionChat in the cluster, and how it is asked."""

    def __init__(self, cluster: RealCluster, namespace: str) -> None:
        super().__init__(cluster.api, namespace)
        self.cluster = cluster

    def apply(self, name: str = "demo", **spec: Any) -> None:
        """As users do, and wait until it answers."""
        self.cluster.apply(visionchat(self.namespace, name, **spec))
        eventually(lambda: self.condition("Ready", name)[0] == "True", f"{name} is ready", READY_SECONDS)

    @property
    def url(self) -> str:
        """The Service's address, which kube-proxy leads to the gateway's pod."""
        service = self.api.get(f"/api/v1/namespaces/{self.namespace}/services/demo")
        return f"http://{service['spec']['clusterIP']}"

    def replica(self) -> dict[str, Any]:
        """The only one, as the status has it."""
        (replica,) = self.status()["replicaList"]
        found: dict[str, Any] = replica
        return found

    def workers(self) -> list[dict[str, Any]]:
        """The replicas' pods that are not going."""
        return [pod for pod in self.pods() if pod["metadata"]["labels"]["app.kubernetes.io/component"] == "worker"]

    def inside(self, pod: str, *command: str) -> str:
        return self.cluster.kubectl("-n", self.namespace, "exec", pod, "--", *command)

    def doctor(self, pod: str) -> dict[str, str]:
        """What `visionchat doctor` finds in a pod: check to level."""
        return {one["check"]: one["level"] for one in json.loads(self.inside(pod, "visionchat", "doctor", "--json"))}


@pytest.fixture
def service(cluster: RealCluster, namespace: str) -> Service:
    return Service(cluster, namespace)


@pytest.fixture(scope="session")
def picture() -> Path:
    return Path(__file__).parents[1] / "data" / "pictures" / "circle-and-square.png"
