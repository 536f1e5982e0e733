"""The resource on a real API server: defaults, rules, subresources, columns, examples."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from support.cluster_fixtures import Chats
from support.control_plane import Api
from visionchat_operator.api import VisionChatSpec

EXAMPLES = sorted((Path(__file__).parents[2] / "manifests" / "examples").glob("*.yaml"))
LONG = "a" * 41


@pytest.mark.parametrize("file", EXAMPLES, ids=lambda file: file.stem)
def test_every_example_is_accepted_as_it_is_meant(api: Api, namespace: str, chats: Chats, file: Path) -> None:
    for document in yaml.safe_load_all(file.read_text()):
        if document["kind"] == "Secret":
            api.create(f"/api/v1/namespaces/{namespace}/secrets", document)
            continue
        created = api.create(chats.path, document)
        assert VisionChatSpec.model_validate(created["spec"]) == VisionChatSpec.model_validate(document["spec"])
        for given, kept in pairs(document["spec"], created["spec"]):
            assert given == kept


def pairs(given: Any, kept: Any) -> list[tuple[Any, Any]]:
    """What was written and what the API server kept of it; it drops what it does not know."""
    if not isinstance(given, dict):
        return [(given, kept)]
    return [pair for key, value in given.items() for pair in pairs(value, (kept or {}).get(key))]


def test_the_defaults_are_the_models_own(chats: Chats) -> None:
    body = {"apiVersion": "visionchat.dev/v1alpha1", "kind": "VisionChat", "metadata": {"name": "bare"}}
    created = chats.api.create(chats.path, body)
    defaults = VisionChatSpec().model_dump(mode="json", by_alias=True, exclude_none=True)
    assert VisionChatSpec.model_validate(created["spec"]) == VisionChatSpec()
    for given, kept in pairs(defaults, created["spec"]):
        assert given in (kept, [], {})


@pytest.mark.parametrize(
    ("spec", "says"),
    [
        ({"scaling": {"minReplicas": 3, "maxReplicas": 2}}, "minReplicas must not be over scaling.maxReplicas"),
        ({"scaling": {"targetQueueDepth": 3, "targetWaitSeconds": 2}}, "targetWaitSeconds, not both"),
        ({"pinning": {"pinAbove": 2, "unpinBelow": 2}}, "unpinBelow must be under pinning.pinAbove"),
        ({"model": {"folder": "x"}}, "needs model.claimName"),
        ({"model": {"folder": "x", "claimName": "c", "revision": "v"}}, "a folder has none"),
        ({"queue": {"url": "redis://a", "urlSecret": {"name": "b"}}}, "set one of queue.url"),
        ({"gateway": {"kind": "HTTPRoute"}}, "needs gateway.gatewayName"),
        ({"gateway": {"kind": "Ingress", "tlsSecretName": "t"}}, "needs kind Ingress and gateway.host"),
        ({"cpusPerReplica": 1.5}, "cpusPerReplica"),
        ({"cpusPerReplica": 0}, "cpusPerReplica"),
        ({"memoryPerReplica": "lots"}, "memoryPerReplica"),
        ({"replicas": -1}, "replicas"),
        ({"model": {"engine": "magic"}}, "model.engine"),
        ({"model": {"precision": "int1"}}, "model.precision"),
        ({"model": {"id": "no spaces"}}, "model.id"),
        ({"pinning": {"mode": "Sometimes"}}, "pinning.mode"),
        ({"scaling": {"policy": "Guess"}}, "scaling.policy"),
        ({"queue": {"url": "redis://:secret@host"}}, "queue.url"),
        ({"queue": {"url": "redis://a", "caSecret": {"name": "b"}}}, "queue.caSecret is for a Redis with TLS"),
        ({"queue": {"sentinel": {"addresses": ["a:1"]}, "caSecret": {"name": "b"}}}, "or queue.sentinel.tls"),
        ({"queue": {"sentinel": {"addresses": []}}}, "sentinel.addresses"),
        ({"gateway": {"kind": "LoadBalancer"}}, "gateway.kind"),
        ({"gateway": {"host": "Not A Host"}}, "gateway.host"),
        ({"imagePullPolicy": "Maybe"}, "imagePullPolicy"),
        ({"suspend": "yes"}, "suspend"),
    ],
)
def test_what_is_wrong_is_refused_and_said(chats: Chats, spec: dict[str, Any], says: str) -> None:
    body = {"apiVersion": "visionchat.dev/v1alpha1", "kind": "VisionChat", "metadata": {"name": "x"}, "spec": spec}
    answer = chats.api.call("POST", chats.path, body)
    assert answer.status_code == 422
    assert says in answer.json()["message"]


@pytest.mark.parametrize(("name", "says"), [(LONG, "40 characters at most"), ("a.b", "no dots"), ("1a", "a letter")])
def test_names_that_its_services_could_not_have_are_refused(chats: Chats, name: str, says: str) -> None:
    body = {"apiVersion": "visionchat.dev/v1alpha1", "kind": "VisionChat", "metadata": {"name": name}, "spec": {}}
    answer = chats.api.call("POST", chats.path, body)
    assert answer.status_code == 422
    assert says in answer.json()["message"]


def test_unknown_fields_are_an_error_where_asked_for(chats: Chats) -> None:
    body = {"apiVersion": "visionchat.dev/v1alpha1", "kind": "VisionChat", "metadata": {"name": "x"}}
    answer = chats.api.call("POST", f"{chats.path}?fieldValidation=Strict", body | {"spec": {"cpus": 3}})
    assert answer.status_code == 400
    assert "spec.cpus" in answer.json()["message"]


def test_kubectl_scale(chats: Chats) -> None:
    chats.create(scaling={"policy": "Manual"})
    assert chats.api.get(f"{chats.path}/demo/scale")["spec"]["replicas"] == 1
    chats.api.merge(f"{chats.path}/demo/scale", {"spec": {"replicas": 3}})
    assert (chats.get() or {})["spec"]["replicas"] == 3


def test_kubectl_get(chats: Chats) -> None:
    chats.create()
    table = "application/json;as=Table;v=v1;g=meta.k8s.io"
    page = chats.api.call("GET", chats.path, headers={"Accept": table}).json()
    columns = [column["name"] for column in page["columnDefinitions"]]
    assert columns == ["Name", "Ready", "Replicas", "Pinned", "Queue", "Mode", "URL", "Age"]


def test_the_short_name(api: Api) -> None:
    (resource,) = [r for r in api.get("/apis/visionchat.dev/v1alpha1")["resources"] if r["name"] == "visionchats"]
    assert resource["shortNames"] == ["vchat"]
