"""The chart on a real API server: every object is taken, and every pod is let in.

Monitoring's CRDs are stand-ins without a schema: whether a ServiceMonitor is
a good one is not told here.
"""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from support.chart import EVERYTHING, ROOT, template
from support.cluster_binaries import binaries
from support.cluster_fixtures import eventually
from support.control_plane import Api, ControlPlane, environment

CRDS = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
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
