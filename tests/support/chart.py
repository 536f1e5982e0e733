"""The Helm chart, rendered and judged by the real helm."""

from __future__ import annotations

import json
import os
import subprocess
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml

from support.cluster_binaries import binaries

ROOT = Path(__file__).parents[2]
CHART = ROOT / "charts" / "visionchat"
EVERYTHING = CHART / "ci" / "everything-values.yaml"
RELEASE, NAMESPACE = "visionchat", "visionchat-system"

Objects = list[dict[str, Any]]


def helm(*words: str, kubeconfig: Path | None = None) -> subprocess.CompletedProcess[str]:
    """What helm says; it sees no cluster but that of `kubeconfig`, and none of the user's own settings."""
    with tempfile.TemporaryDirectory(prefix="visionchat-helm-") as home:
        env = {**os.environ, "HOME": home, "KUBECONFIG": str(kubeconfig or f"{home}/none")}
        command = [str(binaries(["helm"])["helm"]), *words]
        return subprocess.run(command, env=env, capture_output=True, text=True, timeout=120, check=False)


def flags(values: Mapping[str, Any] | None = None, files: Sequence[Path] = ()) -> list[str]:
    """`values` by their path, e.g. {"redis.enabled": False}."""
    told = [word for file in files for word in ("--values", str(file))]
    return told + [word for k, v in (values or {}).items() for word in ("--set-json", f"{k}={json.dumps(v)}")]


def template(
    values: Mapping[str, Any] | None = None, *files: Path, chart: Path = CHART, more: Sequence[str] = ()
) -> Objects:
    """All objects that the chart renders, hooks among them."""
    words = ["template", RELEASE, str(chart), "--namespace", NAMESPACE, *flags(values, files), *more]
    answer = helm(*words)
    assert answer.returncode == 0, answer.stderr
    return [document for document in yaml.safe_load_all(answer.stdout) if document]


def refusal(values: Mapping[str, Any], *more: str) -> str:
    """What helm says about values that it must refuse."""
    answer = helm("template", RELEASE, str(CHART), "--namespace", NAMESPACE, *flags(values), *more)
    assert answer.returncode != 0, f"{values} were accepted"
    return answer.stderr


def the(kind: str, name: str, objects: Objects) -> dict[str, Any]:
    (found,) = [o for o in objects if (o["kind"], o["metadata"]["name"]) == (kind, name)]
    return found


def pods(objects: Objects) -> dict[str, dict[str, Any]]:
    """Pod specs by kind and name."""
    found = {}
    for one in objects:
        spec = one.get("spec", {})
        pod = spec if one["kind"] == "Pod" else spec.get("template", {}).get("spec") if "template" in spec else None
        if pod is not None:
            found[f"{one['kind']} {one['metadata']['name']}"] = pod
    return found
