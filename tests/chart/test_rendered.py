"""What the chart renders, and what others rely on in it."""

from __future__ import annotations

import shutil
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import yaml

from support.chart import CHART, EVERYTHING, NAMESPACE, ROOT, Objects, pods, template, the
from visionchat_operator import cli as operator_cli
from visionchat_operator import names, rbac
from visionchat_operator.crd import custom_resource_definition
from visionchat_operator.world import Key
from visionchat_serve import __version__
from visionchat_serve import cli as serve_cli
from visionchat_serve.redis_address import clients

PROMETHEUS = {"ServiceMonitor", "PodMonitor", "PrometheusRule"}


def kinds(objects: Objects) -> list[str]:
    return sorted({one["kind"] for one in objects})


def understood(command_line: ModuleType, action: str, words: list[str]) -> Any:
    """The arguments as that program's own command line understands them."""
    seen: list[Any] = []
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(command_line, action, lambda args: seen.append(args) or 0)
        assert command_line.main(words) == 0
    return seen[0]


def operators_arguments(objects: Objects) -> Any:
    (container,) = the("Deployment", "visionchat-operator", objects)["spec"]["template"]["spec"]["containers"]
    assert container["command"] == ["visionchat-operator"]
    return understood(operator_cli, "_run", container["args"])


def test_by_default_there_is_all_that_a_cluster_needs(by_default: Objects) -> None:
    assert kinds(by_default) == [
        "ClusterRole", "ClusterRoleBinding", "ConfigMap", "CustomResourceDefinition", "Deployment", "NetworkPolicy",
        "Pod", "Role", "RoleBinding", "Secret", "Service", "ServiceAccount", "StatefulSet",
    ]  # fmt: skip


def test_everything_turns_everything_on(everything: Objects) -> None:
    assert set(kinds(everything)) == set(kinds(template())) | PROMETHEUS | {"PodDisruptionBudget", "VisionChat"}
    values, given = yaml.safe_load((CHART / "values.yaml").read_text()), yaml.safe_load(EVERYTHING.read_text())
    assert values.keys() - given.keys() == {"nameOverride", "fullnameOverride", "crds", "rbac", "externalRedis"}


def test_the_crd_is_the_operators_and_stays(by_default: Objects) -> None:
    crd = the("CustomResourceDefinition", "visionchats.visionchat.dev", by_default)
    assert crd["spec"] == custom_resource_definition()["spec"]
    assert crd["metadata"]["annotations"] == {"helm.sh/resource-policy": "keep"}
    assert "CustomResourceDefinition" not in kinds(template({"crds.enabled": False}))


def test_the_cluster_wide_rights_are_the_generated_ones(by_default: Objects) -> None:
    name = f"{NAMESPACE}-visionchat-operator"
    assert the("ClusterRole", name, by_default)["rules"] == rbac.namespaced() + rbac.cluster()
    assert the("Role", "visionchat-operator-lease", by_default)["rules"] == rbac.lease()
    binding = the("ClusterRoleBinding", name, by_default)
    assert binding["roleRef"]["name"] == name
    assert binding["subjects"] == [{"kind": "ServiceAccount", "name": "visionchat-operator", "namespace": NAMESPACE}]


def test_held_to_a_namespace_it_has_no_right_beyond_it() -> None:
    objects = template({"scope": "Namespace"})
    assert not {"ClusterRole", "ClusterRoleBinding"} & set(kinds(objects))
    assert the("Role", "visionchat-operator", objects)["rules"] == rbac.namespaced()
    assert operators_arguments(objects).namespace == NAMESPACE


