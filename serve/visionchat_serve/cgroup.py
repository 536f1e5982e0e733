"""What the kernel's control groups allow this process: CPUs, CPU time, memory. Version 1, version 2 and both at once.

Reads /proc and /sys below a `root`, so that tests can make up machines. The limit in force is the tightest on the way
from the process's own group to the top; inside a container the visible top is the container. Whatever is missing or
cannot be understood says nothing: None, never an exception. Standard library only: this runs before numpy is imported.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path, PurePosixPath
from typing import TypeVar

UNLIMITED_MEMORY = 1 << 60  # version 1 says "no limit" by a number near 2**63
MOST_CPUS = 1 << 14  # above this a list is garbage, not a machine

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Throttling:
    """How often the quota stopped the group, since it was made."""

    periods: int
    throttled_periods: int
    throttled_for: timedelta


@dataclass(frozen=True, slots=True)
class Cgroup:
    """None means: no limit, or none that can be read. `quota` is in CPUs."""

    cpus: frozenset[int] | None
    quota: float | None
    memory_bytes: int | None
    throttling: Throttling | None


def read_cgroup(root: str | Path = "/") -> Cgroup:
    """The limits in force for this process."""
    cpu, cpuset, memory = (list(_groups(Path(root), name)) for name in ("cpu", "cpuset", "memory"))
    return Cgroup(
        cpus=_intersection(_each(cpuset, _cpus_of)),
        quota=min(_each(cpu, _quota_of), default=None),
        memory_bytes=min(_each(memory, _memory_of), default=None),
        throttling=max(_each(cpu, _throttling_of), key=lambda one: one.throttled_for, default=None),
    )


def memory_share(root: str | Path = "/") -> float | None:
    """How much of the memory limit is in use, from 0 to 1; files that the kernel can drop do not count."""
    return max(_each(list(_groups(Path(root), "memory")), _memory_share_of), default=None)


def parse_cpu_list(text: str | None) -> frozenset[int] | None:
    """`0-3,8,10-11` to its numbers; None for an empty list or garbage."""
    cpus: set[int] = set()
    try:
        for part in (text or "").strip().split(","):
            first, _, last = part.partition("-")
            low, high = int(first), int(last or first)
            if not 0 <= low <= high < MOST_CPUS:
                return None
            cpus.update(range(low, high + 1))
    except ValueError:
        return None
    return frozenset(cpus)


def format_cpu_list(cpus: frozenset[int] | tuple[int, ...]) -> str:
    """The inverse of `parse_cpu_list`, for people."""
    parts: list[list[int]] = []
    for cpu in sorted(cpus):
        if parts and cpu == parts[-1][-1] + 1:
            parts[-1] = [parts[-1][0], cpu]
        else:
            parts.append([cpu])
    return ",".join("-".join(map(str, part)) for part in parts)


def read_text(path: Path) -> str | None:
    """A file of /proc or /sys; None when it is not there or may not be read."""
    try:
        return path.read_text(encoding="utf-8", errors="replace").strip()
    except (OSError, ValueError):
        return None


# --- where the groups are ---


def _groups(root: Path, controller: str) -> Iterator[Path]:
    """This process's group and those above it, wherever `controller` may be: version 1's tree, version 2's, or both."""
    paths = _own_paths(root)
    for mount, mount_root, controllers in _mounts(root):
        if controllers and controller not in controllers:
            continue
        own = _below(paths.get(controller if controllers else "", PurePosixPath("/")), mount_root)
        for group in (own, *own.parents):
            yield root / mount.relative_to("/") / group.relative_to("/")


def _own_paths(root: Path) -> dict[str, PurePosixPath]:
    """Controller to path, from /proc/self/cgroup; version 2's single tree has the name ""."""
    paths: dict[str, PurePosixPath] = {}
    for line in (read_text(root / "proc/self/cgroup") or "").splitlines():
        _, _, rest = line.partition(":")
        names, colon, path = rest.partition(":")
        if colon and path.startswith("/"):
            paths.update(dict.fromkeys(names.split(","), PurePosixPath(path)))
    return paths


def _mounts(root: Path) -> Iterator[tuple[PurePosixPath, PurePosixPath, frozenset[str]]]:
    """Mount point, the group that is mounted there, and its controllers (none for version 2)."""
    for line in (read_text(root / "proc/self/mountinfo") or "").splitlines():
        before, _, after = line.partition(" - ")
        place, kind = before.split(), after.split()
        if len(place) < 5 or len(kind) < 3 or not (place[3].startswith("/") and place[4].startswith("/")):
            continue
        if kind[0] == "cgroup2":
            yield PurePosixPath(place[4]), PurePosixPath(place[3]), frozenset()
        elif kind[0] == "cgroup":
            yield PurePosixPath(place[4]), PurePosixPath(place[3]), frozenset(kind[2].split(","))


def _below(path: PurePosixPath, mount_root: PurePosixPath) -> PurePosixPath:
    """The group's path as seen from the mount. A path outside it (another namespace's) is the mount itself."""
    if ".." in path.parts or not path.is_relative_to(mount_root):
        return PurePosixPath("/")
    return PurePosixPath("/") / path.relative_to(mount_root)


# --- what one group says ---


def _cpus_of(group: Path) -> frozenset[int] | None:
    for name in ("cpuset.cpus.effective", "cpuset.effective_cpus", "cpuset.cpus"):
        cpus = parse_cpu_list(read_text(group / name))
        if cpus is not None:
            return cpus
    return None


def _quota_of(group: Path) -> float | None:
    words = (read_text(group / "cpu.max") or "").split()
    if not words:
        words = [read_text(group / f"cpu.cfs_{name}_us") or "" for name in ("quota", "period")]
    numbers = [_number(word) for word in words]
    quota, period = numbers if len(numbers) == 2 else (None, None)
    return quota / period if quota and period else None


def _memory_of(group: Path) -> int | None:
    for name in ("memory.max", "memory.limit_in_bytes"):
        limit = _number(read_text(group / name))
        if limit is not None:
            return limit if 0 < limit < UNLIMITED_MEMORY else None
    return None


def _memory_share_of(group: Path) -> float | None:
    limit = _memory_of(group)
    used = _number(read_text(group / "memory.current") or read_text(group / "memory.usage_in_bytes"))
    if limit is None or used is None:
        return None
    stat = _stat(group / "memory.stat")
    droppable = stat.get("total_inactive_file", stat.get("inactive_file")) or 0
    return max(0, used - droppable) / limit


def _throttling_of(group: Path) -> Throttling | None:
    stat = _stat(group / "cpu.stat")
    periods, stopped = stat.get("nr_periods"), stat.get("nr_throttled")
    if periods is None or stopped is None:
        return None
    microseconds = stat.get("throttled_usec") or (stat.get("throttled_time") or 0) / 1000
    return Throttling(periods, stopped, timedelta(microseconds=min(microseconds, 1e15)))


def _stat(path: Path) -> dict[str, int | None]:
    lines = (read_text(path) or "").splitlines()
    return {words[0]: _number(words[1]) for line in lines if len(words := line.split()) == 2}


def _number(text: str | None) -> int | None:
    """A whole number that is not negative: -1 and "max" mean no limit."""
    digits = (text or "").strip()
    return int(digits) if digits.isascii() and digits.isdigit() and len(digits) <= 20 else None


def _each(groups: list[Path], read: Callable[[Path], T | None]) -> list[T]:
    return [value for group in groups if (value := read(group)) is not None]


def _intersection(sets: list[frozenset[int]]) -> frozenset[int] | None:
    common = frozenset.intersection(*sets) if sets else frozenset[int]()
    return common or None
