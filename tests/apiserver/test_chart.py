"""The chart on a real API server: every object is taken; installed, upgraded and uninstalled by the real helm.

There is no kubelet, so no pod runs. Monitoring's CRDs are stand-ins without a schema: whether a ServiceMonitor is
a good one is not told here.
"""

from __future__ import annotations

import base64
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from support.chart import CHART, EVERYTHING, ROOT, flags, helm, template
from support.cluster_binaries import binaries
from support.cluster_fixtures import eventually
from support.control_plane import Api, ControlPlane, environment

CRDS = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
OURS = "visionchats.visionchat.dev"
MONITORING = {"ServiceMonitor": "servicemonitors", "PodMonitor": "podmonitors", "PrometheusRule": "prometheusrules"}


def stand_in(kind: str, plural: str) -> dict[str, Any]:
    version = {
        "name": "v1",
        "served": True,
        "storage": True,
        "schema": {"openAPIV3Schema": {"type": "object", "x-kubernetes-preserve-unknown-fields": True}},
    }
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": f"{plural}.monitoring.coreos.com"},
        "spec": {
            "group": "monitoring.coreos.com",
            "scope": "Namespaced",
            "names": {"kind": kind, "plural": plural, "singular": kind.lower(), "listKind": f"{kind}List"},
            "versions": [version],
        },
    }


@pytest.fixture(scope="module")
def monitoring(plane: ControlPlane) -> None:
    for kind, plural in MONITORING.items():
        plane.api.create(CRDS, stand_in(kind, plural))
    for plural in MONITORING.values():
        path = f"/apis/monitoring.coreos.com/v1/{plural}"
        eventually(lambda path=path: plane.api.call("GET", path).status_code == 200, f"{path} is served")


@pytest.fixture
def spaces(api: Api) -> None:
    """The namespaces that everything-values.yaml names."""
    made = [space for space in ("team-a", "team-b") if api.get(f"/api/v1/namespaces/{space}") is None]
    for space in made:
        api.create("/api/v1/namespaces", {"metadata": {"name": space}})


@pytest.fixture
def own_crd(api: Api) -> Iterator[None]:
    """The session's CRD as one that Helm may take over, and in the end as it was."""
    before = api.get(f"{CRDS}/{OURS}")["metadata"]
    yield
    marks = {"labels": None, "annotations": before.get("annotations")}
    api.merge(f"{CRDS}/{OURS}", {"metadata": marks})


def tried(plane: ControlPlane, objects: list[dict[str, Any]], folder: Path) -> str:
    """What kubectl says when the API server judges them all; warnings (as of Pod Security) are errors."""
    file = folder / "objects.yaml"
    file.write_text(yaml.safe_dump_all(objects))
    kubectl = [str(binaries(["kubectl"])["kubectl"]), "--kubeconfig", str(plane.kubeconfig), "--warnings-as-errors"]
    command = [*kubectl, "apply", "--server-side", "--force-conflicts", "--dry-run=server", "-f", str(file)]
    answer = subprocess.run(command, env=environment(), capture_output=True, text=True, timeout=60, check=False)
    assert answer.returncode == 0, answer.stderr
    return answer.stdout


def strict(api: Api) -> None:
    """Say it, too, when a Deployment's pods would not be let in."""
    labels = {f"pod-security.kubernetes.io/{mode}": "restricted" for mode in ("enforce", "warn")}
    space = "/api/v1/namespaces/visionchat-system"
    api.merge(space, {"metadata": {"labels": labels}})
    if api.get(f"{space}/serviceaccounts/default") is None:  # a controller's work, which does not run here
        api.create(f"{space}/serviceaccounts", {"metadata": {"name": "default"}})


@pytest.mark.parametrize("values", [None, EVERYTHING], ids=["defaults", "everything"])
def test_the_api_server_takes_every_object(
    plane: ControlPlane, monitoring: None, spaces: None, tmp_path: Path, values: Path | None
) -> None:
    strict(plane.api)
    objects = template(None, *filter(None, [values]))
    said = tried(plane, objects, tmp_path)
    assert said.count("serverside-applied") == len(objects)