def test_its_arguments_are_the_operators(by_default: Objects, everything: Objects) -> None:
    told = operators_arguments(by_default)
    assert (told.default_image, told.namespace) == ("visionchat/serve:0.1.0", None)
    assert (told.redis_secret.name, told.redis_secret.key) == ("visionchat-redis", "url")
    assert operators_arguments(everything).default_image == "registry.example.com:5000/mirror/visionchat/serve:1.0"
    own = template({"redis.enabled": False, "externalRedis.url": "rediss://redis.example.com:6380/1"})
    assert operators_arguments(own).redis_url == "rediss://redis.example.com:6380/1"
    assert operators_arguments(own).redis_secret is None
    told = operators_arguments(
        template({"redis.enabled": False, "externalRedis.secret": {"name": "mine", "key": "address"}})
    )
    assert (told.redis_secret.name, told.redis_secret.key) == ("mine", "address")


def test_visionchats_let_the_operators_pods_in(by_default: Objects) -> None:
    """The operator's NetworkPolicies know its pods by this label, whatever the release is called."""
    for objects in (by_default, template({"nameOverride": "other", "fullnameOverride": "another"})):
        (deployment,) = [one for one in objects if one["kind"] == "Deployment"]
        labels = deployment["spec"]["template"]["metadata"]["labels"]
        assert labels["app.kubernetes.io/name"] == names.MANAGER
        assert deployment["spec"]["selector"]["matchLabels"].items() <= labels.items()


def test_redis_lets_visionchats_in(by_default: Objects, everything: Objects) -> None:
    chats = names.selector(Key(NAMESPACE, "demo"), names.WORKER)
    (rule,) = the("NetworkPolicy", "visionchat-redis", by_default)["spec"]["ingress"]
    assert rule["from"][0]["podSelector"]["matchLabels"].items() <= chats.items()
    (rule,) = the("NetworkPolicy", "visionchat-redis", everything)["spec"]["ingress"]
    (spaces,) = rule["from"][2]["namespaceSelector"]["matchExpressions"]
    assert spaces["values"] == ["team-a", "team-b"]


def test_the_queues_address_is_in_each_namespace_that_uses_it(everything: Objects) -> None:
    secrets = [one for one in everything if one["kind"] == "Secret"]
    assert [one["metadata"]["namespace"] for one in secrets] == [NAMESPACE, "team-a", "team-b"]
    assert len({str(one["stringData"]) for one in secrets}) == 1
    data = secrets[0]["stringData"]
    options = clients(data["url"])[0].connection_pool.connection_kwargs
    assert options["password"] == data["password"]
    assert options["host"] == f"visionchat-redis.{NAMESPACE}.svc"
    assert str(pods(everything)).count(data["password"]) == 0


def test_a_password_is_made_anew_for_each_new_release() -> None:
    made = {the("Secret", "visionchat-redis", template())["stringData"]["password"] for _ in range(2)}
    assert len(made) == 2
    assert all(len(password) == 32 for password in made)


def test_redis_loses_nothing(by_default: Objects) -> None:
    lines = the("ConfigMap", "visionchat-redis", by_default)["data"]["redis.conf"].splitlines()
    assert {"appendonly yes", "appendfsync everysec", "maxmemory-policy noeviction", "maxmemory 512mb"} <= set(lines)
    stateful = the("StatefulSet", "visionchat-redis", by_default)["spec"]
    assert stateful["persistentVolumeClaimRetentionPolicy"] == {"whenDeleted": "Retain", "whenScaled": "Retain"}
    assert stateful["volumeClaimTemplates"][0]["spec"]["resources"]["requests"]["storage"] == "8Gi"


def test_another_version_of_the_chart_restarts_the_operator_alone(by_default: Objects, tmp_path: Path) -> None:
    newer = shutil.copytree(CHART, tmp_path / "visionchat")
    about = newer / "Chart.yaml"
    about.write_text(about.read_text().replace(f"ersion: {__version__}", "ersion: 99.0.0"))
    then = template(chart=newer)
    assert the("StatefulSet", "visionchat-redis", then)["metadata"]["labels"]["helm.sh/chart"] == "visionchat-99.0.0"
    redis, operator = "StatefulSet visionchat-redis", "Deployment visionchat-operator"
    for kind, name in (redis.split(), operator.split()):
        old, new = (the(kind, name, objects)["spec"]["template"] for objects in (by_default, then))
        assert (old == new) == (kind == "StatefulSet")
    assert pods(then)[operator]["containers"][0]["image"] == "visionchat/operator:99.0.0"


