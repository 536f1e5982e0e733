"""The rendered objects: what the cluster is asked for."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from support import pod_security
from visionchat_operator import children, environment, names, pods
from visionchat_operator.api import Engine, SecretKey, VisionChatSpec
from visionchat_operator.children import Owner
from visionchat_operator.environment import Defaults
from visionchat_operator.status_api import Mode
from visionchat_operator.world import Key, Manifest, Ref
from visionchat_serve.config import Settings, load_settings

KEY = Key("team", "demo")
OWNER = Owner(KEY, "uid-1")
DEFAULTS = Defaults()
EXAMPLES = sorted((Path(__file__).parents[2] / "manifests" / "examples").glob("*.yaml"))


def spec(**fields: Any) -> VisionChatSpec:
    return VisionChatSpec.model_validate(fields)


def example_specs() -> list[VisionChatSpec]:
    documents = (d for file in EXAMPLES for d in yaml.safe_load_all(file.read_text()))
    return [VisionChatSpec.model_validate(d["spec"]) for d in documents if d["kind"] == "VisionChat"]


def all_of(chosen: VisionChatSpec) -> dict[Ref, Manifest]:
    rendered = children.render(KEY, "uid-1", chosen, DEFAULTS, "visionchat-system")
    rendered += [children.worker(OWNER, chosen, i, mode, DEFAULTS) for i, mode in enumerate(Mode)]
    if not chosen.model.embedded:
        rendered += [children.model_claim(OWNER, chosen), children.model_job(OWNER, chosen, DEFAULTS)]
    return {Ref(m["kind"], m["metadata"]["name"]): m for m in rendered}


def pod_specs(rendered: dict[Ref, Manifest]) -> list[Manifest]:
    found = [m["spec"] for ref, m in rendered.items() if ref.kind == "Pod"]
    return found + [m["spec"]["template"]["spec"] for ref, m in rendered.items() if ref.kind in ("Deployment", "Job")]


@pytest.mark.parametrize("chosen", example_specs())
def test_every_pod_passes_the_restricted_profile(chosen: VisionChatSpec) -> None:
    for pod in pod_specs(all_of(chosen)):
        assert list(pod_security.faults(pod)) == []
        assert list(pod_security.laxities(pod)) == []
        assert pod["enableServiceLinks"] is False, "a Service named visionchat would look like settings"


@pytest.mark.parametrize("chosen", example_specs())
def test_everything_belongs_to_its_visionchat(chosen: VisionChatSpec) -> None:
    for manifest in all_of(chosen).values():
        (owner,) = manifest["metadata"]["ownerReferences"]
        assert (owner["kind"], owner["name"], owner["uid"]) == ("VisionChat", "demo", "uid-1")
        assert manifest["metadata"]["namespace"] == "team"
        assert manifest["metadata"]["labels"].items() >= names.MANAGED_BY.items()


@pytest.mark.parametrize("chosen", example_specs())
def test_every_mount_has_its_volume(chosen: VisionChatSpec) -> None:
    for pod in pod_specs(all_of(chosen)):
        volumes = [volume["name"] for volume in pod["volumes"]]
        assert len(volumes) == len(set(volumes))
        for container in pod["containers"]:
            assert {mount["name"] for mount in container["volumeMounts"]} <= set(volumes)


@pytest.mark.parametrize("chosen", example_specs())
def test_the_data_plane_understands_its_environment(chosen: VisionChatSpec) -> None:
    told = environment.settings(KEY, chosen)
    url = next(e for e in environment.redis(chosen, DEFAULTS) if e["name"] == "VISIONCHAT_REDIS_URL")
    settings = load_settings(environ={**told, "VISIONCHAT_REDIS_URL": url.get("value", "redis://somewhere")})
    assert settings.cpus == chosen.cpus_per_replica
    assert settings.namespace == "team.demo"
    assert settings.max_context == chosen.model.max_context


def test_engines_are_those_of_the_data_plane() -> None:
    annotation: Any = Settings.model_fields["engine"].annotation
    assert {engine.value for engine in Engine} == set(annotation.__args__)


def test_a_pinned_replica_is_guaranteed_with_whole_cpus() -> None:
    pod = children.worker(OWNER, spec(cpusPerReplica=4, memoryPerReplica="6Gi"), 0, Mode.PINNED, DEFAULTS)["spec"]
    (container,) = pod["containers"]
    assert container["resources"] == {
        "requests": {"cpu": "4", "memory": "6Gi"},
        "limits": {"cpu": "4", "memory": "6Gi"},
    }
    assert "initContainers" not in pod


def test_a_shared_replica_is_burstable() -> None:
    resources = pods.worker_resources(spec(cpusPerReplica=4), Mode.SHARED)
    assert resources["requests"]["cpu"] == "1"
    assert resources["limits"]["cpu"] == "4"
    assert resources["requests"]["memory"] == resources["limits"]["memory"]


def test_the_grace_of_a_pod_covers_rays_drain_and_that_covers_the_replicas_own() -> None:
    pod = children.worker(OWNER, spec(), 0, Mode.SHARED, DEFAULTS)["spec"]
    env = {e["name"]: e.get("value") for e in pod["containers"][0]["env"]}
    drain = int(env["RAY_GRACEFUL_SHUTDOWN_DRAIN_TIMEOUT_S"])
    assert environment.DRAIN.total_seconds() < drain < pod["terminationGracePeriodSeconds"]


def test_a_head_that_is_told_to_stop_does_not_wait() -> None:
    pod = children.head(OWNER, spec(), DEFAULTS)["spec"]["template"]["spec"]
    env = {e["name"]: e.get("value") for e in pod["containers"][0]["env"]}
    assert env["RAY_GRACEFUL_SHUTDOWN_DRAIN_TIMEOUT_S"] == "0"


def test_the_mode_is_no_part_of_the_revision_but_all_that_a_replica_is_told_is() -> None:
    base = children.revision(KEY, spec(), DEFAULTS)
    assert children.revision(KEY, spec(pinning={"mode": "Always"}, scaling={"maxReplicas": 3}), DEFAULTS) == base
    changes: list[dict[str, Any]] = [
        {"cpusPerReplica": 3},
        {"memoryPerReplica": "9Gi"},
        {"image": "other"},
        {"model": {"precision": "bfloat16"}},
        {"model": {"revision": "v2"}},
        {"queue": {"url": "redis://other:6379"}},
        {"podTemplate": {"env": [{"name": "A", "value": "b"}]}},
        {"podTemplate": {"annotations": {"a": "b"}}},
    ]
    revisions = [children.revision(KEY, spec(**change), DEFAULTS) for change in changes]
    assert len({base, *revisions}) == len(changes) + 1


def test_a_gateway_of_each_kind() -> None:
    ingress = all_of(spec(gateway={"kind": "Ingress", "host": "h.example", "className": "c", "tlsSecretName": "t"}))
    body = ingress[Ref("Ingress", "demo")]["spec"]
    assert body["tls"] == [{"hosts": ["h.example"], "secretName": "t"}]
    assert body["ingressClassName"] == "c"
    assert body["rules"][0]["host"] == "h.example"
    route = all_of(spec(gateway={"kind": "HTTPRoute", "gatewayName": "g", "gatewayNamespace": "n"}))
    assert route[Ref("HTTPRoute", "demo")]["spec"]["parentRefs"] == [{"name": "g", "namespace": "n"}]
    kinds = {ref.kind for ref in all_of(spec())}
    assert not kinds & {"Ingress", "HTTPRoute"}


def test_rays_ports_are_for_the_clusters_own_pods() -> None:
    rendered = all_of(spec())
    policies = [m["spec"] for ref, m in rendered.items() if ref.kind == "NetworkPolicy"]
    for rule in (rule for policy in policies for rule in policy["ingress"]):
        ports = {port["port"] for port in rule.get("ports", ())}
        if "from" not in rule:
            assert ports
            assert ports <= {8000, 8080}
        else:
            assert rule["from"][0]["podSelector"]["matchLabels"]


def test_the_model_is_fetched_once_for_each_that_is_asked_for() -> None:
    first, second = spec(), spec(model={"revision": "v2"})
    assert children.model_job_name(KEY, first) != children.model_job_name(KEY, second)
    job = children.model_job(OWNER, second, DEFAULTS)["spec"]["template"]["spec"]
    command = job["containers"][0]["command"]
    assert command[-2:] == ["--revision", "v2"]
    models = next(m for m in job["containers"][0]["volumeMounts"] if m["name"] == "models")
    assert models["readOnly"] is False
    worker = children.worker(OWNER, second, 0, Mode.SHARED, DEFAULTS)["spec"]["containers"][0]
    assert next(m for m in worker["volumeMounts"] if m["name"] == "models")["readOnly"] is True


def test_suspended_the_head_goes_too() -> None:
    assert all_of(spec(suspend=True))[Ref("Deployment", "demo-head")]["spec"]["replicas"] == 0


@pytest.mark.parametrize("name", ["a", "a" * 40])
def test_names_fit(name: str) -> None:
    key = Key("n", name)
    made = [names.head(key), names.worker(key, 999), children.model_job_name(key, spec()), names.settings(key)]
    assert all(len(one) <= 63 for one in made)
    assert names.worker_index(key, names.worker(key, 17)) == 17


def test_the_operators_redis_by_a_secret_is_for_those_that_name_no_queue() -> None:
    defaults = Defaults(redis_secret=SecretKey(name="visionchat-redis"))
    reference = {"secretKeyRef": {"name": "visionchat-redis", "key": "url"}}
    assert environment.redis(spec(), defaults) == [{"name": environment.URL, "valueFrom": reference}]
    (own,) = environment.redis(spec(queue={"url": "redis://own"}), defaults)
    assert own["value"] == "redis://own"
    (other,) = environment.redis(spec(queue={"urlSecret": {"name": "other", "key": "address"}}), defaults)
    assert other["valueFrom"]["secretKeyRef"] == {"name": "other", "key": "address"}
    (watched,) = environment.redis(spec(queue={"sentinel": {"addresses": ["s:1"]}}), defaults)
    assert watched["value"].startswith("redis+sentinel://s:1")
