"""A whole Kubernetes on this machine: control plane, scheduler, and one real node."""

from __future__ import annotations

import json
import shutil
import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from support.cluster_binaries import binaries
from support.cluster_fixtures import eventually
from support.control_plane import Api, ControlPlane
from support.real_node import ADDRESS, NAME, RealNode


class RealCluster:
    """Everything lives in `folder`; whoever knows it can stop the cluster."""

    def __init__(self, folder: Path, policy: str = "static") -> None:
        self.folder = folder
        self.plane = ControlPlane(folder / "plane", ADDRESS)
        self.node = RealNode(folder / "node", self.plane.kubeconfig, policy)

    @property
    def api(self) -> Api:
        return self.plane.api

    @property
    def kubeconfig(self) -> Path:
        return self.plane.kubeconfig

    def start(self) -> None:
        """Return when the node is ready."""
        (scheduler,) = binaries(["kube-scheduler"]).values()
        self.node.make_network()
        self.plane.start(["kube-controller-manager"])
        own = ["--kubeconfig", str(self.kubeconfig), "--leader-elect=false", "--secure-port", "0"]
        self.plane.daemons.start([str(scheduler), *own])
        self.node.start()
        self.wait_for_node()

    def wait_for_node(self) -> None:
        eventually(self._is_ready, "the node is ready and the default service account is there", 60)

    def stop(self) -> None:
        """Also of a cluster that another process has started, or only half."""
        self.node.stop()
        # It would wait for the watches of pods that were killed, and whose connections hang.
        self.plane.daemons.stop("kube-apiserver", by=signal.SIGKILL)
        self.plane.stop()
        shutil.rmtree(self.folder, ignore_errors=True)

    def kubectl(self, *arguments: str, standard_input: str | None = None, seconds: float = 60) -> str:
        """What it prints. Raises AssertionError with what it says when it fails."""
        (program,) = binaries(["kubectl"]).values()
        command = [str(program), "--kubeconfig", str(self.kubeconfig), *arguments]
        done = subprocess.run(
            command, input=standard_input, capture_output=True, text=True, timeout=seconds, check=False
        )
        assert done.returncode == 0, f"kubectl {' '.join(arguments)}: {done.stderr}"
        return done.stdout

    def apply(self, *objects: dict[str, Any]) -> None:
        body = {"apiVersion": "v1", "kind": "List", "items": list(objects)}
        self.kubectl("apply", "-f", "-", standard_input=json.dumps(body))

    def describe(self, *namespaces: str) -> str:
        """Pods, events and logs, for a test that failed."""
        parts = []
        for name in namespaces:
            parts.append(self.kubectl("-n", name, "get", "pods,visionchats", "-o", "wide"))
            parts.append(self.kubectl("-n", name, "get", "events", "--sort-by=.lastTimestamp"))
            for pod in self.api.get(f"/api/v1/namespaces/{name}/pods")["items"]:
                own = pod["metadata"]["name"]
                log = self.api.call("GET", f"/api/v1/namespaces/{name}/pods/{own}/log?tailLines=40")
                parts.append(f"--- {own} ---\n{log.text}")
        return "\n".join(parts)

    def _is_ready(self) -> bool:
        self.plane.daemons.check()
        self.node.daemons.check()
        node = self.api.get(f"/api/v1/nodes/{NAME}") or {}
        conditions = {one["type"]: one["status"] for one in node.get("status", {}).get("conditions", ())}
        account = self.api.get("/api/v1/namespaces/default/serviceaccounts/default")
        return conditions.get("Ready") == "True" and account is not None


@contextmanager
def real_cluster(folder: Path, policy: str = "static") -> Iterator[RealCluster]:
    cluster = RealCluster(folder, policy)
    try:
        cluster.start()
        yield cluster
    finally:
        cluster.stop()
