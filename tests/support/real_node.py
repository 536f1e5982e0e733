"""A real node on this machine: containerd, kubelet with the static CPU manager, kube-proxy, cluster DNS. Needs root.

Addresses are from 198.18.0.0/15, the range set aside for tests: the node is 198.18.7.1 on a bridge of its own, pods are
198.18.7.0/24, Services 198.18.128.0/20. One of the CPUs stays shared, the others can be given out exclusively.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

import yaml

from support import workload_image
from support.cluster_binaries import binaries
from support.cluster_fixtures import eventually
from support.daemons import Daemons
from support.node_traces import NodeTraces

NAME, BRIDGE, ADDRESS, PODS = "node-1", "vcbr0", "198.18.7.1", "198.18.7.0/24"
DNS_PORT, READY_PORT, KUBELET_PORT = 53, 18181, 10250
CNI_PROGRAMS = Path("/usr/lib/cni")
PROGRAMS = ("containerd", "containerd-shim-runc-v2", "ctr", "kubelet", "kube-proxy", "coredns", "pause")
PACKAGES = {"runc": "runc", "nft": "nftables", "ip": "iproute2"}
COREFILE = """\
.:{port} {{
    bind {address}
    errors
    ready {address}:{ready}
    kubernetes cluster.local in-addr.arpa {{
        kubeconfig {kubeconfig}
        ttl 1
    }}
}}
"""
CONTAINERD = """\
version = 3
root = "{folder}/containerd/root"
state = "{folder}/containerd/state"
[grpc]
  address = "{folder}/containerd.sock"
[plugins.'io.containerd.cri.v1.images']
  snapshotter = "overlayfs"
  [plugins.'io.containerd.cri.v1.images'.pinned_images]
    sandbox = "{pause}"
[plugins.'io.containerd.cri.v1.runtime']
  restrict_oom_score_adj = true
  netns_mounts_under_state_dir = true
  [plugins.'io.containerd.cri.v1.runtime'.containerd.runtimes.runc]
    runtime_type = "io.containerd.runc.v2"
    [plugins.'io.containerd.cri.v1.runtime'.containerd.runtimes.runc.options]
      SystemdCgroup = false
  [plugins.'io.containerd.cri.v1.runtime'.cni]
    bin_dirs = ["{cni}"]
    conf_dir = "{folder}/cni"
"""


def missing() -> str | None:
    """What this machine lacks for a node, and how it is had; None: nothing."""
    if os.geteuid() != 0:
        return "a node needs root: it makes a bridge, mounts and control groups"
    return f"not installed: apt-get install {' '.join(packages())}" if packages() else None


def packages() -> list[str]:
    """Debian's names of what is not installed."""
    path = f"{os.environ['PATH']}:/usr/sbin:/sbin"
    names = [package for program, package in PACKAGES.items() if shutil.which(program, path=path) is None]
    return names if (CNI_PROGRAMS / "bridge").exists() else [*names, "containernetworking-plugins"]


