"""Fixtures of the tiers with a cluster: a real API server, a real Redis, the operator as a process, a played node."""

from __future__ import annotations

import asyncio
import itertools
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import yaml
from redis import Redis

from support.control_plane import Api, ControlPlane, control_plane
from support.operator_process import OperatorProcess
from support.played_node import PlayedNode, add_node
from visionchat_operator.crd import custom_resource_definition
from visionchat_serve.messages import ChatJob, Finish, Message, SamplingParams, TextPart, TokenChunk
from visionchat_serve.redis_broker import RedisBroker
from visionchat_serve.redis_server import EmbeddedRedis

ROOT = Path(__file__).parents[2]
CHATS = "/apis/visionchat.dev/v1alpha1"
FOUR = {"minReplicas": 1, "maxReplicas": 4, "targetQueueDepth": 2}
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
    """One API server for all tests, with the CRD, the operator's RBAC, a node, and the garbage collector."""
    with control_plane(tmp_path_factory.mktemp("control-plane")) as plane:
        for crd in (custom_resource_definition(), ROUTES):
            plane.api.create("/apis/apiextensions.k8s.io/v1/customresourcedefinitions", crd)
        plane.api.create("/api/v1/namespaces", {"metadata": {"name": "visionchat-system"}})
        for document in rbac():
            plane.api.create(path_of(document), document)
        add_node(plane.api)
        for path in (f"{CHATS}/visionchats", "/apis/gateway.networking.k8s.io/v1/httproutes"):
            eventually(lambda path=path: plane.api.call("GET", path).status_code == 200, f"{path} is served")
        plane.run_controllers("garbage-collector-controller")
        yield plane


