"""What a VisionChat needs in a cluster, as plain manifests: a Redis, the operator as a pod, and the resource itself.

All pods are of the workload's image and see the host's programs; users have images and the chart instead.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import yaml

from support.workload_image import ROOT, USER, WORKLOAD, mounts, volumes
from visionchat_serve.redis_server import find_servers

SYSTEM, OPERATOR, REDIS = "visionchat-system", "visionchat-operator", "visionchat-redis"
REDIS_URL = f"redis://{REDIS}.{SYSTEM}:6379/0"


def redis(data: Path) -> list[dict[str, Any]]:
    """Its data is in `data` of the host, and outlives its pod."""
    flags = ["--port", "6379", "--bind", "0.0.0.0", "--protected-mode", "no", "--dir", "/data"]
    flags += ["--appendonly", "yes", "--save", "", "--maxmemory-policy", "noeviction"]
    ready = {"tcpSocket": {"port": 6379}, "periodSeconds": 1}
    program, _ = next(find_servers())
    container = _container("redis", [str(program), *flags]) | {"readinessProbe": ready}
    container["volumeMounts"] = [*mounts(), {"name": "data", "mountPath": "/data"}]
    pod = _pod(container, [*volumes(), {"name": "data", "hostPath": {"path": str(data), "type": "DirectoryOrCreate"}}])
    pod["securityContext"] = {"runAsUser": 0}  # a folder of the host's is root's
    ports = [{"port": 6379}]
    service = {"apiVersion": "v1", "kind": "Service", "spec": {"selector": {"app": REDIS}, "ports": ports}}
    return [_deployment(REDIS, pod), service | {"metadata": {"name": REDIS, "namespace": SYSTEM}}]


def operator(*flags: str) -> dict[str, Any]:
    command = [
        "python",
        "-m",
        "visionchat_operator.cli",
        "run",
        "--redis-url",
        REDIS_URL,
        "--default-image",
        WORKLOAD,
        *flags,
    ]
    container = _container("operator", command)
    healthy = {"httpGet": {"path": "/healthz", "port": 8080}, "timeoutSeconds": 5}
    container["readinessProbe"] = healthy | {"periodSeconds": 1}
    container["livenessProbe"] = healthy | {"periodSeconds": 10}
    pod = _pod(container, volumes()) | {"serviceAccountName": OPERATOR}
    return _deployment(OPERATOR, pod)


def manifests() -> list[dict[str, Any]]:
    """The CRD and the operator's rights, as users apply them."""
    files = [ROOT / "manifests" / name for name in ("crd.yaml", "rbac.yaml")]
    return [document for file in files for document in yaml.safe_load_all(file.read_text())]


def small(**spec: Any) -> dict[str, Any]:
    """A VisionChat's spec that fits beside others on two CPUs; `spec` adds to it."""
    template = {"volumes": volumes(), "volumeMounts": mounts()} | spec.pop("podTemplate", {})
    own = {"model": {"id": "tiny"}, "image": WORKLOAD, "cpusPerReplica": 1, "memoryPerReplica": "3Gi"}
    return own | {"podTemplate": template} | spec


def _container(name: str, command: list[str]) -> dict[str, Any]:
    return {"name": name, "image": WORKLOAD, "command": command, "volumeMounts": mounts()}


def _pod(container: dict[str, Any], its_volumes: list[dict[str, Any]]) -> dict[str, Any]:
    return {"containers": [container], "volumes": its_volumes, "terminationGracePeriodSeconds": 10}


def _deployment(name: str, pod: dict[str, Any]) -> dict[str, Any]:
    labels = {"app": name, "app.kubernetes.io/name": name}
    template = {"metadata": {"labels": labels}, "spec": {"securityContext": {"runAsUser": USER}} | pod}
    spec = {
        "replicas": 1,
        "strategy": {"type": "Recreate"},
        "selector": {"matchLabels": {"app": name}},
        "template": template,
    }
    return {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {"name": name, "namespace": SYSTEM},
        "spec": spec,
    }
