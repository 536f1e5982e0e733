"""How many whole CPUs this process really has, and in which order to use them.

The kernel schedules the process on its affinity mask, which the cpuset has already narrowed, and stops it when the
quota is used up; libraries that look at the machine's size see neither. Standard library only: this runs first.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from dataclasses import dataclass
from math import floor
from pathlib import Path
from typing import Literal

from visionchat_serve.cgroup import format_cpu_list, parse_cpu_list, read_cgroup, read_text

Reason = Literal["Affinity", "Cpuset", "Quota", "QuotaBelowOne"]


@dataclass(frozen=True, slots=True)
class CpuBudget:
    """`cpus`: the logical CPUs that may be used, one of every physical core first, then the siblings.

    `whole`: how many may be kept busy: as many as there are, no more than the quota, at least 1. A fraction of a CPU
    is rounded down: a thread too many is stopped in mid-step, and then all others wait for it.
    `cores`: how many physical cores `cpus` lie on.
    `reason` names the limit that decides, `message` says it to people.
    """

    cpus: tuple[int, ...]
    cores: int
    quota: float | None
    whole: int
    reason: Reason
    message: str


def available_cpus(root: str | Path = "/", affinity: Iterable[int] | None = None) -> CpuBudget:
    """The budget of this process. `root` holds /proc and /sys, `affinity` is its mask; tests make them up."""
    allowed = frozenset(os.sched_getaffinity(0) if affinity is None else affinity)
    cgroup = read_cgroup(root)
    # Where the two contradict each other, the mask is what the kernel does.
    usable = allowed & (cgroup.cpus or allowed) or allowed
    cpus, cores = _cores_first(Path(root), usable)
    # The quotient of two whole numbers: the small term only undoes binary rounding.
    most = len(cpus) if cgroup.quota is None else min(len(cpus), floor(cgroup.quota + 1e-9))
    whole = max(1, most)
    reason = _reason(len(allowed), len(cpus), most)
    quota = "no quota" if cgroup.quota is None else f"a quota of {cgroup.quota:g}"
    message = f"{whole} whole CPUs: CPUs {format_cpu_list(cpus)} on {cores} cores, {quota}"
    return CpuBudget(cpus, cores, cgroup.quota, whole, reason, message)


def _reason(allowed: int, usable: int, most: int) -> Reason:
    if most < 1:
        return "QuotaBelowOne"
    if most < usable:
        return "Quota"
    return "Cpuset" if usable < allowed else "Affinity"


def _cores_first(root: Path, cpus: frozenset[int]) -> tuple[tuple[int, ...], int]:
    """Sorted so that no hyper-thread comes before every core has one; and the number of cores."""
    cores: dict[frozenset[int], list[int]] = {}
    for cpu in sorted(cpus):
        cores.setdefault(_siblings(root, cpu), []).append(cpu)
    turns = {cpu: turn for members in cores.values() for turn, cpu in enumerate(members)}
    return tuple(sorted(cpus, key=lambda cpu: (turns[cpu], cpu))), len(cores)


def _siblings(root: Path, cpu: int) -> frozenset[int]:
    """The hyper-threads of a CPU's core; itself alone when the machine does not say."""
    listed = parse_cpu_list(read_text(root / f"sys/devices/system/cpu/cpu{cpu}/topology/thread_siblings_list"))
    return listed if listed is not None and cpu in listed else frozenset({cpu})
