"""A made-up machine for tests: /proc and /sys files below a folder, for `cgroup` and `cpu_budget`."""

from __future__ import annotations

import tempfile
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

MEMORY = Path("/dev/shm")  # property tests write thousands of files; a busy disk made them take a minute


@contextmanager
def empty_folder() -> Iterator[Path]:
    """A new folder, in memory where the machine has such a place."""
    with tempfile.TemporaryDirectory(prefix="machine-", dir=MEMORY if MEMORY.is_dir() else None) as name:
        yield Path(name)


class Machine:
    """`v1` and `v2` mount control groups and put this process into one; `put` writes any file."""

    def __init__(self, root: Path) -> None:
        self.root = root

    def put(self, path: str, text: str) -> Machine:
        file = self.root / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text, encoding="utf-8")
        return self

    def v2(self, own: str, at: str = "/sys/fs/cgroup") -> Machine:
        self._add("proc/self/cgroup", f"0::{own}")
        return self._add("proc/self/mountinfo", f"30 23 0:26 / {at} rw,nosuid shared:4 - cgroup2 cgroup2 rw")

    def v1(self, own: Mapping[str, str], mount_root: str = "/") -> Machine:
        """`own` maps "cpu,cpuacct" or the like to this process's group."""
        for number, (controllers, path) in enumerate(own.items(), start=1):
            self._add("proc/self/cgroup", f"{number}:{controllers}:{path}")
            mount = f"{30 + number} 23 0:{30 + number} {mount_root} /sys/fs/cgroup/{controllers} rw,relatime"
            self._add("proc/self/mountinfo", f"{mount} - cgroup cgroup rw,{controllers}")
        return self

    def cores(self, siblings: Iterable[Iterable[int]]) -> Machine:
        """Each group of CPUs is one physical core."""
        for core in siblings:
            listed = ",".join(map(str, core))
            for cpu in core:
                self.put(f"sys/devices/system/cpu/cpu{cpu}/topology/thread_siblings_list", listed)
        return self

    def _add(self, path: str, line: str) -> Machine:
        file = self.root / path
        before = file.read_text(encoding="utf-8") if file.exists() else ""
        return self.put(path, before + line + "\n")
