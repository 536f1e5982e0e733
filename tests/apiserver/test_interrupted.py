"""The operator dies at any point between two things it does; the next one brings the same to its end.

Runs the operator's parts in this process, without watches: each life lists the cluster first. A life is cut off right
after its n-th call to the API server or to Ray, for every n until a whole life has no n-th call.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

import pytest
from aiohttp import ClientSession

from support.cluster_fixtures import Chats
from support.control_plane import ControlPlane
from support.played_node import PlayedNode
from visionchat_operator.api import KIND
from visionchat_operator.apply import Applier
from visionchat_operator.environment import Defaults
from visionchat_operator.handlers import CHILD_KINDS, Watches
from visionchat_operator.kube import Kube, connected
from visionchat_operator.metrics import OperatorMetrics
from visionchat_operator.observe import Observer
from visionchat_operator.plan import PlanSettings, plan
from visionchat_operator.queues import Queues
from visionchat_operator.ray_head import RayHead
from visionchat_operator.resync import Resync
from visionchat_operator.store import Store
from visionchat_operator.world import Key
from visionchat_serve.redis_server import EmbeddedRedis

LIFE_SECONDS = 30
LONGEST_LIFE = 200  # calls


class Killed(BaseException):
    """Nothing in the operator may catch this, as nothing can catch a SIGKILL."""


class Scissors:
    """Cuts the thread after `calls` calls."""

    def __init__(self, calls: int | None) -> None:
        self.left = calls

    def snip(self) -> None:
        if self.left is not None:
            self.left -= 1
            if self.left <= 0:
                raise Killed


class CutKube(Kube):
    scissors: Scissors

    async def _call(self, verb: str, *args: Any, **kwargs: Any) -> Any:
        answer = await super()._call(verb, *args, **kwargs)
        if verb != "GET":
            self.scissors.snip()
        return answer


class CutRay(RayHead):
    scissors: Scissors

    async def _call(self, verb: str, *args: Any, **kwargs: Any) -> Any:
        answer = await super()._call(verb, *args, **kwargs)
        if verb != "GET":
            self.scissors.snip()
        return answer


async def live(
    plane: ControlPlane, node: PlayedNode, redis_url: str, key: Key, scissors: Scissors, done: Callable[[], bool]
) -> None:
    """One operator's life, until `done`. Raises `Killed`."""
    settings = PlanSettings(Defaults(redis_url=redis_url), key.namespace)
    metrics, store, queues = OperatorMetrics(), Store(), Queues()
    async with connected(plane.kubeconfig) as api, ClientSession() as http:
        kube, ray = CutKube(api, store, metrics), CutRay(http, node.head_url)
        kube.scissors = ray.scissors = scissors
        observer = Observer(store, kube, queues, ray, settings, sees_nodes=False)
        applier = Applier(store, kube, queues, ray, observer, metrics)
        watches = Watches(store, lambda _: None, lambda: None)
        resync = Resync(kube, store, watches, metrics, lambda _: None, (KIND, *CHILD_KINDS), key.namespace)
        try:
            async with asyncio.timeout(LIFE_SECONDS):
                while not await asyncio.to_thread(done):
                    await resync.first()
                    if (seen := await observer.observe(key)) is not None:
                        now = datetime.now(UTC).replace(microsecond=0)
                        await applier.carry_out(plan(seen, settings, now), seen)
        finally:
            await queues.close()


KINDS = (
    ("api/v1", "pods"),
    ("api/v1", "services"),
    ("api/v1", "configmaps"),
    ("api/v1", "serviceaccounts"),
    ("apis/apps/v1", "deployments"),
    ("apis/policy/v1", "poddisruptionbudgets"),
    ("apis/networking.k8s.io/v1", "networkpolicies"),
    ("apis/networking.k8s.io/v1", "ingresses"),
    ("api/v1", "secrets"),
)
BY_NATURE = ("clusterIP", "clusterIPs", "nodeName")  # what differs from life to life


def shape(chats: Chats) -> dict[str, Any]:
    """What is there in the end."""
    return {
        f"{kind}/{item['metadata']['name']}": (_body(item), item["metadata"].get("labels"))
        for group, kind in KINDS
        for item in chats.all_of(group, kind)
    }


def _body(item: dict[str, Any]) -> dict[str, Any]:
    """A Secret's value is made up anew."""
    body = item.get("spec") or (sorted(item.get("data", {})) if item.get("type") == "Opaque" else item.get("data"))
    return {k: v for k, v in body.items() if k not in BY_NATURE} if isinstance(body, dict) else body


SPEC: dict[str, Any] = {
    "scaling": {"policy": "Manual"},
    "replicas": 2,
    "pinning": {"mode": "Always"},
    "gateway": {"kind": "Ingress", "host": "a.example"},
    "queue": {"deleteWithResource": True},
}


def lives(plane: ControlPlane, node: PlayedNode, redis: EmbeddedRedis, chats: Chats, cut: int | None) -> bool:
    """Create, shrink, delete; each step with a life that is cut off and one that is not. Whether any was cut."""
    key, was_cut = Key(chats.namespace, "demo"), False

    def step(done: Callable[[], bool]) -> None:
        nonlocal was_cut
        try:
            asyncio.run(live(plane, node, redis.url, key, Scissors(cut), done))
        except Killed:
            was_cut = True
            asyncio.run(live(plane, node, redis.url, key, Scissors(None), done))

    chats.create(**SPEC)
    step(lambda: chats.ready(2) and chats.condition("Progressing")[0] == "False")
    shapes[cut] = shape(chats)
    chats.change(replicas=1, gateway={"kind": "None", "host": None})
    step(lambda: chats.ready(1) and not chats.all_of("apis/networking.k8s.io/v1", "ingresses"))
    assert len(chats.pods()) == 1
    chats.api.delete(f"{chats.path}/demo")
    step(lambda: chats.get() is None)
    assert chats.all_of("api/v1", "pods") == []
    for group, kind in KINDS:
        for item in chats.all_of(group, kind):  # no garbage collector runs in this tier
            chats.api.delete(f"/{group}/namespaces/{chats.namespace}/{kind}/{item['metadata']['name']}")
    node.deployed.clear()  # the head went too
    return was_cut


shapes: dict[int | None, dict[str, Any]] = {}


def test_cut_off_anywhere_it_ends_the_same(
    plane: ControlPlane, node: PlayedNode, redis: EmbeddedRedis, chats: Chats
) -> None:
    shapes.clear()
    assert not lives(plane, node, redis, chats, None)
    assert len(shapes[None]) > 10
    for cut in range(1, LONGEST_LIFE):
        if not lives(plane, node, redis, chats, cut):
            assert cut > 20  # the walk has seen every call
            return
        assert shapes[cut] == shapes[None], f"cut off after call {cut}"
    pytest.fail(f"a life had more than {LONGEST_LIFE} calls")
