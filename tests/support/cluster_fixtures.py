"""Fixtures of the tiers with a cluster: a real API server, a real Redis, the operator as a process, a played node."""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
import yaml

from support.control_plane import Api, ControlPlane, control_plane
from support.operator_process import OperatorProcess
from support.played_node import PlayedNode, add_node
from visionchat_operator.crd import custom_resource_definition
from visionchat_serve.redis_server import EmbeddedRedis

ROOT = Path(__file__).parents[2]
CHATS = "/apis/visionchat.dev/v1alpha1"
ROUTES = {
    "apiVersion": "apiextensions.k8s.io/v1",
    "kind": "CustomResourceDefinition",
    "metadata": {
        "name": "httproutes.gateway.networking.k8s.io",
        "annotations": {"api-approved.kubernetes.io": "unapproved, a test's stand-in for the schema"},
    },
    "spec": {
        "group": "gateway.networking.k8s.io",
        "scope": "Namespaced",
        "names": {"kind": "HTTPRoute", "plural": "httproutes", "singular": "httproute", "listKind": "HTTPRouteList"},
        "versions": [
            {
                "name": "v1",
                "served": True,
                "storage": True,
                "subresources": {"status": {}},
                "schema": {"openAPIV3Schema": {"type": "object", "x-kubernetes-preserve-unknown-fields": True}},
            }
        ],
    },
}


@pytest.fixture(scope="session")
def plane(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ControlPlane]:
    """One API server for all tests, with the CRD, the operator's RBAC and a node."""
    with control_plane(tmp_path_factory.mktemp("control-plane")) as plane:
        for crd in (custom_resource_definition(), ROUTES):
            plane.api.create("/apis/apiextensions.k8s.io/v1/customresourcedefinitions", crd)
        plane.api.create("/api/v1/namespaces", {"metadata": {"name": "visionchat-system"}})
        for document in yaml.safe_load_all((ROOT / "manifests" / "rbac.yaml").read_text()):
            plane.api.create(path_of(document), document)
        add_node(plane.api)
        for path in (f"{CHATS}/visionchats", "/apis/gateway.networking.k8s.io/v1/httproutes"):
            eventually(lambda path=path: plane.api.call("GET", path).status_code == 200, f"{path} is served")
        yield plane


def path_of(document: dict[str, Any]) -> str:
    """Where an object of the RBAC manifest is created."""
    version, namespace = document["apiVersion"], document["metadata"].get("namespace")
    middle = f"/namespaces/{namespace}" if namespace else ""
    return f"/{'apis' if '/' in version else 'api'}/{version}{middle}/{document['kind'].lower()}s"


@pytest.fixture
def api(plane: ControlPlane) -> Api:
    return plane.api


_numbers = itertools.count(1)


@pytest.fixture
def namespace(api: Api) -> Iterator[str]:
    """A new one, where only restricted pods are let in."""
    name = f"test-{next(_numbers)}"
    labels = {"pod-security.kubernetes.io/enforce": "restricted"}
    api.create("/api/v1/namespaces", {"metadata": {"name": name, "labels": labels}})
    yield name
    path = f"{CHATS}/namespaces/{name}/visionchats"
    for chat in api.get(path)["items"]:
        api.merge(f"{path}/{chat['metadata']['name']}", {"metadata": {"finalizers": None}})
        api.delete(f"{path}/{chat['metadata']['name']}")


@pytest.fixture(scope="session")
def redis(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EmbeddedRedis]:
    with EmbeddedRedis(tmp_path_factory.mktemp("redis")) as server:
        yield server


@pytest.fixture
def node(api: Api, namespace: str, redis: EmbeddedRedis) -> Iterator[PlayedNode]:
    played = PlayedNode(api, namespace, redis.url)
    played.start()
    yield played
    played.stop()


Start = Callable[..., OperatorProcess]


@pytest.fixture
def start_operator(
    plane: ControlPlane, namespace: str, redis: EmbeddedRedis, node: PlayedNode, tmp_path: Path
) -> Iterator[Start]:
    """Starts operators for this test's namespace; they end with the test."""
    started: list[OperatorProcess] = []

    def start(flags: Sequence[str] = (), kubeconfig: Path | None = None, everywhere: bool = False) -> OperatorProcess:
        log = tmp_path / f"operator-{len(started)}.log"
        own = ["--redis-url", redis.url, "--head-url", node.head_url, "--lease-namespace", namespace]
        one = OperatorProcess(kubeconfig or plane.kubeconfig, None if everywhere else namespace, log, [*own, *flags])
        one.start()
        started.append(one)
        return one

    yield start
    for one in started:
        if one.alive:
            one.stop()


@pytest.fixture
def operator(start_operator: Start) -> OperatorProcess:
    return start_operator()


class Chats:
    """The VisionChats of one namespace, and what belongs to them."""

    def __init__(self, api: Api, namespace: str) -> None:
        self.api, self.namespace = api, namespace
        self.path = f"{CHATS}/namespaces/{namespace}/visionchats"

    def create(self, name: str = "demo", **spec: Any) -> dict[str, Any]:
        spec = {"model": {"id": "tiny"}, **spec}
        body = {"apiVersion": "visionchat.dev/v1alpha1", "kind": "VisionChat", "metadata": {"name": name}, "spec": spec}
        created: dict[str, Any] = self.api.create(self.path, body)
        return created

    def get(self, name: str = "demo") -> dict[str, Any] | None:
        found: dict[str, Any] | None = self.api.get(f"{self.path}/{name}")
        return found

    def status(self, name: str = "demo") -> dict[str, Any]:
        return (self.get(name) or {}).get("status", {})

    def change(self, name: str = "demo", **spec: Any) -> None:
        self.api.merge(f"{self.path}/{name}", {"spec": spec})

    def condition(self, kind: str, name: str = "demo") -> tuple[str, str]:
        """Status and reason."""
        for one in self.status(name).get("conditions", ()):
            if one["type"] == kind:
                return one["status"], one["reason"]
        return "", ""

    def all_of(self, group: str, kind: str) -> list[dict[str, Any]]:
        """E.g. ("api/v1", "pods")."""
        items: list[dict[str, Any]] = self.api.get(f"/{group}/namespaces/{self.namespace}/{kind}")["items"]
        return items

    def pods(self) -> list[dict[str, Any]]:
        """The replicas' pods that are not going."""
        return [pod for pod in self.all_of("api/v1", "pods") if "deletionTimestamp" not in pod["metadata"]]

    def events(self, reason: str) -> list[dict[str, Any]]:
        return [event for event in self.all_of("api/v1", "events") if event["reason"] == reason]

    def ready(self, replicas: int, name: str = "demo") -> bool:
        """So many replicas are warm, and nothing is on its way."""
        counts = self.status(name).get("replicas", {})
        return (counts.get("ready"), counts.get("desired"), counts.get("current")) == (replicas,) * 3


@pytest.fixture
def chats(api: Api, namespace: str) -> Chats:
    return Chats(api, namespace)


def eventually(holds: Callable[[], Any], what: str, seconds: float = 30) -> None:
    """Return as soon as it holds; fail, saying what did not come true."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        if holds():
            return
        time.sleep(0.05)
    raise AssertionError(f"did not come true within {seconds} s: {what}")
