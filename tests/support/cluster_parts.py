"""What goes into the test cluster: the chart with Redis and operator, by helm, and VisionChats.

All pods are of the workload's image and see the host's programs; users have images instead.
"""

from __future__ import annotations

from typing import Any

from support.chart import CHART, RELEASE, flags, helm
from support.chart import NAMESPACE as SYSTEM
from support.real_cluster import RealCluster
from support.workload_image import WORKLOAD, mounts, volumes

OPERATOR, REDIS = f"{RELEASE}-operator", f"{RELEASE}-redis"  # Deployment and StatefulSet; the second is a Secret, too
API_VERSION = "visionchat.dev/v1alpha1"


def fill(cluster: RealCluster) -> None:
    """Install the chart. Redis' data is in a folder of the cluster, and outlives its pod."""
    data = cluster.folder / "redis"
    data.mkdir()
    data.chmod(0o777)
    spec = {"capacity": {"storage": "8Gi"}, "accessModes": ["ReadWriteOnce"], "hostPath": {"path": str(data)}}
    spec["claimRef"] = {"namespace": SYSTEM, "name": f"data-{REDIS}-0"}
    cluster.apply({"apiVersion": "v1", "kind": "PersistentVolume", "metadata": {"name": "redis"}, "spec": spec})
    install(cluster)


def install(cluster: RealCluster, **more: Any) -> None:
    """Install or upgrade the chart, `more` being values by their path, and wait until everything runs."""
    words = ["upgrade", "--install", RELEASE, str(CHART), "--namespace", SYSTEM, "--create-namespace", "--wait"]
    helm_says(cluster, *words, "--timeout", "100s", *flags(values() | more))


def helm_says(cluster: RealCluster, *words: str) -> str:
    """Raises AssertionError with what it says when it fails."""
    answer = helm(*words, kubeconfig=cluster.kubeconfig)
    assert answer.returncode == 0, f"helm {words[0]}: {answer.stderr}{answer.stdout}"
    return answer.stdout


def values() -> dict[str, Any]:
    """The workload's image for every pod, and what it has to see."""
    repository, _, tag = WORKLOAD.rpartition(":")
    images = {f"{one}.image": {"repository": repository, "tag": tag} for one in ("operator", "serve", "redis")}
    seen = {f"{one}.pod.volumes": volumes() for one in ("operator", "redis", "test")}
    return images | seen | {f"{one}.pod.volumeMounts": mounts() for one in ("operator", "redis", "test")}


def share_queue(cluster: RealCluster, namespace: str) -> None:
    """Give a namespace the Secret with the queue's address."""
    secret = cluster.api.get(f"/api/v1/namespaces/{SYSTEM}/secrets/{REDIS}")
    body = {"metadata": {"name": REDIS}, "data": secret["data"]}
    cluster.api.create(f"/api/v1/namespaces/{namespace}/secrets", body)


def rolled_out(cluster: RealCluster, kind_and_name: str) -> None:
    """Wait for a Deployment or StatefulSet of the chart."""
    cluster.kubectl("-n", SYSTEM, "rollout", "status", kind_and_name, "--timeout=120s", seconds=130)


def visionchat(namespace: str, name: str = "demo", **spec: Any) -> dict[str, Any]:
    metadata = {"name": name, "namespace": namespace}
    return {"apiVersion": API_VERSION, "kind": "VisionChat", "metadata": metadata, "spec": small(**spec)}


def small(**spec: Any) -> dict[str, Any]:
    """A VisionChat's spec that fits beside others on two CPUs; `spec` adds to it."""
    template = {"volumes": volumes(), "volumeMounts": mounts()} | spec.pop("podTemplate", {})
    own = {"model": {"id": "tiny"}, "image": WORKLOAD, "cpusPerReplica": 1, "memoryPerReplica": "3Gi"}
    return own | {"podTemplate": template} | spec
