"""The operator dies at any point between two things it does; the next one brings the same to its end.

Runs the operator's parts in this process, without watches: each life lists the cluster first. A life is cut off right
after its n-th call to the API server or to Ray, for every n until a whole life has no n-th call.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

import httpx
import pytest

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
    async with connected(plane.kubeconfig) as api, httpx.AsyncClient(trust_env=False) as http:
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


def shape(chats: Chats, name: str) -> dict[str, Any]:
    """What is there in the end, without what differs by nature."""
    kinds = [
        ("api/v1", "pods"),
        ("api/v1", "services"),
        ("api/v1", "configmaps"),
        ("api/v1", "serviceaccounts"),
        ("apis/apps/v1", "deployments"),
        ("apis/policy/v1", "poddisruptionbudgets"),
        ("apis/networking.k8s.io/v1", "networkpolicies"),
        ("apis/networking.k8s.io/v1", "ingresses"),
    ]
    found: dict[str, Any] = {}
    for group, kind in kinds:
        for item in chats.all_of(group, kind):
            if item["metadata"]["name"].startswith(name):
                body = item.get("spec") or item.get("data")
                body = {k: v for k, v in body.items() if k not in ("clusterIP", "clusterIPs")} if body else body
                labels = item["metadata"].get("labels")
                found[f"{kind}/{item['metadata']['name'].replace(name, 'X')}"] = repr((body, labels)).replace(name, "X")
    return found


SPEC: dict[str, Any] = {
    "scaling": {"policy": "Manual"},
    "replicas": 2,
    "pinning": {"mode": "Always"},
    "gateway": {"kind": "Ingress", "host": "a.example"},
    "queue": {"deleteWithResource": True},
}


def lives(
    plane: ControlPlane, node: PlayedNode, redis: EmbeddedRedis, chats: Chats, name: str, cut: int | None
) -> bool:
    """Create, shrink, delete; each step with a life that is cut off and one that is not. Whether any was cut."""
    key, was_cut = Key(chats.namespace, name), False

    def step(done: Callable[[], bool]) -> None:
        nonlocal was_cut
        try:
            asyncio.run(live(plane, node, redis.url, key, Scissors(cut), done))
        except Killed:
            was_cut = True
            asyncio.run(live(plane, node, redis.url, key, Scissors(None), done))

    chats.create(name, **SPEC)
    step(lambda: chats.ready(2, name) and chats.condition("Progressing", name)[0] == "False")
    shapes[cut] = shape(chats, name)
    chats.change(name, replicas=1, gateway={"kind": "None", "host": None})
    step(lambda: chats.ready(1, name) and not chats.all_of("apis/networking.k8s.io/v1", "ingresses"))
    assert len(chats.pods()) == 1
    chats.api.delete(f"{chats.path}/{name}")
    step(lambda: chats.get(name) is None)
    assert chats.all_of("api/v1", "pods") == []
    for group, kind in (("api/v1", "services"), ("api/v1", "configmaps"), ("api/v1", "secrets")):
        for item in chats.all_of(group, kind):  # no garbage collector runs in this tier
            chats.api.delete(f"/{group}/namespaces/{chats.namespace}/{kind}/{item['metadata']['name']}")
    return was_cut


shapes: dict[int | None, dict[str, Any]] = {}


def test_cut_off_anywhere_it_ends_the_same(
    plane: ControlPlane, node: PlayedNode, redis: EmbeddedRedis, chats: Chats
) -> None:
    shapes.clear()
    assert not lives(plane, node, redis, chats, "whole", None)
    assert len(shapes[None]) > 10
    for cut in range(1, LONGEST_LIFE):
        if not lives(plane, node, redis, chats, f"cut{cut}", cut):
            assert cut > 20  # the walk has seen every call
            return
        assert shapes[cut] == shapes[None], f"cut off after call {cut}"
    pytest.fail(f"a life had more than {LONGEST_LIFE} calls")
