"""Write `manifests/install.yaml`, the chart as plain YAML, or with `--check` fail when it is out of date.

python tests/chart/install_manifest.py [--check]     (needs helm; see tests/support/cluster_binaries.py)
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

sys.path[:0] = [str(Path(__file__).resolve().parents[1])]

from support.chart import NAMESPACE, ROOT, template  # noqa: E402
from support.cluster_binaries import find  # noqa: E402

FILE = ROOT / "manifests" / "install.yaml"
HEADER = """\
# Generated from charts/visionchat by `make generate`. Do not edit.
# Operator, CRD and Redis without Helm. Redis' password comes from a Secret that is yours, made once:
#
#   kubectl create namespace visionchat-system
#   PASSWORD=$(head -c 24 /dev/urandom | base64 | tr -d '+/=')
#   kubectl -n visionchat-system create secret generic visionchat-redis --from-literal=password=$PASSWORD \\
#     --from-literal=url=redis://:$PASSWORD@visionchat-redis.visionchat-system.svc:6379/0
#   kubectl apply --server-side -f manifests/install.yaml
#
# VisionChats in other namespaces need the same Secret there, or a spec.queue of their own.
"""
VALUES = {"redis.existingSecret": "visionchat-redis", "test.enabled": False}
OF_HELM = ("app.kubernetes.io/managed-by", "helm.sh/chart", "helm.sh/resource-policy")


def documents() -> Iterator[dict[str, Any]]:
    labels = {"pod-security.kubernetes.io/enforce": "restricted"}
    yield {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": NAMESPACE, "labels": labels}}
    yield from (_without_helm(one) for one in template(VALUES))


def _without_helm(node: Any) -> Any:
    if isinstance(node, list):
        return [_without_helm(item) for item in node]
    if not isinstance(node, dict):
        return node
    made = {key: _without_helm(value) for key, value in node.items() if key not in OF_HELM}
    return {key: value for key, value in made.items() if key != "annotations" or value}


def text() -> str:
    return HEADER + "---\n".join(yaml.safe_dump(one, sort_keys=False, width=110) for one in documents())


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true", help="write nothing, fail when it is out of date")
    check = parser.parse_args().check
    if find("helm") is None:
        print("building helm, some minutes; then it is kept in the user's cache", file=sys.stderr, flush=True)
    try:
        fresh = text()
    except pytest.skip.Exception as missing:  # a test would be skipped; a check that is not made has failed
        print(f"{FILE.relative_to(ROOT)} is not made or checked: {missing}", file=sys.stderr)
        return 2
    if FILE.exists() and FILE.read_text(encoding="utf-8") == fresh:
        return 0
    if check:
        print(f"out of date: {FILE.relative_to(ROOT)} (run `make generate`)")
        return 1
    FILE.write_text(fresh, encoding="utf-8")
    print(f"wrote {FILE.relative_to(ROOT)}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
