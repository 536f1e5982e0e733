"""Something is gone and comes back: the operator itself, Redis, a head, a replica, a node."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any

import httpx

from support.cluster_fixtures import FOUR, Chats, Jobs, Start, eventually, keys
from support.control_plane import ControlPlane
from support.operator_life import Lives, clock
from support.operator_process import OperatorProcess
from support.played_node import PlayedNode
from visionchat_operator.leader import LEASE_SECONDS, RETRY_SECONDS
from visionchat_operator.world import Key
from visionchat_serve.redis_server import EmbeddedRedis

TWO = {"policy": "Manual", "minReplicas": 2, "maxReplicas": 3}
EDITION = {"env": [{"name": "EDITION", "value": "2"}]}


# --- the operator ---


def test_an_operator_that_was_away_finds_its_way(
    start_operator: Start, node: PlayedNode, chats: Chats, jobs: Jobs
) -> None:
    first = start_operator()
    chats.create(scaling=FOUR)
    eventually(lambda: chats.ready(1), "one replica is ready")
    assert first.stop() == 0
    jobs.submit(20)
    chats.api.delete(f"/api/v1/namespaces/{chats.namespace}/services/demo")
    chats.change(suspend=False, cpusPerReplica=3)
    start_operator()
    eventually(lambda: chats.ready(4), "four replicas are ready", seconds=60)
    eventually(lambda: chats.condition("Progressing")[0] == "False", "and new", seconds=60)
    assert {p["spec"]["containers"][0]["resources"]["limits"]["cpu"] for p in chats.pods()} == {"3"}
    assert chats.api.get(f"/api/v1/namespaces/{chats.namespace}/services/demo")


def test_what_was_deleted_while_the_operator_was_away_is_gone(
    start_operator: Start, node: PlayedNode, chats: Chats
) -> None:
    """Owner references and the cluster's garbage collector need no operator."""
    first = start_operator()
    chats.create(gateway={"kind": "Ingress", "host": "a.example"})
    eventually(lambda: chats.ready(1), "one replica is ready")
    assert first.stop() == 0
    chats.api.delete(f"{chats.path}/demo")
    second = start_operator()
    eventually(lambda: "leading as" in second.log(), "the operator is back")
    eventually(lambda: not left(chats), "nothing is left of it")
    assert chats.get() is None
    assert second.metric("visionchat_operator_errors_total") == 0


def test_a_queue_that_is_to_go_waits_for_an_operator_that_is_away(
    start_operator: Start, node: PlayedNode, chats: Chats, jobs: Jobs, redis: EmbeddedRedis
) -> None:
    first = start_operator()
    chats.create(queue={"deleteWithResource": True})
    eventually(lambda: chats.ready(1), "one replica is ready")
    jobs.submit(2)
    assert first.stop() == 0
    chats.api.delete(f"{chats.path}/demo")
    assert (chats.get() or {})["metadata"]["deletionTimestamp"]
    assert keys(redis.url, f"{chats.namespace}.demo")
    start_operator()
    eventually(lambda: chats.get() is None, "it is gone")
    assert keys(redis.url, f"{chats.namespace}.demo") == []
    eventually(lambda: not left(chats), "and nothing is left of it")


def test_another_one_of_the_same_name_gets_objects_of_its_own(
    start_operator: Start, node: PlayedNode, chats: Chats
) -> None:
    """Deleted and created again while the operator is away: what the old one owned goes with it."""
    first = start_operator()
    old = chats.create()
    eventually(lambda: chats.ready(1), "one replica is ready")
    assert first.stop() == 0
    chats.api.delete(f"{chats.path}/demo")
    new = chats.create(replicas=2, scaling={"policy": "Manual"})
    node.deployed.clear()
    start_operator()
    eventually(lambda: chats.ready(2), "the new one is ready", seconds=60)
    assert old["metadata"]["uid"] != new["metadata"]["uid"]

    def owners() -> set[str]:
        return {owner["uid"] for item in left(chats) for owner in item["metadata"].get("ownerReferences", ())}

    eventually(lambda: owners() == {new["metadata"]["uid"]}, "nothing belongs to the old one")
    eventually(lambda: chats.ready(2), "and that is how it stays")