class RealNode:
    """Files and processes in `folder`. `policy` is the kubelet's CPU manager policy, "static" or "none"."""

    def __init__(self, folder: Path, kubeconfig: Path, policy: str = "static") -> None:
        self.folder, self.kubeconfig, self.policy = folder, kubeconfig, policy
        self.daemons = Daemons(folder)
        self.traces = NodeTraces(folder, BRIDGE)

    def make_network(self) -> None:
        """First of all: the API server listens on the bridge's address."""
        self.folder.mkdir(parents=True, exist_ok=True)
        self.traces.remember()
        run("ip", "link", "add", BRIDGE, "type", "bridge")
        run("ip", "addr", "add", f"{ADDRESS}/24", "dev", BRIDGE)
        run("ip", "link", "set", BRIDGE, "up")

    def start(self) -> None:
        self._paths = binaries(PROGRAMS)
        self._write_files()
        tools = f"{self._paths['containerd-shim-runc-v2'].parent}:{os.environ['PATH']}:/usr/sbin"
        env = {"PATH": tools, "HOME": "/root"}
        self.daemons.start([str(self._paths["containerd"]), "--config", str(self.folder / "containerd.toml")], env=env)
        self._import_images()
        self.daemons.start([str(self._paths["coredns"]), "-conf", str(self.folder / "Corefile")], env=env)
        self.daemons.start([str(self._paths["kube-proxy"]), "--config", str(self.folder / "proxy.yaml")], env=env)
        self.start_kubelet()

    def start_kubelet(self) -> None:
        """Anew after `stop_kubelet`, with whatever `policy` is now."""
        self._write_kubelet()
        command = [
            "--config", self.folder / "kubelet.yaml", "--kubeconfig", self.kubeconfig, "--root-dir", self.kubelet,
            "--hostname-override", NAME, "--node-ip", ADDRESS, "--cert-dir", self.folder / "kubelet-pki",
        ]  # fmt: skip
        env = {"PATH": f"{os.environ['PATH']}:/usr/sbin", "HOME": "/root"}
        self.daemons.start([str(self._paths["kubelet"]), *map(str, command)], env=env)

    def stop_kubelet(self, forget: bool = False) -> None:
        """`forget` its CPU assignments: it refuses to start with another policy while it remembers them."""
        self.daemons.stop("kubelet")
        if forget:
            (self.kubelet / "cpu_manager_state").unlink(missing_ok=True)

    def stop(self) -> None:
        """Leave nothing: pods are killed, mounts, control groups, bridge and rules are taken away."""
        self.daemons.stop("kubelet")
        self.traces.kill_pods()
        self.daemons.stop(by=signal.SIGTERM)
        self.traces.remove()

    @property
    def kubelet(self) -> Path:
        return self.folder / "kubelet"

    def cpu_state(self) -> dict[str, Any]:
        """The kubelet's own file: `policyName`, `defaultCpuSet`, and `entries` by the pods' uid and container; empty
        until it has written it."""
        try:
            state: dict[str, Any] = json.loads((self.kubelet / "cpu_manager_state").read_text())
        except FileNotFoundError:
            return {}
        return state

    def _import_images(self) -> None:
        for archive in (workload_image.pause(self._paths["pause"]), workload_image.workload()):
            command = [*self._ctr(), "images", "import", "-"]
            importing = partial(subprocess.run, command, input=archive, capture_output=True, timeout=60)
            eventually(lambda go=importing: go().returncode == 0, "containerd takes an image")

    def _ctr(self) -> list[str]:
        return [str(self._paths["ctr"]), "--address", f"{self.folder}/containerd.sock", "--namespace", "k8s.io"]

    # --- files ---

    def _write_files(self) -> None:
        names = {"folder": self.folder, "pause": workload_image.PAUSE, "cni": CNI_PROGRAMS}
        (self.folder / "containerd.toml").write_text(CONTAINERD.format(**names))
        dns = {"port": DNS_PORT, "address": ADDRESS, "ready": READY_PORT, "kubeconfig": self.kubeconfig}
        (self.folder / "Corefile").write_text(COREFILE.format(**dns))
        (self.folder / "resolv.conf").write_text("")  # pods ask the cluster's DNS only
        (self.folder / "cni").mkdir(exist_ok=True)
        (self.folder / "cni" / "10-bridge.conflist").write_text(json.dumps(self._network()))
        self._write("proxy.yaml", "kubeproxy.config.k8s.io/v1alpha1", "KubeProxyConfiguration", self._proxy())

    def _network(self) -> dict[str, Any]:
        ranges = [[{"subnet": PODS, "rangeStart": "198.18.7.10", "gateway": ADDRESS}]]
        addresses = {"type": "host-local", "ranges": ranges, "dataDir": f"{self.folder}/addresses"}
        addresses["routes"] = [{"dst": "0.0.0.0/0"}]
        bridge = {"type": "bridge", "bridge": BRIDGE, "isGateway": True, "hairpinMode": True, "ipam": addresses}
        return {"cniVersion": "1.0.0", "name": "visionchat-test", "plugins": [bridge]}

    def _proxy(self) -> dict[str, Any]:
        return {
            "mode": "nftables",
            "clientConnection": {"kubeconfig": str(self.kubeconfig)},
            "hostnameOverride": NAME,
            "clusterCIDR": PODS,
            "metricsBindAddress": f"{ADDRESS}:10249",
            "healthzBindAddress": f"{ADDRESS}:10256",
            # The machine's own limits are none of our business.
            "conntrack": {"maxPerCore": 0, "min": 0, "tcpEstablishedTimeout": "0s", "tcpCloseWaitTimeout": "0s"},
        }

    def _write_kubelet(self) -> None:
        self._write("kubelet.yaml", "kubelet.config.k8s.io/v1beta1", "KubeletConfiguration", self._kubelet_config())

    def _kubelet_config(self) -> dict[str, Any]:
        thresholds = ("memory.available", "nodefs.available", "imagefs.available", "nodefs.inodesFree")
        return {
            "cpuManagerPolicy": self.policy,
            "cpuManagerReconcilePeriod": "2s",
            # One CPU is shared, yet nearly two can be asked for: the Ray head has to fit beside a pinned replica.
            "kubeReserved": {"cpu": "100m"},
            "enforceNodeAllocatable": ["pods"],
            "cgroupDriver": "cgroupfs",
            "cgroupRoot": "/",
            "failCgroupV1": False,
            "failSwapOn": False,
            "containerRuntimeEndpoint": f"unix://{self.folder}/containerd.sock",
            "address": ADDRESS,
            "port": KUBELET_PORT,
            "healthzPort": 0,
            "authentication": {"anonymous": {"enabled": True}, "webhook": {"enabled": False}},
            "authorization": {"mode": "AlwaysAllow"},
            "clusterDNS": [ADDRESS],
            "clusterDomain": "cluster.local",
            "resolvConf": str(self.folder / "resolv.conf"),
            "podLogsDir": str(self.folder / "pod-logs"),
            "volumePluginDir": str(self.folder / "volume-plugins"),
            "evictionHard": dict.fromkeys(thresholds, "1%"),
            "imageGCHighThresholdPercent": 100,
            "imageGCLowThresholdPercent": 99,
            "nodeStatusUpdateFrequency": "2s",
            "nodeStatusReportFrequency": "10s",
        }

    def _write(self, name: str, version: str, kind: str, body: Mapping[str, Any]) -> None:
        (self.folder / name).write_text(yaml.safe_dump({"apiVersion": version, "kind": kind, **body}))


def run(*command: str) -> str:
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, f"{' '.join(command)}: {done.stderr}"
    return done.stdout
