"""Judges what was seen of machine, pod, node and queue. Pure: facts in, findings out; `doctor_command` calls it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum
from pathlib import PurePosixPath

from visionchat_serve import remedies
from visionchat_serve.cgroup import format_cpu_list
from visionchat_serve.node_facts import NodeFacts
from visionchat_serve.queue_facts import QueueFacts
from visionchat_serve.remedies import Remedy

GIB = 1 << 30
OVERHEAD_BYTES = 3 * GIB // 2  # Python, PyTorch, Ray's worker and what a model step needs beside weights and cache
THROTTLED_SHARE = 0.01  # of the quota's periods
FULL_SHARE = 0.8
SHARED_MEMORY_BYTES = 128 << 20
NETWORK_FILE_SYSTEMS = ("nfs", "nfs4", "cifs", "smb3", "9p", "ceph", "lustre", "fuse", "glusterfs")
SIDECARS = {
    15001: "Istio",
    15006: "Istio",
    15090: "Istio",
    4143: "Linkerd",
    4191: "Linkerd",
    3500: "Dapr",
    20200: "Consul Connect",
}


class Level(StrEnum):
    """`problem`: something does not work or can be lost; `warning`: slower than it need be; `note`: good to know."""

    PROBLEM = "problem"
    WARNING = "warning"
    NOTE = "note"
    GOOD = "good"


@dataclass(frozen=True, slots=True)
class Finding:
    check: str
    level: Level
    message: str
    remedy: Remedy | None = None


@dataclass(frozen=True, slots=True)
class Plan:
    """What is to run here: `cpus` of a replica (None: all), the model's `weights_bytes` and where it lies."""

    cpus: int | None = None
    dtype: str = "auto"
    weights_bytes: int = 0
    cache_bytes: int = 0
    model_folder: str | None = None


def examine(node: NodeFacts, queue: QueueFacts | None, plan: Plan) -> list[Finding]:
    """One finding or more for each check; `queue` is None where there is none to look at."""
    checks: Iterable[Iterable[Finding]] = (
        cpu_policy(node, plan),
        cores(node),
        numa(node),
        instruction_sets(node.flags, plan.dtype),
        memory(node, plan),
        quota(node),
        sidecars(node),
        storage(node.mounts, plan.model_folder),
        redis(queue),
    )
    return [finding for check in checks for finding in check]


# --- CPUs ---


def cpu_policy(node: NodeFacts, plan: Plan) -> Iterator[Finding]:
    check, mine = "cpu-policy", format_cpu_list(node.cpus)
    if node.kubelet is not None and node.kubelet.policy != "static":
        message = f"the kubelet's CPU manager policy is {node.kubelet.policy}: replicas cannot be pinned on this node"
        yield Finding(check, Level.PROBLEM, message, remedies.STATIC_POLICY)
    elif node.kubelet is not None:
        shared = format_cpu_list(node.kubelet.shared or frozenset()) or "unknown CPUs"
        yield Finding(check, Level.GOOD, f"the kubelet pins (policy static); shared by all others: CPUs {shared}")
    elif not node.in_pod:
        yield Finding(check, Level.GOOD, f"not in a cluster; this process may use CPUs {mine}")
    elif node.cpus == node.online:
        message = f"this pod may use all {len(node.online)} CPUs of its node, like every other pod there"
        yield Finding(check, Level.WARNING, message, remedies.STATIC_POLICY)
    elif plan.cpus is not None and len(node.cpus) == plan.cpus and node.cgroup.quota is None:
        yield Finding(check, Level.GOOD, f"this pod has {plan.cpus} CPUs of its own: {mine}")
    else:
        message = f"this pod shares CPUs {mine} with others on its node; the kubelet's policy seems to be static"
        yield Finding(check, Level.NOTE, message, remedies.PIN)


def cores(node: NodeFacts) -> Iterator[Finding]:
    """Hyper-threads: a neighbour on the other one of a core takes up to half of it."""
    check, options = "smt", node.kubelet.options if node.kubelet is not None else None
    threads = max((len(core) for core in node.cores), default=1)
    halves = [core for core in node.cores if core & node.cpus and not core <= node.cpus]
    if threads == 1:
        yield Finding(check, Level.GOOD, "no hyper-threading: every CPU is a core")
    elif halves:
        others = format_cpu_list(frozenset().union(*halves) - node.cpus)
        message = f"others may run on CPUs {others}, which are hyper-threads of this process's own cores"
        yield Finding(check, Level.WARNING, message, remedies.FULL_CORES)
    elif options is not None and node.kubelet is not None and node.kubelet.policy == "static":
        yield _full_cores(check, threads, options)
    else:
        yield Finding(check, Level.NOTE, f"{threads} hyper-threads a core; a replica's CPUs are hyper-threads")