def left(chats: Chats) -> list[dict[str, Any]]:
    """What belongs to any VisionChat."""
    kinds = (
        ("api/v1", "pods"),
        ("api/v1", "services"),
        ("api/v1", "configmaps"),
        ("api/v1", "secrets"),
        ("api/v1", "serviceaccounts"),
        ("apis/apps/v1", "deployments"),
        ("apis/policy/v1", "poddisruptionbudgets"),
        ("apis/networking.k8s.io/v1", "networkpolicies"),
        ("apis/networking.k8s.io/v1", "ingresses"),
    )
    return [item for group, kind in kinds for item in chats.all_of(group, kind)]


def test_the_other_operator_takes_over_in_the_middle_of_a_roll(
    plane: ControlPlane, start_operator: Start, node: PlayedNode, chats: Chats
) -> None:
    """Killed with -9: the Lease has to run out. No pod is made twice, and never more at once than one too many."""
    first = start_operator()
    eventually(lambda: "leading as" in first.log(), "the first leads")
    second = start_operator()
    chats.create(scaling=TWO, replicas=3)
    eventually(lambda: chats.ready(3), "three replicas are ready")
    assert "leading as" not in second.log()
    assert second.page("/healthz").status_code == 200
    with most_pods(chats) as most:
        chats.change(podTemplate=EDITION)
        eventually(lambda: len(chats.events("Replaced")) >= 1, "the roll has begun")
        first.kill()
        killed = time.monotonic()
        allowed = LEASE_SECONDS + 2 * RETRY_SECONDS
        eventually(lambda: "leading as" in second.log(), "the second leads", seconds=allowed)
        print(f"the other leads {time.monotonic() - killed:.1f} s after the first was killed")
        eventually(lambda: chats.ready(3) and all(is_new(pod) for pod in chats.pods()), "the roll ends", seconds=60)
    assert len(most) <= 4
    made = [
        entry
        for entry in plane.audit()
        if entry["verb"] == "create"
        and entry["objectRef"].get("resource") == "pods"
        and "subresource" not in entry["objectRef"]
        and entry["objectRef"]["namespace"] == chats.namespace
        and entry["responseStatus"]["code"] == 201
    ]
    assert len(made) == 3 + 3


def test_an_operator_that_stops_lets_the_other_lead_at_once(start_operator: Start, node: PlayedNode) -> None:
    first = start_operator()
    eventually(lambda: "leading as" in first.log(), "the first leads")
    second = start_operator()
    eventually(lambda: answers(second), "the second waits")
    assert first.stop() == 0
    eventually(lambda: "leading as" in second.log(), "the second leads", seconds=3 * RETRY_SECONDS)


def answers(operator: OperatorProcess) -> bool:
    try:
        return operator.page("/healthz").status_code == 200
    except httpx.HTTPError:
        return False


def is_new(pod: dict[str, Any]) -> bool:
    return EDITION["env"][0] in pod["spec"]["containers"][0]["env"]


@contextmanager
def most_pods(chats: Chats) -> Iterator[list[str]]:
    """Names of the replicas' pods, at the moment of the block when there were most that were not going."""
    most: list[str] = []
    stop = threading.Event()

    def watch() -> None:
        while not stop.wait(0.05):
            now = [pod["metadata"]["name"] for pod in chats.pods()]
            assert len(now) == len(set(now))
            if len(now) > len(most):
                most[:] = now

    thread = threading.Thread(target=watch)
    thread.start()
    try:
        yield most
    finally:
        stop.set()
        thread.join()


# --- Redis ---


