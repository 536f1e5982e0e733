"""What a node leaves on a machine, and how it is taken away: also by another process than the one that started it.

Only what was made below the node's folder, in the control group `kubepods`, on its bridge or by its kube-proxy is
touched, and what was not there before `remember`.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

from support.cluster_fixtures import eventually
from support.daemons import command_line

CGROUPS, GROUP = Path("/sys/fs/cgroup"), "kubepods"
SETTINGS = (
    "net/ipv4/ip_forward",
    "net/ipv6/conf/all/forwarding",
    "vm/overcommit_memory",
    "vm/panic_on_oom",
    "kernel/panic",
    "kernel/panic_on_oops",
    "kernel/keys/root_maxkeys",
    "kernel/keys/root_maxbytes",
)
FIXED = ("/var/lib/kubelet", "/var/lib/cni", "/var/log/containers", "/var/log/pods", "/run/containerd")
TABLES = (("ip", "kube-proxy"), ("ip6", "kube-proxy"))


class NodeTraces:
    def __init__(self, folder: Path, bridge: str) -> None:
        self._folder, self._bridge = folder, bridge
        self._before = folder / "before.json"

    def remember(self) -> None:
        """The kernel's settings that a node changes, and the fixed folders that are not there. Raises AssertionError
        where another node runs: its pods would be taken for ours."""
        assert not self.left(), f"another node runs on this machine (make cluster-down?): {', '.join(self.left())}"
        settings = {name: _setting(name).read_text() for name in SETTINGS if _setting(name).exists()}
        absent = [path for path in FIXED if not Path(path).exists()]
        self._before.write_text(json.dumps({"settings": settings, "absent": absent}))

    def kill_pods(self) -> None:
        """Every process in the pods' control groups, and the shims that hold them."""
        if not self._before.exists():
            return  # not ours
        eventually(lambda: not [_kill(pid) for pid in (*_in_pods(), *self._shims())], "all pods are dead", 60)

    def remove(self) -> None:
        """All daemons must have ended."""
        if not self._before.exists():
            return
        self._unmount()
        for group in _groups():
            with contextlib.suppress(OSError):
                group.rmdir()
        subprocess.run(["ip", "link", "delete", self._bridge], capture_output=True, timeout=30)
        for table in TABLES:
            subprocess.run(["nft", "delete", "table", *table], capture_output=True, timeout=30)
        self._restore()

    def left(self) -> list[str]:
        """What is still there, for a test that nothing is."""
        mounts = [f"mount {path}" for path in self._mounts()]
        processes = [f"process {pid}" for pid in (*_in_pods(), *self._shims())]
        links = [f"link {self._bridge}"] if Path(f"/sys/class/net/{self._bridge}").exists() else []
        return [*mounts, *processes, *links, *(f"group {group}" for group in _groups())]

    def _restore(self) -> None:
        before = json.loads(self._before.read_text())
        for name, value in before["settings"].items():
            _setting(name).write_text(value)
        for path in before["absent"]:
            shutil.rmtree(path, ignore_errors=True)

    def _shims(self) -> Iterator[int]:
        """Shims of our containerd: its address is in their command line."""
        address = f"{self._folder}/containerd.sock"
        for process in Path("/proc").glob("[0-9]*"):
            words = command_line(int(process.name))
            if words and words[0].endswith("containerd-shim-runc-v2") and any(address in word for word in words):
                yield int(process.name)

    def _mounts(self) -> list[str]:
        """The innermost first."""
        places = [line.split()[4] for line in Path("/proc/self/mountinfo").read_text().splitlines()]
        return [place for place in reversed(places) if place.startswith(f"{self._folder}/")]

    def _unmount(self) -> None:
        for place in self._mounts():
            subprocess.run(["umount", place], capture_output=True, timeout=30)
        for place in self._mounts():
            subprocess.run(["umount", "--lazy", place], capture_output=True, timeout=30)


def _setting(name: str) -> Path:
    return Path("/proc/sys") / name


def _groups() -> list[Path]:
    """The pods' control groups in every hierarchy, children before parents."""
    found: list[Path] = []
    for root in (CGROUPS, *(path for path in CGROUPS.glob("*") if path.is_dir() and not path.is_symlink())):
        for folder, _, _ in os.walk(root / GROUP, topdown=False):
            found.append(Path(folder))
    return found


def _in_pods() -> set[int]:
    pids: set[int] = set()
    for group in _groups():
        with contextlib.suppress(OSError):
            pids |= {int(line) for line in (group / "cgroup.procs").read_text().split()}
    return pids


def _kill(pid: int) -> int:
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)
    return pid