def test_the_api_server_takes_install_yaml(plane: ControlPlane, tmp_path: Path) -> None:
    strict(plane.api)
    objects = list(yaml.safe_load_all((ROOT / "manifests" / "install.yaml").read_text()))
    assert tried(plane, objects, tmp_path).count("serverside-applied") == len(objects)


def test_a_pod_that_is_not_restricted_would_be_told(plane: ControlPlane, tmp_path: Path) -> None:
    strict(plane.api)
    objects = template()
    for one in objects:
        if one["kind"] == "StatefulSet":
            del one["spec"]["template"]["spec"]["containers"][0]["securityContext"]
    with pytest.raises(AssertionError, match="would violate PodSecurity"):
        tried(plane, objects, tmp_path)


class Release:
    def __init__(self, plane: ControlPlane, namespace: str) -> None:
        self.plane, self.namespace = plane, namespace

    def helm(self, *words: str) -> subprocess.CompletedProcess[str]:
        return helm(*words, "--namespace", self.namespace, kubeconfig=self.plane.kubeconfig)

    def install(self, **values: Any) -> str:
        """NOTES included. The CRD of the session becomes the release's."""
        told = flags({name.replace("__", "."): value for name, value in values.items()})
        answer = self.helm("upgrade", "--install", "visionchat", str(CHART), "--take-ownership", *told)
        assert answer.returncode == 0, answer.stderr
        return answer.stdout

    def get(self, plural: str, name: str, group: str = "api/v1") -> Any:
        return self.plane.api.get(f"/{group}/namespaces/{self.namespace}/{plural}/{name}")

    def password(self) -> str:
        return base64.b64decode(self.get("secrets", "visionchat-redis")["data"]["password"]).decode()


@pytest.fixture
def release(plane: ControlPlane, api: Api, own_crd: None) -> Iterator[Release]:
    api.create("/api/v1/namespaces", {"metadata": {"name": "release"}})
    one = Release(plane, "release")
    yield one
    one.helm("uninstall", "visionchat", "--ignore-not-found")


def test_install_upgrade_uninstall(release: Release, api: Api) -> None:
    notes = release.install()
    assert "kind: VisionChat" in notes
    assert f"helm -n {release.namespace} test visionchat" in notes
    password = release.password()
    release.install(operator__replicas=2, visionchats__demo={"spec": {"model": {"id": "tiny"}}})
    assert release.password() == password
    assert release.get("deployments", "visionchat-operator", "apis/apps/v1")["spec"]["replicas"] == 2
    assert release.get("visionchats", "demo", "apis/visionchat.dev/v1alpha1")["spec"]["model"]["id"] == "tiny"
    said = release.helm("uninstall", "visionchat")
    assert said.returncode == 0, said.stderr
    assert OURS in said.stdout + said.stderr
    assert api.get(f"{CRDS}/{OURS}") is not None
    left = [
        f"{plural}/{one['metadata']['name']}"
        for group, plural in (
            ("api/v1", "secrets"), ("api/v1", "configmaps"), ("api/v1", "services"), ("api/v1", "serviceaccounts"),
            ("apis/apps/v1", "deployments"), ("apis/apps/v1", "statefulsets"),
            ("apis/visionchat.dev/v1alpha1", "visionchats"), ("apis/networking.k8s.io/v1", "networkpolicies"),
            ("apis/rbac.authorization.k8s.io/v1", "roles"), ("apis/rbac.authorization.k8s.io/v1", "rolebindings"),
        )
        for one in api.get(f"/{group}/namespaces/{release.namespace}/{plural}")["items"]
        if one["metadata"]["name"] not in ("default", "kube-root-ca.crt")
    ]  # fmt: skip
    assert left == []
    roles = api.get("/apis/rbac.authorization.k8s.io/v1/clusterroles")["items"]
    assert not [role for role in roles if role["metadata"]["name"].startswith(release.namespace)]
