"""The operator's smaller parts: the store, drift, nodes, Ray's answers, pods as they are seen."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

from visionchat_operator import nodes, ray_head
from visionchat_operator.api import VisionChatSpec
from visionchat_operator.conditions import cpu_pinned, is_pinned
from visionchat_operator.drift import differs, signed
from visionchat_operator.names import MODE_LABEL, OWNER_LABEL
from visionchat_operator.observe import workers_of
from visionchat_operator.pinning import PinningDecision, PinningState
from visionchat_operator.plan import coarse, cpu_list, serve_target
from visionchat_operator.status_api import Mode, VisionChatStatus
from visionchat_operator.store import Store
from visionchat_operator.world import Key, Manifest, Node, Observed, RayState, Ref, Worker
from visionchat_serve.messages import ReplicaReport

KEY = Key("n", "demo")


def thing(name: str, version: int, uid: str = "u", **metadata: Any) -> Manifest:
    labels = {OWNER_LABEL: "demo"}
    return {
        "metadata": {"namespace": "n", "name": name, "uid": uid, "resourceVersion": str(version), "labels": labels}
        | metadata
    }


def test_the_store_keeps_the_newest() -> None:
    store = Store()
    assert store.put("Pod", thing("a", 5))
    assert not store.put("Pod", thing("a", 4))
    assert not store.put("Pod", thing("a", 5))
    assert store.put("Pod", thing("a", 6))
    assert store.children(KEY)[Ref("Pod", "a")]["metadata"]["resourceVersion"] == "6"


def test_what_was_deleted_does_not_come_back_late() -> None:
    store = Store()
    store.put("Pod", thing("a", 5))
    assert store.drop("Pod", thing("a", 7))
    assert not store.put("Pod", thing("a", 6))
    assert store.put("Pod", thing("a", 8, uid="another"))
    assert not store.drop("Pod", thing("a", 7))
    assert Ref("Pod", "a") in store.children(KEY)


def test_a_listing_mends_what_the_watch_missed() -> None:
    store = Store()
    store.put("Pod", thing("ghost", 5))
    store.put("Pod", thing("same", 6))
    missed, any_missed = store.replace("Pod", [thing("same", 6), thing("new", 9)], None)
    assert any_missed
    assert missed == [KEY, KEY]
    assert {ref.name for ref in store.children(KEY)} == {"same", "new"}
    assert store.replace("Pod", [thing("same", 6), thing("new", 9)], None) == ([], False)


def test_a_listing_of_one_namespace_leaves_the_others_alone() -> None:
    store = Store()
    store.put("Pod", thing("a", 5))
    store.put("Pod", thing("b", 5, namespace="other"))
    store.replace("Pod", [], "n")
    assert store.get("Pod", "other", "b") is not None
    assert store.get("Pod", "n", "a") is None


def service(**spec: Any) -> Manifest:
    return {"kind": "Service", "metadata": {"name": "s", "namespace": "n"}, "spec": spec}


def test_defaults_and_foreign_fields_are_no_drift() -> None:
    wanted = signed(service(selector={"a": "b"}, ports=[{"name": "http", "port": 80}]))
    live = signed(service(selector={"a": "b"}, ports=[{"name": "http", "port": 80, "protocol": "TCP"}], type="X"))
    live["metadata"]["annotations"] = wanted["metadata"]["annotations"] | {"theirs": "too"}
    live["spec"]["ports"].append({"name": "foreign", "port": 1})
    assert not differs(wanted, live)


@pytest.mark.parametrize(
    "changed",
    [
        service(selector={"a": "c"}, ports=[{"name": "http", "port": 80}]),
        service(selector={"a": "b"}, ports=[{"name": "http", "port": 81}]),
        service(selector={"a": "b"}, ports=[]),
        service(ports=[{"name": "http", "port": 80}]),
    ],
)
def test_a_changed_field_of_ours_is_drift(changed: Manifest) -> None:
    wanted = signed(service(selector={"a": "b"}, ports=[{"name": "http", "port": 80}]))
    changed["metadata"]["annotations"] = wanted["metadata"]["annotations"]
    assert differs(wanted, changed)
    assert differs(wanted, None)


def test_a_field_that_is_no_longer_wanted_is_drift() -> None:
    before, after = signed(service(selector={"a": "b"}, type="LoadBalancer")), signed(service(selector={"a": "b"}))
    assert differs(after, before)


def node(name: str, cpu: str, **fields: Any) -> Manifest:
    status = {"allocatable": {"cpu": cpu}, "capacity": {"cpu": "8"}}
    return {"metadata": {"name": name, "labels": {"zone": "a"}}, "spec": fields, "status": status}


def pinned_pod(owner: str, on: str, cpu: str) -> Manifest:
    labels = {OWNER_LABEL: owner, MODE_LABEL: "Pinned"}
    containers = [{"resources": {"requests": {"cpu": cpu}}}]
    return {
        "metadata": {"namespace": "n", "name": owner, "labels": labels},
        "spec": {"nodeName": on, "containers": containers},
    }


def test_what_others_have_pinned_is_not_there_for_us() -> None:
    pods = [pinned_pod("other", "x", "2"), pinned_pod("demo", "x", "4")]
    assert nodes.nodes_for(KEY, VisionChatSpec(), [node("x", "7500m")], pods) == (Node("x", 5, 8),)


def test_only_nodes_that_the_replicas_may_run_on_count() -> None:
    taint = {"key": "gpu", "effect": "NoSchedule"}
    all_nodes = [node("a", "4"), node("b", "4", unschedulable=True), node("c", "4", taints=[taint])]
    assert [n.name for n in nodes.nodes_for(KEY, VisionChatSpec(), all_nodes, [])] == ["a"]
    tolerant = VisionChatSpec.model_validate({"podTemplate": {"tolerations": [{"key": "gpu", "operator": "Exists"}]}})
    assert [n.name for n in nodes.nodes_for(KEY, tolerant, all_nodes, [])] == ["a", "c"]
    picky = VisionChatSpec.model_validate({"podTemplate": {"nodeSelector": {"zone": "b"}}})
    assert nodes.nodes_for(KEY, picky, all_nodes, []) == ()


def test_rays_answer_is_understood() -> None:
    (app,) = ray_head.application(3)["applications"]
    replicas = [{"state": "RUNNING", "node_ip": "10.0.0.1"}, {"state": "STARTING", "node_ip": "10.0.0.2"}]
    deployments = {"Model": {"target_num_replicas": 2, "replicas": replicas}}
    page = {"applications": {"visionchat": {"deployed_app_config": app, "deployments": deployments}}}
    assert ray_head.read_state(page) == RayState(True, 2, frozenset({"10.0.0.1"}))
    assert ray_head.read_state({"applications": {}}) == RayState(False)
    page["applications"]["visionchat"]["deployed_app_config"] = app | {"import_path": "older:app"}
    assert not ray_head.read_state(page).deployed


def test_an_application_without_replicas_cannot_be_put() -> None:
    (app,) = ray_head.application(0)["applications"]
    assert app["deployments"][0]["num_replicas"] == 1


def worker(name: str, **fields: Any) -> Worker:
    from support.small_cluster import START

    return Worker(name, f"uid-{name}", fields.pop("mode", Mode.PINNED), "r", START, **fields)


def test_serve_gets_one_replica_for_each_pod_and_keeps_one_for_a_pod_that_is_not_drained_yet() -> None:
    staying = worker("a", ready=True, ip="1")
    going = worker("b", ready=True, ip="2", deleting=True)
    starting = worker("c", ip="3")
    for running, expected in (({"1", "2"}, 2), ({"1"}, 1)):
        seen = Observed(
            key=KEY,
            uid="1",
            generation=1,
            spec=VisionChatSpec(),
            status=VisionChatStatus(),
            workers=(staying, going, starting),
            ray=RayState(True, 2, frozenset(running)),
        )
        assert serve_target(seen) == expected


ASKED = PinningDecision(Mode.PINNED, 1, False, "Pinned", "", PinningState(Mode.PINNED))


@pytest.mark.parametrize(
    ("seen", "reason"),
    [
        (worker("a", node="x", cpuset=(2, 3), serving=True), "Pinned"),
        (worker("a", node="x", cpuset=tuple(range(8))), "NodePolicyNone"),
        (worker("a", node="x", cpuset=None), "Pending"),
        (worker("a", node="x", cpuset=(2,)), "CpusetDiffers"),
        (worker("a", node="x", cpuset=tuple(range(8)), containers=2), "SidecarInjected"),
        (worker("a", node="x", cpuset=(0, 1), mode=Mode.SHARED), "Switching"),
    ],
)
def test_pinned_is_what_the_replica_reports(seen: Worker, reason: str) -> None:
    finding = cpu_pinned([seen], [Node("x", 7, 8)], 2, ASKED)
    assert (finding.holds, finding.reason) == (reason == "Pinned", reason)


def test_cpus_that_two_replicas_report_are_nobodys_own() -> None:
    one, two = worker("a", node="x", cpuset=(2, 3)), worker("b", node="x", cpuset=(3, 4))
    assert not is_pinned(one, [one, two], None, 2)
    elsewhere = worker("b", node="y", cpuset=(3, 4))
    assert is_pinned(one, [one, elsewhere], None, 2)


def pod(name: str, **status: Any) -> Manifest:
    labels = {"app.kubernetes.io/component": "worker", MODE_LABEL: "Pinned"}
    metadata = {"name": name, "uid": name, "labels": labels, "creationTimestamp": "2026-01-01T00:00:00Z"}
    return {"metadata": metadata, "spec": {"containers": [{}]}, "status": status}


def report(pod: str, running: int = 0) -> ReplicaReport:
    return ReplicaReport("r", "torch", "m", "f", "r", 2, (2, 3), 100, 1, 0.0, running, pod)


def test_a_pod_serves_when_it_is_ready_and_reports() -> None:
    ready = [{"type": "Ready", "status": "True"}]
    pods = [pod("a", conditions=ready, podIP="1"), pod("b", conditions=ready), pod("c")]
    seen = workers_of(pods, [report("a", 1), report("c")], None)
    assert [w.serving for w in seen] == [True, False, False]
    assert (seen[0].jobs, seen[0].cpuset, seen[0].threads) == (1, (2, 3), 2)
    without_redis = workers_of(pods, None, RayState(True, 1, frozenset({"1"})))
    assert [w.serving for w in without_redis] == [True, False, False]
    without_both = workers_of(pods, None, None)
    assert [w.serving for w in without_both] == [True, True, False]


def test_a_pod_that_the_kubelet_refused() -> None:
    (seen,) = workers_of([pod("a", phase="Failed", reason="SMTAlignmentError")], [], None)
    assert (seen.failed, seen.failure) == (True, "SMTAlignmentError")


def test_texts() -> None:
    assert cpu_list((3, 0, 1, 2, 6)) == "0-3,6"
    assert [coarse(timedelta(seconds=s)) for s in (0, 7, 34, 99, 149)] == [0, 7, 30, 95, 100]
