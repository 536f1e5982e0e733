"""The operator on a real API server and a real Redis: what it makes of a VisionChat, and how it keeps it."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path
from typing import Any

import pytest
import yaml

from support.cluster_fixtures import Chats, Start, eventually
from support.control_plane import Api, ControlPlane
from support.operator_process import OperatorProcess
from support.played_node import PlayedNode
from visionchat_serve.messages import ChatJob, Message, SamplingParams, TextPart
from visionchat_serve.redis_broker import RedisBroker
from visionchat_serve.redis_server import EmbeddedRedis

EXAMPLES = sorted((Path(__file__).parents[2] / "manifests" / "examples").glob("*.yaml"))
QUIET_SECONDS = 45  # longer than the operator ever waits before it plans again
FOUR = {"minReplicas": 1, "maxReplicas": 4, "targetQueueDepth": 2}


class Jobs:
    """Real jobs in the real queue of a VisionChat."""

    def __init__(self, url: str, queue: str) -> None:
        self._url, self._queue = url, queue
        self._sent: list[str] = []

    def submit(self, number: int) -> None:
        asyncio.run(self._submit(number))

    def cancel_all(self) -> None:
        asyncio.run(self._cancel_all())

    async def _submit(self, number: int) -> None:
        broker = RedisBroker.from_url(self._url, self._queue)
        for _ in range(number):
            now, name = time.time(), f"job-{len(self._sent)}"
            question = (Message("user", (TextPart("What?"),)),)
            await broker.submit(ChatJob(name, question, SamplingParams(), "tiny", 0, now, now + 600), [])
            self._sent.append(name)
        await broker.close()

    async def _cancel_all(self) -> None:
        broker = RedisBroker.from_url(self._url, self._queue)
        for name in self._sent:
            await broker.cancel(name)
        self._sent.clear()
        await broker.close()


@pytest.fixture
def jobs(redis: EmbeddedRedis, namespace: str) -> Jobs:
    return Jobs(redis.url, f"{namespace}.demo")


def writes(plane: ControlPlane, namespace: str) -> list[dict[str, Any]]:
    """Requests that change something in the namespace, by the operator; its Lease is another matter."""
    return [
        entry
        for entry in plane.audit()
        if entry["verb"] in ("create", "update", "patch", "delete")
        and entry.get("objectRef", {}).get("namespace") == namespace
        and entry.get("objectRef", {}).get("resource") != "leases"
        and entry.get("userAgent", "") == "visionchat-operator"
    ]


def test_a_visionchat_becomes_a_service(operator: OperatorProcess, node: PlayedNode, chats: Chats) -> None:
    chats.create()
    eventually(lambda: chats.ready(1), "one replica is ready")
    assert chats.condition("Ready") == ("True", "Serving")
    assert chats.condition("LoadKnown") == ("True", "QueueAnswers")
    assert chats.condition("CPUPinned") == ("False", "NotAsked")
    assert chats.status()["url"] == f"http://demo.{chats.namespace}.svc"
    assert chats.status()["observedGeneration"] == 1
    scale = chats.api.get(f"{chats.path}/demo/scale")
    assert scale["status"]["replicas"] == 1
    assert "app.kubernetes.io/component=worker" in scale["status"]["selector"]
    assert node.target["demo"] == 1
    (pod,) = chats.pods()
    owner = pod["metadata"]["ownerReferences"][0]
    assert (owner["kind"], owner["name"]) == ("VisionChat", "demo")
    assert operator.page("/healthz").status_code == 200


@pytest.mark.parametrize("file", EXAMPLES, ids=lambda file: file.stem)
def test_every_example_becomes_what_it_says(
    operator: OperatorProcess, node: PlayedNode, chats: Chats, file: Path
) -> None:
    for document in yaml.safe_load_all(file.read_text()):
        where = f"/api/v1/namespaces/{chats.namespace}/secrets" if document["kind"] == "Secret" else chats.path
        chats.api.create(where, document)
    name, spec = document["metadata"]["name"], document["spec"]
    eventually(lambda: chats.status(name).get("conditions"), "the operator has seen it")
    eventually(lambda: len(chats.all_of("api/v1", "services")) == 2, "its Services are there")
    wants = spec.get("gateway", {}).get("kind")
    if wants == "Ingress":
        eventually(lambda: chats.all_of("apis/networking.k8s.io/v1", "ingresses"), "its Ingress is there")
    if wants == "HTTPRoute":
        eventually(lambda: chats.all_of("apis/gateway.networking.k8s.io/v1", "httproutes"), "its HTTPRoute is there")
    if spec.get("model", {}).get("id") != "tiny" and "folder" not in spec.get("model", {}):
        eventually(lambda: chats.all_of("apis/batch/v1", "jobs"), "the model's Job is there")
        assert chats.status(name)["model"] == "Fetching"
        assert chats.pods() == []
        assert chats.condition("Progressing", name) == ("True", "FetchingModel")
    errors = [line for line in operator.log().splitlines() if "Traceback" in line or "API server answers" in line]
    assert errors == []


def test_the_model_is_fetched_before_replicas_start(operator: OperatorProcess, node: PlayedNode, chats: Chats) -> None:
    chats.create(model={"id": "some/model"})
    eventually(lambda: chats.all_of("apis/batch/v1", "jobs"), "the Job is there")
    (job,) = chats.all_of("apis/batch/v1", "jobs")
    assert chats.pods() == []
    now = "2026-01-01T00:00:00Z"
    done = [{"type": kind, "status": "True", "lastTransitionTime": now} for kind in ("SuccessCriteriaMet", "Complete")]
    status = {
        "succeeded": 1,
        "startTime": now,
        "completionTime": now,
        "conditions": done,
        "uncountedTerminatedPods": {},
    }
    path = f"/apis/batch/v1/namespaces/{chats.namespace}/jobs/{job['metadata']['name']}/status"
    chats.api.merge(path, {"status": status})
    eventually(lambda: chats.ready(1), "a replica runs the model")
    assert chats.status()["model"] == "Present"


def test_a_burst_is_seen_within_five_seconds(
    operator: OperatorProcess, node: PlayedNode, chats: Chats, jobs: Jobs
) -> None:
    chats.create(scaling=FOUR)
    eventually(lambda: chats.ready(1), "one replica is ready")
    jobs.submit(20)
    eventually(lambda: chats.status()["replicas"]["desired"] == 4, "four replicas are wanted", seconds=5)
    eventually(lambda: chats.ready(4), "four replicas are ready")
    assert chats.status()["queue"]["depth"] == 20
    assert node.target["demo"] == 4
    assert len(chats.events("QueueGrew")) == 1


def test_from_zero_and_back_to_zero(operator: OperatorProcess, node: PlayedNode, chats: Chats, jobs: Jobs) -> None:
    chats.create(scaling={"minReplicas": 0, "maxReplicas": 2, "scaleDownDelaySeconds": 2})
    eventually(lambda: chats.condition("Ready") == ("True", "ScaledToZero"), "nothing runs")
    assert chats.pods() == []
    jobs.submit(1)
    eventually(lambda: chats.ready(1), "the first job starts a replica", seconds=10)
    jobs.cancel_all()
    eventually(lambda: chats.ready(0), "it goes when nothing waits")
    assert node.target["demo"] == 0


def test_scale_in_takes_the_idle_one_and_waits_for_the_job_in_hand(
    operator: OperatorProcess, node: PlayedNode, chats: Chats
) -> None:
    chats.create(scaling={"policy": "Manual"}, replicas=3)
    eventually(lambda: chats.ready(3), "three replicas are ready")
    node.busy = {"demo-worker-0", "demo-worker-2"}
    time.sleep(2)  # so that the replicas have reported it
    chats.change(replicas=2)
    eventually(lambda: chats.ready(2), "two are left")
    assert {pod["metadata"]["name"] for pod in chats.pods()} == node.busy
    chats.change(replicas=1)
    eventually(lambda: len(chats.pods()) == 1, "one is being drained")
    assert len(chats.all_of("api/v1", "pods")) == 2
    node.busy = set()
    eventually(lambda: chats.ready(1), "it ends after its job")


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
        node.faults.clear()


def test_drift_is_put_back_and_foreign_fields_are_left_alone(
    operator: OperatorProcess, node: PlayedNode, chats: Chats
) -> None:
    chats.create()
    eventually(lambda: chats.ready(1), "one replica is ready")
    services = f"/api/v1/namespaces/{chats.namespace}/services"
    chats.api.merge(f"{services}/demo", {"metadata": {"labels": {"theirs": "x"}}, "spec": {"selector": {"a": "b"}}})

    def selector() -> Any:
        return chats.api.get(f"{services}/demo")["spec"]["selector"]

    eventually(lambda: selector().get("app.kubernetes.io/component") == "head", "the selector is put back")
    assert chats.api.get(f"{services}/demo")["metadata"]["labels"]["theirs"] == "x"
    chats.api.delete(f"{services}/demo-head")
    eventually(lambda: chats.api.get(f"{services}/demo-head"), "the Service is back")
    chats.api.delete(f"/api/v1/namespaces/{chats.namespace}/pods/demo-worker-0")
    eventually(lambda: chats.ready(1), "the replica is back")
    settings = f"/api/v1/namespaces/{chats.namespace}/configmaps/demo-settings"
    chats.api.merge(settings, {"data": {"VISIONCHAT_MODEL": "other"}})
    eventually(lambda: chats.api.get(settings)["data"]["VISIONCHAT_MODEL"] == "tiny", "the setting is put back")


def test_nothing_is_written_when_nothing_changes(
    plane: ControlPlane, operator: OperatorProcess, node: PlayedNode, chats: Chats
) -> None:
    chats.create()
    eventually(lambda: chats.ready(1) and chats.condition("Progressing")[0] == "False", "everything is settled")
    time.sleep(3)  # what is on its way may still arrive
    before, reads = len(writes(plane, chats.namespace)), operator.metric("visionchat_operator_api_calls_total")
    time.sleep(QUIET_SECONDS)
    assert [(w["verb"], w["requestURI"]) for w in writes(plane, chats.namespace)[before:]] == []
    assert before > 10  # the log knows the operator's writes
    assert operator.metric("visionchat_operator_api_calls_total") == reads


def test_the_gateways_way_out_can_be_changed(operator: OperatorProcess, node: PlayedNode, chats: Chats) -> None:
    ingresses = ("apis/networking.k8s.io/v1", "ingresses")
    chats.create(gateway={"kind": "Ingress", "host": "a.example"})
    eventually(lambda: chats.all_of(*ingresses), "the Ingress is there")
    chats.change(gateway={"host": "b.example"})
    eventually(lambda: chats.all_of(*ingresses)[0]["spec"]["rules"][0]["host"] == "b.example", "the host has changed")
    chats.change(gateway={"kind": "None", "host": None})
    eventually(lambda: not chats.all_of(*ingresses), "the Ingress is gone")


def test_a_new_spec_is_rolled_out_one_replica_at_a_time(
    operator: OperatorProcess, node: PlayedNode, chats: Chats
) -> None:
    chats.create(scaling={"policy": "Manual", "minReplicas": 2, "maxReplicas": 3}, replicas=3)
    eventually(lambda: chats.ready(3), "three replicas are ready")
    old = {pod["metadata"]["uid"] for pod in chats.pods()}
    chats.change(podTemplate={"env": [{"name": "EDITION", "value": "2"}]})
    fewest = 3

    def rolled() -> bool:
        nonlocal fewest
        fewest = min(fewest, chats.status()["replicas"]["ready"])
        return not {pod["metadata"]["uid"] for pod in chats.pods()} & old and chats.ready(3)

    eventually(rolled, "all three are new", seconds=60)
    assert fewest >= 2
    assert len(chats.events("Replaced")) == 3


def test_a_single_replica_is_replaced_by_one_that_serves_first(
    operator: OperatorProcess, node: PlayedNode, chats: Chats
) -> None:
    chats.create()
    eventually(lambda: chats.ready(1), "one replica is ready")
    (old,) = chats.pods()
    node.holds_warm = True
    chats.change(podTemplate={"env": [{"name": "EDITION", "value": "2"}]})
    eventually(lambda: len(chats.pods()) == 2, "the new one comes")
    eventually(lambda: chats.condition("Progressing") == ("True", "Rolling"), "it says so")
    time.sleep(3)  # the old one goes on as long as the new one is not warm
    assert chats.status()["replicas"]["ready"] == 1
    assert old["metadata"]["uid"] in {pod["metadata"]["uid"] for pod in chats.pods()}
    node.holds_warm = False
    eventually(lambda: chats.ready(1) and chats.condition("Progressing")[0] == "False", "the new one serves")
    (pod,) = chats.pods()
    assert {"name": "EDITION", "value": "2"} in pod["spec"]["containers"][0]["env"]


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


def test_suspend_stops_and_resumes(operator: OperatorProcess, node: PlayedNode, chats: Chats) -> None:
    chats.create()
    eventually(lambda: chats.ready(1), "one replica is ready")
    chats.change(suspend=True)
    eventually(lambda: chats.condition("Ready") == ("False", "Suspended"), "it says so")
    eventually(lambda: not chats.all_of("api/v1", "pods"), "nothing runs")
    chats.change(suspend=False)
    eventually(lambda: chats.ready(1), "it runs again")


def test_a_finalizer_only_where_there_is_something_to_clean(
    operator: OperatorProcess, node: PlayedNode, chats: Chats, jobs: Jobs, redis: EmbeddedRedis
) -> None:
    chats.create()
    eventually(lambda: chats.ready(1), "one replica is ready")
    assert "finalizers" not in (chats.get() or {})["metadata"]
    chats.change(queue={"deleteWithResource": True})
    eventually(lambda: (chats.get() or {})["metadata"].get("finalizers"), "the finalizer is there")
    jobs.submit(2)
    assert keys(redis, f"{chats.namespace}.demo")
    node.busy = {"demo-worker-0"}
    chats.api.delete(f"{chats.path}/demo")
    eventually(lambda: all("deletionTimestamp" in p["metadata"] for p in chats.all_of("api/v1", "pods")), "it drains")
    assert chats.get() is not None
    node.busy = set()
    eventually(lambda: chats.get() is None, "it is gone when the job in hand has ended")
    assert keys(redis, f"{chats.namespace}.demo") == []


def keys(redis: EmbeddedRedis, queue: str) -> list[bytes]:
    import redis as client

    with client.Redis.from_url(redis.url) as connection:
        found: list[bytes] = list(connection.scan_iter(match=f"visionchat:{{{queue}}}*"))
        return found


def test_the_operator_needs_no_more_rights_than_its_manifest_gives(
    plane: ControlPlane, start_operator: Start, node: PlayedNode, chats: Chats, tmp_path: Path
) -> None:
    path = "/api/v1/namespaces/visionchat-system/serviceaccounts/visionchat-operator/token"
    request = {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": {"expirationSeconds": 3600}}
    token = plane.api.create(path, request)["status"]["token"]
    kubeconfig = plane.write_kubeconfig(tmp_path / "least", token)
    operator = start_operator(["--lease-namespace", "visionchat-system"], kubeconfig=kubeconfig, everywhere=True)
    pinning = {"mode": "Always"}
    chats.create(pinning=pinning, gateway={"kind": "Ingress", "host": "a.example"}, queue={"deleteWithResource": True})
    eventually(lambda: chats.ready(1), "one replica is ready")
    chats.create("fetched", model={"id": "some/model"}, gateway={"kind": "HTTPRoute", "gatewayName": "g"})
    eventually(lambda: chats.all_of("apis/batch/v1", "jobs"), "the Job is there")
    chats.change(suspend=True, gateway={"kind": "None", "host": None})
    eventually(lambda: not chats.all_of("apis/networking.k8s.io/v1", "ingresses"), "the Ingress is gone")
    for name in ("demo", "fetched"):
        chats.api.delete(f"{chats.path}/{name}")
    eventually(lambda: chats.get() is None, "it is deleted")
    assert "forbidden" not in operator.log().lower()


def test_no_rule_has_a_wildcard() -> None:
    text = (Path(__file__).parents[2] / "manifests" / "rbac.yaml").read_text()
    assert "*" not in text
    assert "nodes/proxy" not in text


def test_the_other_operator_takes_over(start_operator: Start, node: PlayedNode, chats: Chats, api: Api) -> None:
    first = start_operator()
    eventually(lambda: "leading as" in first.log(), "the first leads")
    second = start_operator()
    chats.create(scaling={"policy": "Manual"})
    eventually(lambda: chats.ready(1), "the first acts")
    assert "leading as" not in second.log()
    assert second.page("/healthz").status_code == 200
    first.kill()
    chats.change(replicas=2)
    eventually(lambda: "leading as" in second.log(), "the second leads", seconds=40)
    eventually(lambda: chats.ready(2), "the second acts")


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


def test_one_line_of_log_and_one_event_for_each_decision(
    operator: OperatorProcess, node: PlayedNode, chats: Chats
) -> None:
    chats.create()
    eventually(lambda: chats.ready(1), "one replica is ready")
    decided = [line for line in operator.log().splitlines() if "visionchat_operator.apply" in line]
    events = chats.all_of("api/v1", "events")
    assert len(decided) == len(events)
    assert operator.metric("visionchat_operator_decisions_total") == len(events)
    assert operator.metric("visionchat_operator_errors_total") == 0