def test_a_claim_of_ones_own_or_none() -> None:
    for values, source in (
        ({"redis.persistence.existingClaim": "mine"}, {"persistentVolumeClaim": {"claimName": "mine"}}),
        ({"redis.persistence.enabled": False}, {"emptyDir": {}}),
    ):
        stateful = the("StatefulSet", "visionchat-redis", template(values))["spec"]
        assert "volumeClaimTemplates" not in stateful
        assert {"name": "data", **source} in stateful["template"]["spec"]["volumes"]


def test_images_by_digest_and_from_another_registry(everything: Objects) -> None:
    images = {name: pod["containers"][0]["image"] for name, pod in pods(everything).items()}
    assert images == {
        "Deployment visionchat-operator": f"registry.example.com:5000/mirror/visionchat/operator@sha256:{'0' * 64}",
        "StatefulSet visionchat-redis": "registry.example.com:5000/mirror/redis:8.2",
        "Pod visionchat-test": "registry.example.com:5000/mirror/visionchat/serve:1.0",
    }


def test_monitors_find_the_services_of_operator_and_gateways(everything: Objects) -> None:
    labels = names.labels(Key(NAMESPACE, "demo"), names.HEAD)
    for kind, name in (("ServiceMonitor", "visionchat-gateways"), ("PodMonitor", "visionchat-ray")):
        assert the(kind, name, everything)["spec"]["selector"]["matchLabels"].items() <= labels.items()
    selector = the("ServiceMonitor", "visionchat-operator", everything)["spec"]["selector"]["matchLabels"]
    assert selector.items() <= the("Service", "visionchat-operator", everything)["metadata"]["labels"].items()


def test_one_disruption_budget_where_there_are_several_operators(by_default: Objects, everything: Objects) -> None:
    assert "PodDisruptionBudget" not in kinds(by_default)
    the("PodDisruptionBudget", "visionchat-operator", everything)


def test_everything_has_the_common_labels(everything: Objects) -> None:
    for one in everything:
        assert one["metadata"]["labels"]["example.com/cost-centre"] == "17", one["metadata"]
        assert one["metadata"]["annotations"]["example.com/owner"] == "vision-team", one["metadata"]


def test_helm_test_asks_the_visionchat(everything: Objects) -> None:
    pod = the("Pod", "visionchat-test", everything)
    (container,) = pod["spec"]["containers"]
    assert container["command"] == ["visionchat", "ask"]
    told = understood(serve_cli, "_ask", [*container["command"][1:], *container["args"]])
    assert (told.url, told.api_key) == (f"http://demo.{NAMESPACE}.svc", "$(API_KEY)")
    assert [str(picture) for picture in told.pictures] == ["/pictures/circle-and-square.png"]
    assert pod["metadata"]["annotations"]["helm.sh/hook"] == "test"


def test_every_name_follows_the_override() -> None:
    values = {"fullnameOverride": "another", "metrics.dashboards.enabled": True, "operator.replicas": 2}
    for one in template(values):
        if one["kind"] != "CustomResourceDefinition":
            assert "another" in one["metadata"]["name"], one["metadata"]


def test_install_yaml_is_the_chart_without_helm() -> None:
    documents = list(yaml.safe_load_all((ROOT / "manifests" / "install.yaml").read_text()))
    assert {one["kind"] for one in documents} >= {"Namespace", "CustomResourceDefinition", "Deployment", "StatefulSet"}
    assert not {"Secret", "Pod"} & {one["kind"] for one in documents}
    assert "Helm" not in str(documents)
