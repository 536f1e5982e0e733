"""The operator on a real API server and a real Redis: what it makes of a VisionChat, and how it keeps it."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path
from typing import Any

import pytest
import yaml

from support.cluster_fixtures import FOUR, Chats, Jobs, eventually, keys
from support.operator_process import OperatorProcess
from support.played_node import PlayedNode
from visionchat_serve.fetch_progress import FetchProgress
from visionchat_serve.redis_link import RedisLink
from visionchat_serve.redis_server import EmbeddedRedis

pytestmark = pytest.mark.usefixtures("quiet")

EXAMPLES = sorted((Path(__file__).parents[2] / "manifests" / "examples").glob("*.yaml"))


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


def test_the_model_is_fetched_before_replicas_start(
    operator: OperatorProcess, node: PlayedNode, chats: Chats, redis: EmbeddedRedis
) -> None:
    chats.create(model={"id": "some/model", "storageClassName": "fast", "claimSize": "7Gi"})
    eventually(lambda: chats.all_of("apis/batch/v1", "jobs"), "the Job is there")
    (job,), (claim,) = chats.all_of("apis/batch/v1", "jobs"), chats.all_of("api/v1", "persistentvolumeclaims")
    assert claim["spec"]["storageClassName"] == "fast"
    assert claim["spec"]["resources"]["requests"]["storage"] == "7Gi"
    assert [pod["metadata"]["name"] for pod in chats.pods()] == []
    attempt = fetcher(chats, job)
    eventually(lambda: "attempt 1 starts" in message(chats, "Progressing"), "the status follows the Job's pod")
    asyncio.run(tell(redis.url, f"{chats.namespace}.demo", FetchProgress(1_200_000_000, 4_300_000_000)))
    eventually(lambda: "1.2 of 4.3 GB so far" in message(chats, "Progressing"), "and what the pod tells")
    told = {"exitCode": 1, "message": "trace\nOSError: disk full\n", "reason": "Error"}
    container = {"name": "fetch", "image": "x", "imageID": "", "ready": False, "restartCount": 0}
    failed = {"phase": "Failed", "containerStatuses": [container | {"state": {"terminated": told}}]}
    chats.api.merge(f"{attempt}/status", {"status": failed})
    eventually(lambda: "failed: OSError: disk full" in message(chats, "Progressing"), "and says why it failed")
    set_status(chats, job, failed=1, conditions=[over("FailureTarget"), over("Failed")])
    eventually(lambda: chats.condition("Degraded") == ("True", "ModelFailed"), "the end is said")
    assert "OSError: disk full" in message(chats, "Degraded")
    assert chats.condition("Ready") == ("False", "ModelFailed")
    path = f"/apis/batch/v1/namespaces/{chats.namespace}/jobs/{job['metadata']['name']}"
    chats.api.delete(path, propagationPolicy="Background")
    eventually(lambda: chats.all_of("apis/batch/v1", "jobs"), "a deleted Job is tried again")
    eventually(lambda: chats.condition("Progressing") == ("True", "FetchingModel"), "and the status says so")
    (again,) = chats.all_of("apis/batch/v1", "jobs")
    set_status(chats, again, succeeded=1, conditions=[over("SuccessCriteriaMet"), over("Complete")])
    eventually(lambda: chats.ready(1), "a replica runs the model")
    assert chats.status()["model"] == "Present"


async def tell(url: str, queue: str, progress: FetchProgress) -> None:
    link = RedisLink(url)
    await progress.tell(link, queue)
    await link.close()


WHEN = "2026-01-01T00:00:00Z"


def over(kind: str) -> dict[str, Any]:
    return {"type": kind, "status": "True", "lastTransitionTime": WHEN}


def set_status(chats: Chats, job: dict[str, Any], **status: Any) -> None:
    """No Job controller runs in this tier."""
    end = {"completionTime": WHEN} if "succeeded" in status else {}
    path = f"/apis/batch/v1/namespaces/{chats.namespace}/jobs/{job['metadata']['name']}/status"
    chats.api.merge(path, {"status": {"startTime": WHEN, "uncountedTerminatedPods": {}, **end, **status}})


def fetcher(chats: Chats, job: dict[str, Any]) -> str:
    """A pod of the Job, as its controller would make it; its path."""
    pods, template = f"/api/v1/namespaces/{chats.namespace}/pods", job["spec"]["template"]
    labels = {**template["metadata"]["labels"], "job-name": job["metadata"]["name"]}
    pod = {"metadata": {"name": f"{job['metadata']['name']}-1", "labels": labels}, "spec": template["spec"]}
    return f"{pods}/{chats.api.create(pods, pod)['metadata']['name']}"


def message(chats: Chats, kind: str) -> str:
    return next((c["message"] for c in chats.status().get("conditions", ()) if c["type"] == kind), "")


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


def test_the_job_in_hand_is_answered_before_its_replica_goes(
    operator: OperatorProcess, node: PlayedNode, chats: Chats, jobs: Jobs
) -> None:
    """Real replicas and real leases: one job in hand, one that waits; the idle replica goes, then the busy one."""
    node.works = True
    chats.create(scaling={"policy": "Manual"}, replicas=2)
    eventually(lambda: chats.ready(2), "two replicas are ready")
    (held,) = jobs.submit(1, "one !hold two")
    eventually(lambda: busy(node), "a replica has it in hand")
    (taken,) = busy(node)
    time.sleep(2.5)  # so that it has reported it
    chats.change(replicas=1)
    eventually(lambda: chats.ready(1), "the other one has gone")
    assert [pod["metadata"]["name"] for pod in chats.pods()] == [taken]
    (waiting,) = jobs.submit(1, "three")
    chats.change(replicas=0)
    eventually(lambda: chats.status()["replicas"]["desired"] == 0 and not chats.pods(), "it is told to go")
    time.sleep(1)  # it would have gone by now
    assert [pod["metadata"]["name"] for pod in chats.all_of("api/v1", "pods")] == [taken]
    assert chats.status()["queue"]["depth"] == 2
    node.replicas[taken].engine.release.set()
    assert jobs.answer(held) == "one !hold two"
    eventually(lambda: chats.ready(0), "it ends after its job")
    eventually(lambda: chats.status()["queue"]["depth"] == 1, "what waited still waits")
    chats.change(replicas=1)
    assert jobs.answer(waiting) == "three"


def busy(node: PlayedNode) -> list[str]:
    """Pods whose replica has a job in hand."""
    return [pod for pod, replica in node.replicas.items() if replica.engine.has_work]


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
    assert keys(redis.url, f"{chats.namespace}.demo")
    node.busy = {"demo-worker-0"}
    chats.api.delete(f"{chats.path}/demo")
    eventually(lambda: all("deletionTimestamp" in p["metadata"] for p in chats.all_of("api/v1", "pods")), "it drains")
    assert chats.get() is not None
    node.busy = set()
    eventually(lambda: chats.get() is None, "it is gone when the job in hand has ended")
    assert keys(redis.url, f"{chats.namespace}.demo") == []


def test_one_line_of_log_and_one_event_for_each_decision(
    operator: OperatorProcess, node: PlayedNode, chats: Chats
) -> None:
    chats.create()
    eventually(lambda: chats.ready(1), "one replica is ready")

    def decided() -> int:
        return sum("visionchat_operator.apply" in line for line in operator.log().splitlines())

    def events() -> int:
        return len(chats.all_of("api/v1", "events"))

    eventually(lambda: decided() == events(), "the events of the last decisions are written")
    assert operator.metric("visionchat_operator_decisions_total") == events() == decided()
    assert operator.metric("visionchat_operator_errors_total") == 0