def _full_cores(check: str, threads: int, options: Mapping[str, str]) -> Finding:
    if options.get("full-pcpus-only") == "true":
        return Finding(check, Level.GOOD, f"{threads} hyper-threads a core, and the kubelet gives out whole cores only")
    message = f"{threads} hyper-threads a core, and the kubelet may give one of a core to somebody else"
    return Finding(check, Level.WARNING, message, remedies.FULL_CORES)


def numa(node: NodeFacts) -> Iterator[Finding]:
    check, touched = "numa", [cpus for cpus in node.numa if cpus & node.cpus]
    if len(node.numa) < 2:
        yield Finding(check, Level.GOOD, "one NUMA node: all memory is equally near")
    elif len(touched) == 1:
        yield Finding(check, Level.GOOD, f"this process's CPUs are on one of {len(node.numa)} NUMA nodes")
    elif node.kubelet is not None and node.kubelet.topology_policy == "single-numa-node":
        yield Finding(check, Level.GOOD, f"{len(node.numa)} NUMA nodes, and the kubelet keeps a pinned pod on one")
    else:
        message = f"this process's CPUs are on {len(touched)} NUMA nodes: half of the memory is far for each of them"
        yield Finding(check, Level.WARNING, message, remedies.ONE_NUMA_NODE)


def instruction_sets(flags: frozenset[str], dtype: str) -> Iterator[Finding]:
    check = "instructions"
    if not flags & {"sse2", "avx2"}:
        level, about = (Level.NOTE, "not an x86 processor") if flags else (Level.NOTE, "the processor does not say")
        yield Finding(check, level, f"{about}; VisionChat was measured on x86-64 only")
        return
    fast = {"avx512_bf16", "amx_bf16"} & flags
    has = ", ".join(sorted(flags & {"avx2", "avx512f", "avx512_vnni", "avx512_bf16", "amx_bf16", "amx_int8"}))
    if "avx2" not in flags:
        yield Finding(check, Level.PROBLEM, "no AVX2: PyTorch falls back to its slowest code", remedies.NEWER_CPU)
    elif fast:
        yield Finding(check, Level.GOOD, f"bfloat16 in hardware ({has})")
    else:
        message = f"no bfloat16 in hardware ({has}): the model runs in float32, with twice the memory traffic"
        yield Finding(check, Level.WARNING, message, remedies.NEWER_CPU)
    if dtype == "bfloat16" and not fast:
        message = "bfloat16 is asked for, which is slower than float32 on this processor"
        yield Finding(check, Level.WARNING, message, remedies.AUTO_PRECISION)


# --- memory and time ---


def memory(node: NodeFacts, plan: Plan) -> Iterator[Finding]:
    """Whoever sees the kubelet looks at a node for others: what he may use himself says nothing."""
    own = node.cgroup.memory_bytes if node.kubelet is None else None
    check, limit = "memory", own or node.memory_total
    if limit is None:
        yield Finding(check, Level.NOTE, "the memory's size cannot be seen")
        return
    doubled = plan.dtype != "bfloat16" and not {"avx512_bf16", "amx_bf16"} & node.flags
    needed = plan.weights_bytes * (2 if doubled else 1) + plan.cache_bytes + OVERHEAD_BYTES
    message = f"about {_gib(needed)} needed at most (weights, cache, overhead) of {_gib(limit)}"
    if needed > limit:
        yield Finding(check, Level.PROBLEM, f"{message}: replicas would be killed", remedies.MORE_MEMORY)
    elif needed > FULL_SHARE * limit:
        yield Finding(check, Level.WARNING, f"{message}: replicas would restart often", remedies.MORE_MEMORY)
    else:
        yield Finding(check, Level.GOOD, message)
    if node.in_pod and own is None and node.kubelet is None:
        yield Finding(check, Level.WARNING, "this pod has no memory limit, so it cannot be Guaranteed", remedies.PIN)