@pytest.fixture(scope="session")
def operators_rights(plane: ControlPlane, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A kubeconfig with the rights that `manifests/rbac.yaml` gives to the operator, and no more."""
    path = "/api/v1/namespaces/visionchat-system/serviceaccounts/visionchat-operator/token"
    request = {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": {"expirationSeconds": 7200}}
    token = plane.api.create(path, request)["status"]["token"]
    return plane.write_kubeconfig(tmp_path_factory.mktemp("rights") / "kubeconfig", token)


def rbac() -> list[dict[str, Any]]:
    return list(yaml.safe_load_all((ROOT / "manifests" / "rbac.yaml").read_text()))


def allow_lease(api: Api, namespace: str) -> None:
    """Each test's operators have a Lease of their own: the Role for it, as it is, in the test's namespace."""
    for document in rbac():
        if document["kind"] in ("Role", "RoleBinding"):
            document["metadata"]["namespace"] = namespace
            api.create(path_of(document), document)


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
    with new_namespace(api) as name:
        yield name


@contextmanager
def new_namespace(api: Api) -> Iterator[str]:
    """A new one, where only restricted pods are let in; its VisionChats go with it."""
    name = f"test-{next(_numbers)}"
    labels = {"pod-security.kubernetes.io/enforce": "restricted"}
    api.create("/api/v1/namespaces", {"metadata": {"name": name, "labels": labels}})
    allow_lease(api, name)
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
    with playing(PlayedNode(api, namespace, redis.url)) as played:
        yield played


@contextmanager
def playing(node: PlayedNode) -> Iterator[PlayedNode]:
    node.start()
    try:
        yield node
    finally:
        node.stop()


Start = Callable[..., OperatorProcess]


@pytest.fixture
def start_operator(
    api: Api, operators_rights: Path, namespace: str, redis: EmbeddedRedis, node: PlayedNode, tmp_path: Path
) -> Iterator[Start]:
    """Starts operators for this test's namespace, with an operator's rights; they end with the test."""
    started: list[OperatorProcess] = []

    def start(flags: Sequence[str] = (), everywhere: bool = False) -> OperatorProcess:
        if everywhere:
            others = [c for c in api.get(f"{CHATS}/visionchats")["items"] if c["metadata"]["namespace"] != namespace]
            assert not others, "an operator for all namespaces would look after those of other tests"
        log = tmp_path / f"operator-{len(started)}.log"
        own = ["--redis-url", redis.url, "--head-url", node.head_url, "--lease-namespace", namespace]
        one = OperatorProcess(operators_rights, None if everywhere else namespace, log, [*own, *flags])
        one.start()
        started.append(one)
        return one

    yield start
    for one in started:
        if one.alive:
            one.stop()
        assert "forbidden" not in one.log().lower()  # the rights are enough for all that a test does


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


class Jobs:
    """Real jobs in the real queue of a VisionChat."""

    def __init__(self, url: str, queue: str) -> None:
        self._url, self._queue = url, queue
        self._sent: list[str] = []
        self._numbers = itertools.count()

    def submit(self, number: int, question: str = "What?") -> list[str]:
        """Their ids."""
        return asyncio.run(self._submit(number, question))

    def cancel_all(self) -> None:
        asyncio.run(self._cancel_all())

    def answer(self, name: str) -> str:
        """The whole answer; waits for it."""
        return asyncio.run(self._answer(name))

    async def _submit(self, number: int, question: str) -> list[str]:
        broker, names = RedisBroker.from_url(self._url, self._queue), []
        for _ in range(number):
            now, name = time.time(), f"job-{next(self._numbers)}"
            asked = (Message("user", (TextPart(question),)),)
            await broker.submit(ChatJob(name, asked, SamplingParams(), "tiny", 0, now, now + 600), [])
            names.append(name)
        await broker.close()
        self._sent += names
        return names

    async def _answer(self, name: str) -> str:
        broker = RedisBroker.from_url(self._url, self._queue)
        async with asyncio.timeout(30):
            values = [event.value async for event in broker.events(name)]
        await broker.close()
        assert isinstance(values[-1], Finish), values
        assert values[-1].reason == "stop", values
        return "".join(value.text for value in values if isinstance(value, TokenChunk))

    async def _cancel_all(self) -> None:
        broker = RedisBroker.from_url(self._url, self._queue)
        for name in self._sent:
            await broker.cancel(name)
        self._sent.clear()
        await broker.close()


@pytest.fixture
def jobs(redis: EmbeddedRedis, namespace: str) -> Jobs:
    return Jobs(redis.url, f"{namespace}.demo")


def keys(url: str, queue: str) -> list[bytes]:
    """What the queue has in Redis."""
    with Redis.from_url(url) as connection:
        found: list[bytes] = list(connection.scan_iter(match=f"visionchat:{{{queue}}}*"))
        return found


@dataclass
class Quiet:
    """A VisionChat that nobody touches, with a whole operator for itself. `began`: when everything was settled."""

    plane: ControlPlane
    chats: Chats
    operator: OperatorProcess
    began: float = 0.0
    entries: int = 0  # of the audit log, when it began

    def begin(self) -> None:
        self.entries, self.began = len(list(self.plane.audit())), time.monotonic()

    @property
    def lasted(self) -> float:
        """Seconds."""
        return time.monotonic() - self.began

    def requests(self, *verbs: str) -> list[str]:
        """What the operator has asked for since then, its Lease apart."""
        return [
            f"{entry['verb']} {entry['requestURI']}"
            for entry in itertools.islice(self.plane.audit(), self.entries, None)
            if entry["verb"] in verbs
            and entry.get("objectRef", {}).get("namespace") == self.chats.namespace
            and entry.get("objectRef", {}).get("resource") != "leases"
            and entry.get("userAgent", "") == "visionchat-operator"
        ]


@pytest.fixture(scope="session")
def quiet(
    plane: ControlPlane, operators_rights: Path, redis: EmbeddedRedis, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Quiet]:
    """Begins with the first test that wants it, so that the others' time is quiet time too."""
    with ExitStack() as stack:
        namespace = stack.enter_context(new_namespace(plane.api))
        node = stack.enter_context(
            playing(PlayedNode(plane.api, namespace, redis.url, turn_seconds=1, report_seconds=15))
        )
        log = tmp_path_factory.mktemp("quiet") / "operator.log"
        flags = ["--redis-url", redis.url, "--head-url", node.head_url, "--lease-namespace", namespace]
        operator = OperatorProcess(operators_rights, namespace, log, flags)
        operator.start()
        stack.callback(operator.stop)
        chats = Chats(plane.api, namespace)
        chats.create()
        eventually(lambda: chats.ready(1) and chats.condition("Progressing")[0] == "False", "everything is settled")
        time.sleep(3)  # what is on its way may still arrive
        quiet = Quiet(plane, chats, operator)
        quiet.begin()
        yield quiet


def eventually(holds: Callable[[], Any], what: str, seconds: float = 30) -> None:
    """Return as soon as it holds; fail, saying what did not come true."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        if holds():
            return
        time.sleep(0.05)
    raise AssertionError(f"did not come true within {seconds} s: {what}")
