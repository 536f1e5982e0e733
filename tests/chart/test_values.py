"""Values: documented, and refused with a message that names them when they are wrong."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import jsonschema
import pytest
import yaml

from support.chart import CHART, refusal, template
from visionchat_operator.crd import spec_schema

SCHEMA = json.loads((CHART / "values.schema.json").read_text())
VALUES = yaml.safe_load((CHART / "values.yaml").read_text())
CHAT = "visionchats.demo.spec"

BY_THE_SCHEMA: list[tuple[dict[str, Any], str, str]] = [
    ({"operater": {}}, "", "operater"),
    ({"operator.replica": 2}, "/operator", "replica"),
    ({"scope": "Everywhere"}, "/scope", "'Cluster', 'Namespace'"),
    ({"nameOverride": "Big Name"}, "/nameOverride", "pattern"),
    ({"imageRegistry": "https://registry.example.com/"}, "/imageRegistry", "pattern"),
    ({"imagePullSecrets": ["registry"]}, "/imagePullSecrets/0", "want object"),
    ({"crds.enabled": "yes"}, "/crds/enabled", "want boolean"),
    ({"operator.replicas": 2.5}, "/operator/replicas", "want integer"),
    ({"operator.replicas": -1}, "/operator/replicas", "minimum"),
    ({"operator.image.repository": ""}, "/operator/image/repository", "minLength"),
    ({"operator.image.digest": "sha256:abc"}, "/operator/image/digest", "pattern"),
    ({"operator.image.pullPolicy": "Sometimes"}, "/operator/image/pullPolicy", "'Always', 'IfNotPresent', 'Never'"),
    ({"operator.extraArgs": "--port=1"}, "/operator/extraArgs", "want array"),
    ({"operator.pod.env": {"TZ": "UTC"}}, "/operator/pod/env", "want array"),
    ({"operator.pod.nodeSelector": {"ssd": True}}, "/operator/pod/nodeSelector/ssd", "want string"),
    ({"redis.password": "short"}, "/redis/password", "pattern"),
    ({"redis.password": "with space and @"}, "/redis/password", "pattern"),
    ({"redis.maxMemory": "512Mi"}, "/redis/maxMemory", "pattern"),
    ({"redis.persistence.size": "big"}, "/redis/persistence/size", "pattern"),
    ({"redis.persistence.accessMode": "ReadWriteMany"}, "/redis/persistence/accessMode", "'ReadWriteOnce'"),
    ({"redis.namespaces": "team-a"}, "/redis/namespaces", "want array"),
    ({"externalRedis.url": "redis://:secret@redis:6379"}, "/externalRedis/url", "pattern"),
    ({"metrics.serviceMonitor.interval": "30"}, "/metrics/serviceMonitor/interval", "pattern"),
    ({"test.visionchat": ""}, "/test/visionchat", "minLength"),
    ({"visionchats.demo.spce": {}}, "/visionchats/demo", "spce"),
    ({f"{CHAT}.cpus": 4}, "/visionchats/demo/spec", "cpus"),
    ({f"{CHAT}.cpusPerReplica": 1.5}, "/visionchats/demo/spec/cpusPerReplica", "want integer"),
    ({f"{CHAT}.memoryPerReplica": "lots"}, "/visionchats/demo/spec/memoryPerReplica", "pattern"),
    ({f"{CHAT}.pinning.mode": "Sometimes"}, "/visionchats/demo/spec/pinning/mode", "'Never', 'Always', 'QueueDepth'"),
    ({f"{CHAT}.scaling.minReplicas": -1}, "/visionchats/demo/spec/scaling/minReplicas", "minimum"),
    ({f"{CHAT}.gateway.host": "Not A Host"}, "/visionchats/demo/spec/gateway/host", "pattern"),
    ({f"{CHAT}.queue.sentinel.addresses": []}, "/visionchats/demo/spec/queue/sentinel/addresses", "minItems"),
]

BY_THE_TEMPLATES: list[tuple[dict[str, Any], str]] = [
    ({"installCRDs": True}, "set crds.enabled"),
    ({"replicaCount": 2}, "set operator.replicas"),
    ({"image": {"tag": "1"}}, "operator.image, serve.image and redis.image"),
    ({"redis.auth": {"password": "x"}}, "set redis.password"),
    ({"redis.enabled": False}, "set externalRedis.secret.name"),
    ({"externalRedis.url": "redis://redis:6379/0"}, "set redis.enabled: false"),
    ({"externalRedis.secret.name": "mine"}, "set redis.enabled: false"),
    (
        {"redis.enabled": False, "externalRedis.url": "redis://a", "externalRedis.secret.name": "b"},
        "one of externalRedis.url and externalRedis.secret.name",
    ),
    ({"redis.password": "12345678", "redis.existingSecret": "mine"}, "one of redis.password and redis.existingSecret"),
    ({"redis.existingSecret": "mine", "redis.namespaces": ["a"]}, "put your Secret into those namespaces"),
    (
        {"redis.enabled": False, "externalRedis.secret.name": "b", "redis.namespaces": ["a"]},
        "redis.namespaces needs redis.enabled: true",
    ),
    (
        {"redis.persistence.enabled": False, "redis.persistence.existingClaim": "mine"},
        "needs redis.persistence.enabled: true",
    ),
    ({"scope": "Namespace", "redis.namespaces": ["a"]}, "set scope: Cluster"),
    ({"operator.serviceAccount.create": False}, "needs operator.serviceAccount.name"),
    ({"visionchats.Big": {}}, "visionchats.Big: a VisionChat's name begins with a letter"),
    ({f"visionchats.{'a' * 41}": {}}, "up to 40 lower-case letters"),
    ({f"{CHAT}.queue.deleteWithResource": True}, "visionchats.demo.spec.queue.deleteWithResource"),
]


@pytest.mark.parametrize(("values", "place", "says"), BY_THE_SCHEMA, ids=lambda value: str(value)[:60])
def test_the_schema_refuses_and_names_the_place(values: dict[str, Any], place: str, says: str) -> None:
    message = refusal(values)
    assert f"'{place}'" in message or f"at '{place}" in message, message
    assert says in message, message


@pytest.mark.parametrize(("values", "says"), BY_THE_TEMPLATES, ids=lambda value: str(value)[:60])
def test_what_contradicts_itself_is_refused_with_what_to_do(values: dict[str, Any], says: str) -> None:
    assert says in refusal(values)


def test_visionchats_need_a_cluster_that_knows_them() -> None:
    """A real API server serves apiregistration.k8s.io; without a cluster nothing is known, and nothing refused."""
    chats, real = {"visionchats.demo": {}}, ("--api-versions", "apiregistration.k8s.io/v1")
    assert "then add them with helm upgrade" in refusal(chats, *real)
    template(chats, more=(*real, "--api-versions", "visionchat.dev/v1alpha1"))
    template(chats)


def leaves(values: dict[str, Any], prefix: str = "") -> Iterator[str]:
    for name, value in values.items():
        if isinstance(value, dict) and value:
            yield from leaves(value, f"{prefix}{name}.")
        else:
            yield prefix + name


def test_every_value_of_the_schema_has_a_default_and_a_row_in_the_readme() -> None:
    page = (CHART / "README.md").read_text()
    rows = {line.split("`")[1] for line in page.splitlines() if line.startswith("| `")}
    known = set(leaves(VALUES))
    tables = {path for path in known if any(path.startswith(f"{row}.") for row in rows)}  # resources and the like
    assert known - tables <= rows
    assert {row for row in rows if row not in known and not any(k.startswith(f"{row}.") for k in known)} == {"global"}


def test_the_schema_is_one() -> None:
    jsonschema.Draft7Validator.check_schema(SCHEMA)
    jsonschema.Draft7Validator(SCHEMA).validate(VALUES)


def test_the_resources_block_is_the_operators() -> None:
    ours = SCHEMA["definitions"]["VisionChatSpec"]["properties"]
    theirs = spec_schema()["properties"]
    assert ours.keys() == theirs.keys()
    assert ours["scaling"]["properties"].keys() == theirs["scaling"]["properties"].keys()
    assert "x-kubernetes" not in json.dumps(SCHEMA)
