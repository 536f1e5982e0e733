"""What can be seen of the machine, the pod and its node. Reads files below a `root`, so that tests can make them up.

What is missing or cannot be understood is None or empty, never an exception. Judges nothing: `doctor` does.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from visionchat_serve.cgroup import Cgroup, memory_share, parse_cpu_list, read_cgroup, read_text

KUBELET = Path("/var/lib/kubelet")
_LISTEN = "0A"  # TCP_LISTEN in /proc/net/tcp


@dataclass(frozen=True, slots=True)
class Kubelet:
    """Its CPU manager. `options` is None where its configuration file cannot be read (k3s keeps it in arguments)."""

    policy: str
    shared: frozenset[int] | None = None
    options: Mapping[str, str] | None = None
    topology_policy: str | None = None


@dataclass(frozen=True, slots=True)
class NodeFacts:
    """`cpus` are this process's, `online` the machine's; `cores` and `numa` say which of those belong together.

    Sizes are bytes. `listening` are TCP ports that somebody listens on in this network namespace: in a pod, all its
    containers. `mounts` maps mount points to file system types.
    """

    cpus: frozenset[int]
    online: frozenset[int]
    cores: tuple[frozenset[int], ...] = ()
    numa: tuple[frozenset[int], ...] = ()
    flags: frozenset[str] = frozenset()
    cgroup: Cgroup = field(default_factory=lambda: Cgroup(None, None, None, None))
    memory_share: float | None = None
    memory_total: int | None = None
    in_pod: bool = False
    listening: frozenset[int] = frozenset()
    mounts: Mapping[str, str] = field(default_factory=dict)
    kubelet: Kubelet | None = None


def read_node(
    root: str | Path = "/",
    affinity: Iterable[int] | None = None,
    environ: Mapping[str, str] | None = None,
    kubelet: Path = KUBELET,
) -> NodeFacts:
    """`kubelet` is its folder as seen from `root`; a pod sees it where it is mounted."""
    root, env = Path(root), os.environ if environ is None else environ
    cpus = frozenset(os.sched_getaffinity(0) if affinity is None else affinity)
    cgroup = read_cgroup(root)
    cpus = cpus & (cgroup.cpus or cpus) or cpus
    online = parse_cpu_list(read_text(root / "sys/devices/system/cpu/online")) or cpus
    return NodeFacts(
        cpus=cpus,
        online=online,
        cores=_cores(root, online),
        numa=_numa(root),
        flags=_flags(root),
        cgroup=cgroup,
        memory_share=memory_share(root),
        memory_total=_memory_total(root),
        in_pod="KUBERNETES_SERVICE_HOST" in env or (root / "var/run/secrets/kubernetes.io").exists(),
        listening=_listening(root),
        mounts=_mounts(root),
        kubelet=_kubelet(root / kubelet.relative_to("/")),
    )


def _cores(root: Path, online: frozenset[int]) -> tuple[frozenset[int], ...]:
    cores = set()
    for cpu in online:
        listed = read_text(root / f"sys/devices/system/cpu/cpu{cpu}/topology/thread_siblings_list")
        cores.add(parse_cpu_list(listed) or frozenset({cpu}))
    return tuple(sorted(cores, key=min))


def _numa(root: Path) -> tuple[frozenset[int], ...]:
    lists = (root / "sys/devices/system/node").glob("node[0-9]*/cpulist")
    return tuple(sorted((cpus for path in lists if (cpus := parse_cpu_list(read_text(path)))), key=min))


def _flags(root: Path) -> frozenset[str]:
    """x86 calls them flags, Arm features."""
    for line in (read_text(root / "proc/cpuinfo") or "").splitlines():
        name, _, values = line.partition(":")
        if name.strip().lower() in ("flags", "features"):
            return frozenset(values.split())
    return frozenset()


def _memory_total(root: Path) -> int | None:
    for line in (read_text(root / "proc/meminfo") or "").splitlines():
        words = line.split()
        if len(words) >= 2 and words[0] == "MemTotal:" and words[1].isdigit():
            return int(words[1]) * 1024
    return None


def _listening(root: Path) -> frozenset[int]:
    ports = set()
    for name in ("tcp", "tcp6"):
        for line in (read_text(root / "proc/net" / name) or "").splitlines()[1:]:
            words = line.split()
            if len(words) > 3 and words[3] == _LISTEN:
                ports.add(int(words[1].rpartition(":")[2], 16))
    return frozenset(ports)


def _mounts(root: Path) -> dict[str, str]:
    mounts = {}
    for line in (read_text(root / "proc/self/mountinfo") or "").splitlines():
        before, _, after = line.partition(" - ")
        place, kind = before.split(), after.split()
        if len(place) >= 5 and kind:
            mounts[place[4].replace("\\040", " ")] = kind[0]
    return mounts


def _kubelet(folder: Path) -> Kubelet | None:
    """The state file says which policy is in force; the configuration is what it should be after a restart."""
    state, config = _json(folder / "cpu_manager_state"), _yaml(folder / "config.yaml")
    if not state and not config:
        return None
    policy = state.get("policyName") or config.get("cpuManagerPolicy") or "none"
    options = {str(k): str(v).lower() for k, v in (config.get("cpuManagerPolicyOptions") or {}).items()}
    return Kubelet(
        policy=str(policy),
        shared=parse_cpu_list(str(state.get("defaultCpuSet") or "")),
        options=options if config else None,
        topology_policy=str(config.get("topologyManagerPolicy") or "none") if config else None,
    )


def _json(path: Path) -> dict[str, Any]:
    try:
        value = json.loads(read_text(path) or "{}")
    except ValueError:
        return {}
    return value if isinstance(value, dict) else {}


def _yaml(path: Path) -> dict[str, Any]:
    text = read_text(path)
    if text is None:
        return {}
    import yaml  # only a node with a kubelet pays for it

    try:
        value = yaml.safe_load(text)
    except yaml.YAMLError:
        return {}
    return value if isinstance(value, dict) else {}
