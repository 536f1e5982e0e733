"""What the kernel counts for a pod's processes, read from this machine's control groups."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

CGROUPS = Path("/sys/fs/cgroup")


@dataclass(frozen=True, slots=True)
class PodCosts:
    """Since the start of its processes: context switches, and periods of the CPU quota, stopped ones among them."""

    switches: int
    periods: int
    throttled: int


def pod_costs(uid: str) -> PodCosts:
    groups = [group for group in _groups(uid) if (group / "cgroup.procs").exists()]
    pids = {int(line) for group in groups for line in (group / "cgroup.procs").read_text().split()}
    stats = [_stat(group / "cpu.stat") for group in groups if group.parent.name.endswith(uid)]
    switches = sum(_switches(pid) for pid in pids)
    return PodCosts(switches, _sum(stats, "nr_periods"), _sum(stats, "nr_throttled"))


def _groups(uid: str) -> Iterator[Path]:
    """The pod's own group and its containers', where the CPU is counted: version 1 or 2."""
    for root in (CGROUPS / "cpu", CGROUPS):
        found = list((root / "kubepods").rglob(f"pod{uid}"))
        if found:
            yield from (found[0], *(path for path in found[0].rglob("*") if path.is_dir()))
            return


def _stat(path: Path) -> dict[str, int]:
    lines = path.read_text().splitlines() if path.exists() else []
    return {words[0]: int(words[1]) for line in lines if len(words := line.split()) == 2}


def _sum(stats: list[dict[str, int]], key: str) -> int:
    return sum(stat.get(key, 0) for stat in stats)


def _switches(pid: int) -> int:
    """Of all threads, wanted or not."""
    number = 0
    for task in Path(f"/proc/{pid}/task").glob("*/status"):
        with contextlib.suppress(OSError):
            lines = task.read_text().splitlines()
            number += sum(int(line.split()[1]) for line in lines if "ctxt_switches" in line)
    return number
