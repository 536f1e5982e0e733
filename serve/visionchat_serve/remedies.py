"""What to change where `doctor` finds fault, and how on each kind of cluster. Texts only."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum


class Platform(StrEnum):
    KUBEADM = "kubeadm"
    EKS = "eks"
    GKE = "gke"
    AKS = "aks"
    K3S = "k3s"


@dataclass(frozen=True, slots=True)
class Remedy:
    """`change` in words; `how` is empty where it is the same everywhere."""

    change: str
    how: Mapping[Platform, str] = field(default_factory=dict)


def _on(kubeadm: str, eks: str, gke: str, aks: str, k3s: str) -> dict[Platform, str]:
    return dict(zip(Platform, (kubeadm, eks, gke, aks, k3s), strict=True))


# A running kubelet refuses to start with another policy or other CPUs than those in its state file.
_KUBEADM_RESTART = (
    "kubectl drain NODE, systemctl stop kubelet, rm /var/lib/kubelet/cpu_manager_state, systemctl start kubelet, "
    "kubectl uncordon NODE"
)
_K3S_RESTART = (
    "drain the node, systemctl stop k3s (k3s-agent on agents), rm /var/lib/kubelet/cpu_manager_state, start it again"
)
_NODEADM = "in the launch template's user data (NodeConfig), spec.kubelet.config"
_GKE_POOL = "gcloud container node-pools create POOL --system-config-from-file=FILE with kubeletConfig"
_AKS_POOL = "az aks nodepool add --kubelet-config FILE with"

STATIC_POLICY = Remedy(
    "let the kubelet of these nodes give CPUs of their own: CPU manager policy static, some CPUs reserved for the rest",
    _on(
        "in /var/lib/kubelet/config.yaml cpuManagerPolicy: static and reservedSystemCPUs: '0'; then "
        + _KUBEADM_RESTART,
        f"{_NODEADM}: cpuManagerPolicy: static; on Bottlerocket settings.kubernetes.cpu-manager-policy = 'static'; "
        "then replace the nodes",
        f"{_GKE_POOL}: {{cpuManagerPolicy: static}} (not on Autopilot)",
        f'{_AKS_POOL} {{"cpuManagerPolicy": "static"}}; only new node pools take it',
        "in /etc/rancher/k3s/config.yaml kubelet-arg: [cpu-manager-policy=static, reserved-cpus=0]; "
        f"then {_K3S_RESTART}",
    ),
)
PIN = Remedy(
    "ask for CPUs of their own: spec.pinning.mode: QueueDepth or Always in the VisionChat; and see that no admission "
    "webhook changes the pod's requests and limits"
)
FULL_CORES = Remedy(
    "give out whole cores only, so that no neighbour runs on the other hyper-thread: CPU manager option "
    "full-pcpus-only (cpusPerReplica must then be a multiple of a core's threads), or nodes without hyper-threading",
    _on(
        "in /var/lib/kubelet/config.yaml cpuManagerPolicyOptions: {full-pcpus-only: 'true'}; then " + _KUBEADM_RESTART,
        f"{_NODEADM}: cpuManagerPolicyOptions: {{full-pcpus-only: 'true'}}, or in the launch template "
        "CpuOptions: ThreadsPerCore=1; then replace the nodes",
        "the option cannot be set; gcloud container node-pools create POOL --threads-per-core=1",
        "the option cannot be set; let cpusPerReplica be even, so that the kubelet prefers whole cores",
        "in /etc/rancher/k3s/config.yaml kubelet-arg: cpu-manager-policy-options=full-pcpus-only=true; "
        f"then {_K3S_RESTART}",
    ),
)
ONE_NUMA_NODE = Remedy(
    "keep a replica on one NUMA node: topology manager policy single-numa-node, cpusPerReplica no more than one has",
    _on(
        "in /var/lib/kubelet/config.yaml topologyManagerPolicy: single-numa-node; then " + _KUBEADM_RESTART,
        f"{_NODEADM}: topologyManagerPolicy: single-numa-node; then replace the nodes",
        f"{_GKE_POOL}: {{topologyManager: {{policy: single-numa-node}}}}",
        f'{_AKS_POOL} {{"topologyManagerPolicy": "single-numa-node"}}',
        f"in /etc/rancher/k3s/config.yaml kubelet-arg: topology-manager-policy=single-numa-node; then {_K3S_RESTART}",
    ),
)
NEWER_CPU = Remedy(
    "use nodes with AVX-512 and bfloat16, or better with AMX",
    _on(
        "Xeon of the 4th generation or EPYC of the 4th (Zen 4) or newer; virtual machines with CPU type `host`",
        "instance families m7i, c7i, r7i or newer (AMX), or m7a, c7a (AVX-512 with bfloat16)",
        "machine series c3 or c4 (AMX), or c3d, c4d (AVX-512 with bfloat16)",
        "sizes of the Intel v6 series such as Dsv6 (AMX), or of the AMD v6 series such as Dasv6",
        "Xeon of the 4th generation or EPYC of the 4th (Zen 4) or newer; virtual machines with CPU type `host`",
    ),
)
AUTO_PRECISION = Remedy("leave the choice to VisionChat: dtype `auto`; in the VisionChat spec.model.precision: auto")
MORE_MEMORY = Remedy("raise the memory limit (in the VisionChat spec.memoryPerReplica), or lower picture_cache_bytes")
NO_QUOTA = Remedy(
    "give replicas CPUs of their own, which have no quota (Kubernetes 1.33 and newer); for shared ones ask for as many "
    "CPUs as they use threads (cpusPerReplica), or take quotas off these nodes",
    _on(
        f"in /var/lib/kubelet/config.yaml cpuCFSQuota: false; then {_KUBEADM_RESTART}",
        f"{_NODEADM}: cpuCFSQuota: false; then replace the nodes",
        f"{_GKE_POOL}: {{cpuCfsQuota: false}}",
        f'{_AKS_POOL} {{"cpuCfsQuota": false}}',
        f"in /etc/rancher/k3s/config.yaml kubelet-arg: cpu-cfs-quota=false; then {_K3S_RESTART}",
    ),
)
WHOLE_CPUS = Remedy("let the CPU limit be a whole number: what is over one cannot be used by a thread")
NO_SIDECARS = Remedy(
    "keep the sidecar out of the replicas' pods: it takes the pod its Guaranteed class or shares its CPUs. In the "
    "VisionChat spec.podTemplate.annotations or labels: sidecar.istio.io/inject: 'false' (Istio, a label), "
    "linkerd.io/inject: disabled, dapr.io/enabled: 'false', consul.hashicorp.com/connect-inject: 'false'"
)
FAST_STORAGE = Remedy(
    "keep the model on a disk of the node's zone, not on a network file system: spec.model.storageClassName",
    _on(
        "a local persistent volume, or the storage class of a block device driver",
        "storage class of the EBS driver with type gp3, not EFS",
        "storage class premium-rwo or a Hyperdisk class, not Filestore",
        "storage class managed-csi-premium, not azurefile",
        "storage class local-path",
    ),
)
SHARED_MEMORY = Remedy("mount an emptyDir with medium Memory and at least 256Mi at /dev/shm, as the operator's pods do")
KEEP_JOBS = Remedy(
    "let Redis write every job to disk before it is lost with the process: an append-only file",
    _on(
        "redis-server --appendonly yes --appendfsync everysec on a persistent volume (CONFIG SET appendonly yes now)",
        "MemoryDB is durable; ElastiCache is not: use it with replicas and failover, or Redis in the cluster",
        "Memorystore with AOF persistence, or Redis in the cluster",
        "Azure Managed Redis with AOF persistence, or Redis in the cluster",
        "redis-server --appendonly yes --appendfsync everysec on a persistent volume (CONFIG SET appendonly yes now)",
    ),
)
NO_EVICTION = Remedy(
    "Redis must never throw jobs away to make room: maxmemory-policy noeviction; VisionChat then answers 503 when full",
    _on(
        "redis-server --maxmemory-policy noeviction (CONFIG SET maxmemory-policy noeviction now)",
        "maxmemory-policy noeviction in the parameter group",
        "gcloud redis instances update NAME --update-redis-config=maxmemory-policy=noeviction",
        "eviction policy NoEviction in the settings of the instance",
        "redis-server --maxmemory-policy noeviction (CONFIG SET maxmemory-policy noeviction now)",
    ),
)
MORE_REDIS_MEMORY = Remedy("give Redis more memory (maxmemory and the pod's limit), or lower max_waiting")
REACH_REDIS = Remedy("check address, password, TLS and NetworkPolicies: this process cannot reach the queue")
NEWER_REDIS = Remedy("use Redis 6.2 or newer, or Valkey")
WRITABLE_REDIS = Remedy("name the master, or the Sentinels that know it (redis+sentinel://), not a replica")
FIX_REDIS_DISK = Remedy("see Redis' log: its disk is full or failing, and what it accepts now is lost if it stops")
