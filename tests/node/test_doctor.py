"""The doctor's Job looks at the node that it runs on."""

from __future__ import annotations

from pathlib import Path

import yaml

from support.cluster_fixtures import eventually
from support.cluster_parts import SYSTEM
from support.real_cluster import RealCluster
from support.workload_image import WORKLOAD, mounts, volumes

MANIFEST = Path(__file__).parents[2] / "manifests" / "doctor.yaml"


def test_the_job_says_what_the_kubelet_does(cluster: RealCluster) -> None:
    job = yaml.safe_load(MANIFEST.read_text())
    job["metadata"]["namespace"] = SYSTEM
    pod = job["spec"]["template"]["spec"]
    (container,) = pod["containers"]
    container["image"] = WORKLOAD
    container["volumeMounts"] += mounts()
    pod["volumes"][0]["hostPath"]["path"] = str(cluster.node.kubelet)
    pod["volumes"] += volumes()
    cluster.apply(job)
    path = f"/apis/batch/v1/namespaces/{SYSTEM}/jobs/{job['metadata']['name']}"
    eventually(lambda: {"succeeded", "failed"} & set(cluster.api.get(path)["status"]), "the Job has ended", 60)
    said = cluster.kubectl("-n", SYSTEM, "logs", f"job/{job['metadata']['name']}")
    assert "PROBLEM" not in said
    assert "good     cpu-policy: the kubelet pins (policy static)" in said
    assert "good     redis: Redis writes every job to disk and throws none away" in said
    cluster.kubectl("-n", SYSTEM, "delete", "job", job["metadata"]["name"])