def quota(node: NodeFacts) -> Iterator[Finding]:
    check, limit, stopped = "throttling", node.cgroup.quota, node.cgroup.throttling
    if limit is None:
        yield Finding(check, Level.GOOD, "no quota on CPU time")
        return
    if limit < 1 or limit % 1 > 1e-9:
        yield Finding(check, Level.WARNING, f"the quota is {limit:g} CPUs, not a whole number", remedies.WHOLE_CPUS)
    share = stopped.throttled_periods / stopped.periods if stopped is not None and stopped.periods else 0.0
    message = f"a quota of {limit:g} CPUs stopped this process in {share:.1%} of its periods"
    if share > THROTTLED_SHARE:
        yield Finding(check, Level.WARNING, message, remedies.NO_QUOTA)
    else:
        yield Finding(check, Level.GOOD, message)


def sidecars(node: NodeFacts) -> Iterator[Finding]:
    check, found = "sidecars", sorted({name for port, name in SIDECARS.items() if port in node.listening})
    if not node.in_pod:
        return
    if found:
        message = f"{' and '.join(found)} runs a proxy in this pod (its ports are open)"
        yield Finding(check, Level.WARNING, message, remedies.NO_SIDECARS)
    else:
        yield Finding(check, Level.GOOD, "no port of a known sidecar is open in this pod")


# --- disks and the queue ---


def storage(mounts: Mapping[str, str], model_folder: str | None) -> Iterator[Finding]:
    check = "storage"
    if model_folder is None:
        yield Finding(check, Level.GOOD, "the model is part of the product")
        return
    kind = _file_system(mounts, PurePosixPath(model_folder))
    if kind is None:
        yield Finding(check, Level.NOTE, f"what {model_folder} is on cannot be seen")
    elif kind.partition(".")[0] in NETWORK_FILE_SYSTEMS:
        message = f"the model is on a network file system ({kind}): replicas start slowly, and hang when it does"
        yield Finding(check, Level.WARNING, message, remedies.FAST_STORAGE)
    else:
        yield Finding(check, Level.GOOD, f"the model is on a disk ({kind})")


def _file_system(mounts: Mapping[str, str], path: PurePosixPath) -> str | None:
    return next((mounts[str(place)] for place in (path, *path.parents) if str(place) in mounts), None)


def redis(queue: QueueFacts | None) -> Iterator[Finding]:
    check = "redis"
    if queue is None:
        yield Finding(check, Level.NOTE, "no queue to look at; name one with --redis")
        return
    if queue.fault is not None:
        yield Finding(check, Level.PROBLEM, f"the queue does not answer: {queue.fault}", remedies.REACH_REDIS)
        return
    yield from _redis_service(check, queue)
    yield from _redis_keeping(check, queue)


def _redis_service(check: str, queue: QueueFacts) -> Iterator[Finding]:
    said = ".".join(map(str, queue.version))
    if queue.version < (6, 2):
        yield Finding(check, Level.PROBLEM, f"Redis {said} is too old", remedies.NEWER_REDIS)
    if not queue.is_master:
        yield Finding(check, Level.PROBLEM, "this Redis is a read-only replica", remedies.WRITABLE_REDIS)
    used, limit = queue.used_bytes, queue.limit_bytes
    if limit and used > FULL_SHARE * limit:
        message = f"Redis uses {used / limit:.0%} of its {_gib(limit)}"
        yield Finding(check, Level.WARNING, message, remedies.MORE_REDIS_MEMORY)


def _redis_keeping(check: str, queue: QueueFacts) -> Iterator[Finding]:
    if queue.eviction != "noeviction":
        message = f"Redis may throw jobs away when it is full (maxmemory-policy {queue.eviction})"
        yield Finding(check, Level.PROBLEM, message, remedies.NO_EVICTION)
    if not queue.saves:
        yield Finding(check, Level.PROBLEM, "Redis' last write to disk failed", remedies.FIX_REDIS_DISK)
    if not queue.appends:
        message = "Redis keeps no append-only file: accepted jobs are lost when it restarts"
        yield Finding(check, Level.PROBLEM, message, remedies.KEEP_JOBS)
    elif queue.saves and queue.eviction == "noeviction":
        yield Finding(check, Level.GOOD, "Redis writes every job to disk and throws none away")


def _gib(size: int) -> str:
    return f"{size / GIB:.1f} GiB"
