"""The operator dies at any point between two things it does; the next one brings the same to its end.

A life is cut off right after its n-th call to the API server, to Redis or to Ray, for every n until a whole life has no
n-th call.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from support.cluster_fixtures import Chats, Jobs, keys, new_namespace, playing
from support.control_plane import Api
from support.operator_life import Lives
from support.played_node import PlayedNode
from visionchat_operator.world import Key
from visionchat_serve.redis_server import EmbeddedRedis

LONGEST_LIFE = 200  # calls
LANES = 3

pytestmark = pytest.mark.usefixtures("quiet")

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


@dataclass
class Lane:
    """A namespace in which a part of the walk happens; `walked`: the last cut that each step has survived."""

    chats: Chats
    node: PlayedNode
    jobs: Jobs
    lives: Lives
    walked: list[int]

    def walk(self, cuts: range) -> None:
        """Once whole, to see what comes of it; then with cuts, until no step has as many calls as a cut wants."""
        plan, expected = steps(self.chats, self.jobs), list(self._uncut())
        assert len(expected[0]) > 10
        sweep(self.chats, self.node, self.jobs)
        unwalked = set(range(len(plan)))
        for cut in cuts:
            for number, step in enumerate(plan[: max(unwalked) + 1]):
                step.act()
                if number in unwalked and not self.lives.live(step.done, cut):
                    self.walked[number] = cut
                else:
                    unwalked.discard(number)
                assert self.lives.live(step.done)
                assert shape(self.chats) == expected[number], f"step {number}, cut off after call {cut}"
                assert number < len(plan) - 1 or self.keys() == []
            sweep(self.chats, self.node, self.jobs)
            if not unwalked:
                return
        raise AssertionError(f"a life had more than {LONGEST_LIFE} calls")

    def _uncut(self) -> Iterator[list[str]]:
        """What is there after each step when nobody is killed."""
        for number, step in enumerate(steps(self.chats, self.jobs)):
            step.act()
            assert self.lives.live(step.done)
            assert bool(self.keys()) == (number < 2)
            yield shape(self.chats)

    def keys(self) -> list[bytes]:
        return keys(self.lives.redis_url, f"{self.chats.namespace}.demo")


@pytest.fixture
def lanes(api: Api, operators_rights: Path, redis: EmbeddedRedis) -> Iterator[list[Lane]]:
    """Side by side, because a life mostly waits."""
    with ExitStack() as stack:
        found = []
        for _ in range(LANES):
            namespace = stack.enter_context(new_namespace(api))
            node = stack.enter_context(playing(PlayedNode(api, namespace, redis.url)))
            lives = Lives(operators_rights, node, redis.url, Key(namespace, "demo"))
            found.append(Lane(Chats(api, namespace), node, Jobs(redis.url, f"{namespace}.demo"), lives, [0, 0, 0]))
        yield found


def test_cut_off_anywhere_it_ends_the_same(lanes: list[Lane]) -> None:
    with ThreadPoolExecutor(LANES) as pool:
        cuts = (range(first, LONGEST_LIFE, LANES) for first in range(1, LANES + 1))
        walks = [pool.submit(lane.walk, some) for lane, some in zip(lanes, cuts, strict=True)]
        for walk in walks:
            walk.result()
    walked = [max(lane.walked[step] for lane in lanes) for step in range(3)]
    print("calls that a life was cut off after, by step:", walked)
    assert walked[0] > 35
    assert min(walked) > 15
