"""CPUs of their own: asked for by the queue, refused by kubelets, told by what replicas report."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from support.cluster_fixtures import Chats, Jobs, eventually
from support.operator_life import Lives, clock
from support.operator_process import OperatorProcess
from support.played_node import PlayedNode
from visionchat_operator.world import Key
from visionchat_serve.redis_server import EmbeddedRedis

pytestmark = pytest.mark.usefixtures("quiet")


def test_the_queue_turns_pinning_on_and_off(
    operator: OperatorProcess, node: PlayedNode, chats: Chats, jobs: Jobs
) -> None:
    pinning = {"mode": "QueueDepth", "pinAbove": 3, "unpinBelow": 1, "dwellSeconds": 3}
    chats.create(pinning=pinning)
    eventually(lambda: chats.ready(1), "one replica is ready")
    assert chats.status()["mode"] == "Shared"
    jobs.submit(5)
    eventually(lambda: chats.condition("CPUPinned") == ("True", "Pinned"), "the replica is pinned")
    eventually(lambda: chats.ready(1), "the shared one is gone")
    (pod,) = chats.pods()
    resources = pod["spec"]["containers"][0]["resources"]
    assert resources["requests"] == resources["limits"]
    assert pod["status"]["qosClass"] == "Guaranteed"
    (replica,) = chats.status()["replicaList"]
    assert replica["threads"] == 2
    assert replica["cpuset"] in ("0-1", "2-3", "4-5")
    assert chats.status()["replicas"]["pinned"] == 1
    jobs.cancel_all()
    eventually(lambda: chats.status()["mode"] == "Shared", "the mode is shared again")
    eventually(lambda: chats.ready(1) and chats.status()["replicas"]["shared"] == 1, "and so is the replica")
    assert [len(chats.events(reason)) for reason in ("ModePinned", "ModeShared")] == [1, 1]


def test_a_kubelet_that_does_not_pin_is_told_by_the_reports(
    operator: OperatorProcess, node: PlayedNode, chats: Chats
) -> None:
    node.pins = False
    chats.create(pinning={"mode": "Always"})
    eventually(lambda: chats.condition("CPUPinned") == ("False", "NodePolicyNone"), "the reason is found")
    eventually(lambda: chats.ready(1), "and it serves all the same")
    assert chats.status()["replicas"]["pinned"] == 0


def test_a_refusal_falls_back_and_is_said_once(operator: OperatorProcess, node: PlayedNode, chats: Chats) -> None:
    node.refuse = "SMTAlignmentError"
    chats.create(pinning={"mode": "Always"})
    eventually(lambda: chats.ready(1), "a shared replica serves")
    assert chats.condition("CPUPinned") == ("False", "SMTAlignmentError")
    assert chats.status()["replicas"]["shared"] == 1
    told = [e for e in chats.events("SMTAlignmentError") if "refused to pin" in e["message"]]
    assert len(told) == 1
    assert chats.status()["pinning"]["refusals"] == 1


def test_a_refusal_waits_where_the_spec_says_so(operator: OperatorProcess, node: PlayedNode, chats: Chats) -> None:
    node.refuse = "UnexpectedAdmissionError"
    chats.create(pinning={"mode": "Always", "fallback": "Wait"})
    eventually(lambda: chats.condition("Degraded") == ("True", "UnexpectedAdmissionError"), "it says why it waits")
    eventually(lambda: not chats.pods(), "no pod is made again and again")
    assert chats.status()["pinning"]["refusals"] == 1


class Clock:
    """The operator's, which a test may put forward."""

    def __init__(self) -> None:
        self.ahead = timedelta(0)

    def __call__(self) -> datetime:
        return clock() + self.ahead


@pytest.mark.parametrize("reason", ["SMTAlignmentError", "UnexpectedAdmissionError", "OutOfcpu"])
def test_a_node_that_refuses_is_asked_ever_more_rarely(
    operators_rights: Path, node: PlayedNode, redis: EmbeddedRedis, chats: Chats, reason: str
) -> None:
    """30 s after the first refusal, 60 s after the second, 120 s after the third; an event for each."""
    now = Clock()
    lives = Lives(operators_rights, node, redis.url, Key(chats.namespace, "demo"), now)
    node.refuse = reason
    chats.create(pinning={"mode": "Always"})
    tried: set[str] = set()

    def refusals() -> int:
        tried.update(pod["metadata"]["uid"] for pod in chats.pods() if mode(pod) == "Pinned")
        return int(chats.status().get("pinning", {}).get("refusals", 0))

    def settled(number: int) -> bool:
        shared = [mode(pod) for pod in chats.pods()] == ["Shared"]
        return refusals() == number and shared and chats.ready(1)

    assert lives.live(lambda: settled(1))
    for number, seconds in enumerate((30, 60, 120), start=1):
        now.ahead += timedelta(seconds=seconds - 10)
        assert lives.live(Turns(10, lambda n=number: (refusals(), len(tried)) == (n, n)))  # not yet
        now.ahead += timedelta(seconds=15)
        assert lives.live(lambda number=number: settled(number + 1))
        assert chats.condition("CPUPinned") == ("False", reason)
        told = [event for event in chats.events(reason) if "refused to pin" in event["message"]]
        assert len(told) == number + 1
    assert len(tried) == 4
    node.refuse = None
    now.ahead += timedelta(seconds=300)
    assert lives.live(lambda: chats.ready(1) and [mode(pod) for pod in chats.pods()] == ["Pinned"])
    assert lives.live(lambda: chats.condition("CPUPinned") == ("True", "Pinned"))
    assert refusals() == 0


class Turns:
    """So many turns of an operator, each of which must leave it true."""

    def __init__(self, number: int, holds: Callable[[], bool]) -> None:
        self._left, self._holds = number, holds

    def __call__(self) -> bool:
        assert self._holds()
        self._left -= 1
        return self._left < 0


def mode(pod: dict[str, Any]) -> str:
    return str(pod["metadata"]["labels"]["visionchat.dev/mode"])