def test_redis_away_and_back(
    start_operator: Start, plane: ControlPlane, node: PlayedNode, chats: Chats, tmp_path: Path
) -> None:
    with EmbeddedRedis(tmp_path / "other") as other:
        node.redis_url = other.url
        start_operator(["--redis-url", other.url])
        chats.create(scaling=FOUR)
        eventually(lambda: chats.ready(1), "one replica is ready")
        other.stop()
        eventually(lambda: chats.condition("LoadKnown") == ("False", "QueueUnreachable"), "its absence is seen")
        assert chats.status()["replicas"]["desired"] == 1
        assert len(chats.pods()) == 1
        other.start()
        eventually(lambda: chats.condition("LoadKnown") == ("True", "QueueAnswers"), "it is back")


# --- the head (played: see `played_node`) ---


def test_a_head_away_and_back(operator: OperatorProcess, node: PlayedNode, chats: Chats) -> None:
    """Replicas are left alone meanwhile; a head that has forgotten everything is told the application anew."""
    chats.create(scaling={"policy": "Manual"}, replicas=2)
    eventually(lambda: chats.ready(2), "two replicas are ready")
    before = {pod["metadata"]["uid"] for pod in chats.pods()}
    node.heads_away.add("demo")
    eventually(lambda: chats.condition("Ready") == ("False", "HeadNotReady"), "its absence is seen")
    chats.change(replicas=3)
    eventually(lambda: len(chats.pods()) == 3, "what needs no head goes on")
    node.deployed.clear()
    node.target.clear()
    node.heads_away.clear()
    eventually(lambda: chats.condition("Ready") == ("True", "Serving"), "it is back")
    eventually(lambda: chats.ready(3) and node.target.get("demo") == 3, "Ray runs all replicas")
    assert before <= {pod["metadata"]["uid"] for pod in chats.pods()}


# --- a replica ---


def test_a_replica_that_is_lost_is_replaced(operator: OperatorProcess, node: PlayedNode, chats: Chats) -> None:
    chats.create(scaling={"policy": "Manual"}, replicas=1)
    eventually(lambda: chats.ready(1), "one replica is ready")
    (pod,) = chats.pods()
    node.holds_warm = True
    path = f"/api/v1/namespaces/{chats.namespace}/pods/{pod['metadata']['name']}"
    chats.api.delete(path, gracePeriodSeconds=0)
    eventually(lambda: chats.condition("Ready") == ("False", "NoReplicaReady"), "the status says so")
    assert chats.condition("Progressing") == ("True", "Scaling")
    node.holds_warm = False
    eventually(lambda: chats.ready(1) and chats.condition("Ready")[0] == "True", "another one serves")
    assert chats.pods()[0]["metadata"]["uid"] != pod["metadata"]["uid"]


def test_a_pod_that_does_not_end_is_said_and_holds_nothing_up(
    operators_rights: Path, node: PlayedNode, redis: EmbeddedRedis, chats: Chats
) -> None:
    """Its node is gone, say. It is never deleted by force."""
    ahead = timedelta(0)
    lives = Lives(operators_rights, node, redis.url, Key(chats.namespace, "demo"), lambda: clock() + ahead)
    chats.create(scaling=TWO, replicas=3)
    assert lives.live(lambda: chats.ready(3))
    node.busy = {"demo-worker-2"}  # its kubelet says nothing any more
    path = f"/api/v1/namespaces/{chats.namespace}/pods/demo-worker-2"
    chats.api.delete(path)
    stuck = chats.api.get(path)["metadata"]
    chats.change(podTemplate=EDITION)
    assert lives.live(lambda: len(chats.pods()) == 3 and chats.status()["replicas"]["ready"] == 3)
    assert not any(is_new(pod) for pod in chats.pods()[:2]), "a pod that drains is waited for"
    assert chats.condition("Degraded")[0] == "False"
    ahead = timedelta(seconds=stuck["deletionGracePeriodSeconds"] + 61)
    assert lives.live(lambda: all(is_new(pod) for pod in chats.pods()) and chats.status()["replicas"]["ready"] == 3)
    assert chats.condition("Degraded") == ("True", "PodStuck")
    assert len(chats.events("PodStuck")) == 1
    assert chats.api.get(path)["metadata"]["uid"] == stuck["uid"]
    node.busy = set()
    assert lives.live(lambda: chats.ready(3) and chats.condition("Degraded")[0] == "False")
