"""The operator dies at any point between two things it does; the next one brings the same to its end.

A life is cut off right after its n-th call to the API server, to Redis or to Ray, for every n until a whole life has no
n-th call.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from support.cluster_fixtures import Chats, Jobs, keys
from support.operator_life import Lives
from support.played_node import PlayedNode
from visionchat_operator.world import Key
from visionchat_serve.redis_server import EmbeddedRedis

LONGEST_LIFE = 200  # calls

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


def shape(chats: Chats) -> list[str]:
    """What is there; which of two replicas went is left to the second in which they were made."""
    found = [(kind, item) for group, kind in KINDS for item in chats.all_of(group, kind)]
    return sorted(re.sub(r"-worker-\d", "-worker-N", _text(kind, item)) for kind, item in found)


def _text(kind: str, item: dict[str, Any]) -> str:
    """A Secret's value is made up anew."""
    body = item.get("spec") or (sorted(item.get("data", {})) if item.get("type") == "Opaque" else item.get("data"))
    kept = {k: v for k, v in body.items() if k not in BY_NATURE} if isinstance(body, dict) else body
    return json.dumps([kind, item["metadata"]["name"], item["metadata"].get("labels"), kept], sort_keys=True)


@dataclass(frozen=True)
class Step:
    """Something that a user does, and what has to come of it."""

    act: Callable[[], Any]
    done: Callable[[], Any]


SPEC: dict[str, Any] = {
    "scaling": {"policy": "Manual"},
    "replicas": 2,
    "pinning": {"mode": "Always"},
    "gateway": {"kind": "Ingress", "host": "a.example"},
    "queue": {"deleteWithResource": True},
}
SMALLER: dict[str, Any] = {"replicas": 1, "gateway": {"kind": "None", "host": None}}


def steps(chats: Chats, jobs: Jobs) -> list[Step]:
    def create() -> None:
        chats.create(**SPEC)
        jobs.submit(1)

    def shrunk() -> bool:
        return chats.ready(1) and not chats.all_of("apis/networking.k8s.io/v1", "ingresses")

    return [
        Step(create, lambda: chats.ready(2) and chats.condition("Progressing")[0] == "False"),
        Step(lambda: chats.change(**SMALLER), shrunk),
        Step(lambda: chats.api.delete(f"{chats.path}/demo"), lambda: chats.get() is None and not shape(chats)),
    ]


def sweep(chats: Chats, node: PlayedNode, jobs: Jobs) -> None:
    """As if nothing had been there."""
    if chats.get() is not None:
        chats.api.merge(f"{chats.path}/demo", {"metadata": {"finalizers": None}})
        chats.api.delete(f"{chats.path}/demo")
    for group, kind in KINDS:
        for item in chats.all_of(group, kind):
            path = f"/{group}/namespaces/{chats.namespace}/{kind}/{item['metadata']['name']}"
            chats.api.delete(path, gracePeriodSeconds=0)
    jobs.cancel_all()
    node.deployed.clear()  # the head went too


def test_cut_off_anywhere_it_ends_the_same(
    operators_rights: Path, node: PlayedNode, redis: EmbeddedRedis, chats: Chats, jobs: Jobs
) -> None:
    lives = Lives(operators_rights, node, redis.url, Key(chats.namespace, "demo"))
    walked = [0, 0, 0]  # by step: how many cuts it has survived
    expected: list[list[str]] = []
    for number, step in enumerate(plan := steps(chats, jobs)):
        step.act()
        assert lives.live(step.done)
        expected.append(shape(chats))
        if number == 1:
            assert keys(redis, f"{chats.namespace}.demo")
    assert keys(redis, f"{chats.namespace}.demo") == []
    assert len(expected[0]) > 10
    sweep(chats, node, jobs)
    unwalked = set(range(len(plan)))
    for cut in range(1, LONGEST_LIFE):
        for number, step in enumerate(plan[: max(unwalked) + 1]):
            step.act()
            if number in unwalked and not lives.live(step.done, cut):
                walked[number] = cut
            else:
                unwalked.discard(number)
            assert lives.live(step.done)
            assert shape(chats) == expected[number], f"step {number}, cut off after call {cut}"
            if number == len(plan) - 1:
                assert keys(redis, f"{chats.namespace}.demo") == []
        sweep(chats, node, jobs)
        if not unwalked:
            break
    print("calls that a life was cut off after, by step:", walked)
    assert not unwalked, f"a life had more than {LONGEST_LIFE} calls"
    assert walked[0] > 35
    assert min(walked) > 15
