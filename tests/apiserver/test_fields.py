"""Every field of the spec does something: it shows in a VisionChat's objects, or a test tells of its effect."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from typing import Any

import pytest

from support.cluster_fixtures import Chats, Jobs, eventually
from support.operator_process import OperatorProcess
from support.played_node import PlayedNode
from visionchat_operator.crd import spec_schema

pytestmark = pytest.mark.usefixtures("quiet")

# Field -> value, kind of object, and the text that shows there (by default the value).
IN_POD: dict[str, tuple[Any, str, str]] = {
    "cpusPerReplica": (3, "pods", '"cpu": "3"'),
    "memoryPerReplica": ("3Gi", "pods", '"memory": "3Gi"'),
    "image": ("team/own:7", "pods", ""),
    "imagePullPolicy": ("Always", "pods", ""),
    "imagePullSecrets": ([{"name": "pull-me"}], "pods", "pull-me"),
    "podTemplate.nodeSelector": ({"disk": "fast-one"}, "pods", "fast-one"),
    "podTemplate.tolerations": ([{"key": "tolerated", "operator": "Exists"}], "pods", "tolerated"),
    "podTemplate.affinity": (
        {"nodeAffinity": {"preferredDuringSchedulingIgnoredDuringExecution": [
            {"weight": 7, "preference": {"matchExpressions": [{"key": "preferred", "operator": "Exists"}]}}
        ]}}, "pods", "preferred"),
    "podTemplate.volumes": ([{"name": "own", "emptyDir": {}}], "pods", '"name": "own"'),
    "podTemplate.volumeMounts": ([{"name": "own", "mountPath": "/own-place"}], "pods", "/own-place"),
    "podTemplate.env": ([{"name": "OWN_VARIABLE", "value": "x"}], "pods", "OWN_VARIABLE"),
    "podTemplate.priorityClassName": ("system-cluster-critical", "pods", ""),
    "podTemplate.securityContext": ({"runAsUser": 4711}, "pods", "4711"),
    "podTemplate.labels": ({"their-label": "x"}, "pods", "their-label"),
    "podTemplate.annotations": ({"their-annotation": "x"}, "pods", "their-annotation"),
    "model.name": ("shown-name", "pods", ""),
    "model.engine": ("torch", "pods", ""),
    "model.precision": ("bfloat16", "pods", ""),
    "model.maxPixels": (123456, "pods", ""),
    "model.imageSide": (321, "pods", ""),
    "model.maxContext": (777, "pods", ""),
    "gateway.apiKeysSecret.name": ("secret-keys", "pods", ""),
    "gateway.apiKeysSecret.key": ("key-of-keys", "pods", ""),
}  # fmt: skip
FROM_HUB: dict[str, tuple[Any, str, str]] = {
    **IN_POD,
    "model.id": ("team/model", "jobs", ""),
    "model.revision": ("v99", "jobs", ""),
    "model.claimSize": ("9Gi", "persistentvolumeclaims", ""),
    "model.storageClassName": ("fast-class", "persistentvolumeclaims", ""),
    "queue.urlSecret.name": ("secret-url", "pods", ""),
    "queue.urlSecret.key": ("key-of-url", "pods", ""),
    "queue.caSecret.name": ("secret-ca", "pods", ""),
    "queue.caSecret.key": ("key-of-ca", "pods", ""),
    "gateway.kind": ("Ingress", "ingresses", "demo"),
    "gateway.host": ("a.example", "ingresses", ""),
    "gateway.className": ("own-class", "ingresses", ""),
    "gateway.tlsSecretName": ("own-certificate", "ingresses", ""),
    "gateway.annotations": ({"own-annotation": "x"}, "ingresses", "own-annotation"),
}
ON_CLAIM: dict[str, tuple[Any, str, str]] = {
    "model.folder": ("some/folder", "pods", "/models/some/folder"),
    "model.claimName": ("own-claim", "pods", ""),
    "queue.sentinel.addresses": (["s1:1", "s2:2"], "pods", "s1:1,s2:2"),
    "queue.sentinel.master": ("own-master", "pods", ""),
    "queue.sentinel.tls": (True, "pods", "rediss+sentinel://"),
    "queue.sentinel.password.name": ("secret-password", "pods", ""),
    "queue.sentinel.password.key": ("key-of-password", "pods", ""),
    "gateway.kind": ("HTTPRoute", "httproutes", "demo"),
    "gateway.gatewayName": ("own-gateway", "httproutes", ""),
    "gateway.gatewayNamespace": ("own-namespace", "httproutes", ""),
}
BY_URL: dict[str, tuple[Any, str, str]] = {"queue.url": ("redis://own.example:1/2", "pods", "")}
# What they do is told by a test, in the module that is named.
IN_TESTS = {
    "test_fields": ("scaling.targetWaitSeconds", "scaling.scaleUpDelaySeconds"),
    "test_operator": (
        "replicas",
        "suspend",
        "scaling.policy",
        "scaling.minReplicas",
        "scaling.maxReplicas",
        "scaling.targetQueueDepth",
        "scaling.scaleDownDelaySeconds",
        "queue.deleteWithResource",
    ),
    "test_pinning": (
        "pinning.mode",
        "pinning.pinAbove",
        "pinning.unpinBelow",
        "pinning.dwellSeconds",
        "pinning.fallback",
    ),
}
GROUPS = {
    "pods": "api/v1",
    "persistentvolumeclaims": "api/v1",
    "jobs": "apis/batch/v1",
    "ingresses": "apis/networking.k8s.io/v1",
    "httproutes": "apis/gateway.networking.k8s.io/v1",
}


def leaves(schema: dict[str, Any], prefix: str = "") -> Iterator[str]:
    for name, field in schema["properties"].items():
        yield from leaves(field, f"{prefix}{name}.") if field.get("properties") else [f"{prefix}{name}"]


def test_no_field_is_forgotten() -> None:
    told = {*FROM_HUB, *ON_CLAIM, *BY_URL, *(field for fields in IN_TESTS.values() for field in fields)}
    assert told == set(leaves(spec_schema()))


@pytest.mark.parametrize("fields", [FROM_HUB, ON_CLAIM, BY_URL], ids=["from the hub", "on a claim", "by URL"])
def test_it_shows(
    operator: OperatorProcess, node: PlayedNode, chats: Chats, fields: dict[str, tuple[Any, str, str]]
) -> None:
    spec: dict[str, Any] = {}
    for path, (value, _, _) in fields.items():
        *parents, last = path.split(".")
        place = spec
        for parent in parents:
            place = place.setdefault(parent, {})
        place[last] = value
    chats.create(**spec)
    if "model.id" in fields:
        eventually(lambda: chats.all_of("apis/batch/v1", "jobs"), "the Job is there")
        finish(chats)
    eventually(lambda: chats.pods(), "the replica's pod is there")
    for path, (value, kind, text) in fields.items():
        shown = json.dumps(chats.all_of(GROUPS[kind], kind))
        assert (text or str(value)) in shown, f"{path} does not show in the {kind}"


def finish(chats: Chats) -> None:
    (job,) = chats.all_of("apis/batch/v1", "jobs")
    when = "2026-01-01T00:00:00Z"
    over = [{"type": t, "status": "True", "lastTransitionTime": when} for t in ("SuccessCriteriaMet", "Complete")]
    status = {"startTime": when, "completionTime": when, "uncountedTerminatedPods": {}, "succeeded": 1}
    path = f"/apis/batch/v1/namespaces/{chats.namespace}/jobs/{job['metadata']['name']}/status"
    chats.api.merge(path, {"status": {**status, "conditions": over}})


def test_the_wait_that_is_aimed_at(operator: OperatorProcess, node: PlayedNode, chats: Chats, jobs: Jobs) -> None:
    """Three jobs are few, but by the measured speed they are much work."""
    node.works = True
    chats.create(scaling={"maxReplicas": 3, "targetWaitSeconds": 2, "scaleUpDelaySeconds": 0})
    eventually(lambda: chats.ready(1), "one replica is ready")
    (slow,) = jobs.submit(1, "one !hold two")
    (replica,) = node.replicas.values()
    eventually(lambda: replica.engine.has_work, "it is in hand")
    time.sleep(3)  # how long an answer takes
    replica.engine.release.set()
    assert jobs.answer(slow)
    replica.engine.release.clear()
    jobs.submit(3, "three !hold four")
    eventually(lambda: chats.status()["queue"].get("workSeconds", 0) >= 4, "the work is estimated")
    eventually(lambda: chats.status()["replicas"]["desired"] == 3, "so three are wanted")


def test_more_are_made_only_when_they_are_asked_for_long_enough(
    operator: OperatorProcess, node: PlayedNode, chats: Chats, jobs: Jobs
) -> None:
    chats.create(scaling={"maxReplicas": 3, "targetQueueDepth": 1, "scaleUpDelaySeconds": 4})
    eventually(lambda: chats.ready(1), "one replica is ready")
    began = time.monotonic()
    jobs.submit(3)
    eventually(lambda: chats.status()["scaling"].get("moreSince"), "it is noticed")
    assert chats.status()["replicas"]["desired"] == 1
    eventually(lambda: chats.status()["replicas"]["desired"] == 3, "three are wanted")
    assert time.monotonic() - began >= 3  # the status has whole seconds
