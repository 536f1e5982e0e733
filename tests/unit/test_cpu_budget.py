"""How many CPUs a process has, over made-up machines."""

from __future__ import annotations

from dataclasses import dataclass
from math import floor
from pathlib import Path

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from support.machine import Machine, empty_folder
from visionchat_serve.cgroup import format_cpu_list
from visionchat_serve.cpu_budget import CpuBudget, available_cpus


def budget(root: Path, quota: str = "max 100000", cpuset: str = "", affinity: str = "0-7") -> CpuBudget:
    machine = Machine(root).v2("/")
    machine.put("sys/fs/cgroup/cpu.max", quota)
    machine.put("sys/fs/cgroup/cpuset.cpus.effective", cpuset)
    first, last = affinity.split("-")
    return available_cpus(root, range(int(first), int(last) + 1))


@pytest.mark.parametrize(
    ("given", "whole", "reason"),
    [
        ({}, 8, "Affinity"),
        ({"cpuset": "2-3"}, 2, "Cpuset"),
        ({"quota": "400000 100000"}, 4, "Quota"),
        ({"quota": "399999 100000"}, 3, "Quota"),
        ({"quota": "250000 100000", "cpuset": "0-5"}, 2, "Quota"),
        ({"quota": "50000 100000"}, 1, "QuotaBelowOne"),
        ({"quota": "6400000 100000", "cpuset": "4"}, 1, "Cpuset"),
        ({"quota": "300000 100000", "cpuset": "0-2"}, 3, "Cpuset"),
        ({"affinity": "1-1"}, 1, "Affinity"),
        ({"cpuset": "100-101"}, 8, "Affinity"),  # contradicts the mask: the mask is the truth
    ],
)
def test_whole_cpus(tmp_path: Path, given: dict[str, str], whole: int, reason: str) -> None:
    seen = budget(tmp_path, **given)
    assert (seen.whole, seen.reason) == (whole, reason)
    assert seen.message.startswith(f"{whole} whole CPUs")


def test_physical_cores_come_first(tmp_path: Path) -> None:
    Machine(tmp_path).cores([(0, 4), (1, 5), (2, 6), (3, 7)])
    seen = budget(tmp_path)
    assert (seen.cpus, seen.cores, seen.whole) == ((0, 1, 2, 3, 4, 5, 6, 7), 4, 8)


def test_neighbours_that_are_siblings(tmp_path: Path) -> None:
    Machine(tmp_path).cores([(0, 1), (2, 3), (4, 5), (6, 7)])
    assert budget(tmp_path).cpus == (0, 2, 4, 6, 1, 3, 5, 7)
    assert budget(tmp_path, cpuset="1-3").cpus == (1, 2, 3)
    assert budget(tmp_path, cpuset="1-3").cores == 2


def test_a_machine_that_says_nothing(tmp_path: Path) -> None:
    seen = available_cpus(tmp_path, {3, 1})
    assert (seen.cpus, seen.cores, seen.quota, seen.whole) == ((1, 3), 2, None, 2)


# --- properties ---

CPUS = range(16)
QUOTAS = st.one_of(st.none(), st.integers(1_000, 2_500_000))
SETS = st.one_of(st.none(), st.frozensets(st.sampled_from(CPUS), min_size=1))


@dataclass(frozen=True, slots=True)
class Level:
    quota: int | None
    cpuset: frozenset[int] | None


LEVELS = st.lists(st.builds(Level, QUOTAS, SETS), min_size=1, max_size=4)
VERSIONS = st.sampled_from(["v1", "v2", "hybrid"])
TOPOLOGIES = st.sampled_from([1, 2, 4]).flatmap(
    lambda width: st.permutations(list(CPUS)).map(
        lambda order: [tuple(order[at : at + width]) for at in range(0, 16, width)]
    )
)


def build(root: Path, levels: list[Level], version: str, cores: list[tuple[int, ...]]) -> None:
    """One group for each level, each inside the one before; the first is the mount itself."""
    own = "/" + "/".join(f"l{depth}" for depth in range(1, len(levels)))
    machine = Machine(root).cores(cores)
    if version == "v1":
        machine.v1({"cpu,cpuacct": own, "cpuset": own})
    elif version == "v2":
        machine.v2(own)
    else:
        machine.v1({"cpuset": own}).v2(own, at="/sys/fs/cgroup/unified")
    at = ""
    for depth, level in enumerate(levels):
        at += f"/l{depth}" if depth else ""
        _write(machine, level, version, at)


def _write(machine: Machine, level: Level, version: str, at: str) -> None:
    cpus = "" if level.cpuset is None else format_cpu_list(level.cpuset)
    if version == "v2":
        machine.put(f"sys/fs/cgroup{at}/cpuset.cpus.effective", cpus)
    else:
        machine.put(f"sys/fs/cgroup/cpuset{at}/cpuset.cpus", cpus)
    if version == "v1":
        machine.put(f"sys/fs/cgroup/cpu,cpuacct{at}/cpu.cfs_quota_us", str(level.quota or -1))
        machine.put(f"sys/fs/cgroup/cpu,cpuacct{at}/cpu.cfs_period_us", "100000")
    else:
        folder = "sys/fs/cgroup" if version == "v2" else "sys/fs/cgroup/unified"
        machine.put(f"{folder}{at}/cpu.max", f"{level.quota or 'max'} 100000")


def usable(levels: list[Level], affinity: frozenset[int]) -> frozenset[int]:
    """What is left when every set is applied; empty when they contradict each other."""
    for level in levels:
        affinity &= level.cpuset if level.cpuset is not None else affinity
    return affinity


PROPERTY = settings(max_examples=60, deadline=None, derandomize=True)


@PROPERTY
@given(LEVELS, VERSIONS, TOPOLOGIES, st.frozensets(st.sampled_from(CPUS), min_size=1))
def test_budgets_of_made_up_machines(
    levels: list[Level],
    version: str,
    cores: list[tuple[int, ...]],
    affinity: frozenset[int],
) -> None:
    there = usable(levels, affinity)
    assume(there)
    with empty_folder() as root:
        build(root, levels, version, cores)
        seen = available_cpus(root, affinity)
        assert seen == available_cpus(root, affinity), "the same machine gives the same answer"

    quotas = [level.quota / 100_000 for level in levels if level.quota is not None]
    assert frozenset(seen.cpus) == there
    assert len(seen.cpus) == len(there)
    assert 1 <= seen.whole <= len(there)
    assert seen.quota == min(quotas, default=None)
    assert seen.whole <= max(1, floor(min(quotas, default=99)))

    core_of = {cpu: core for core in cores for cpu in core}
    assert seen.cores == len({core_of[cpu] for cpu in there})
    assert len({core_of[cpu] for cpu in seen.cpus[: seen.cores]}) == seen.cores, "each core before any sibling"


@PROPERTY
@given(LEVELS, VERSIONS, st.data())
def test_a_tighter_limit_never_gives_more(levels: list[Level], version: str, data: st.DataObject) -> None:
    at = data.draw(st.integers(0, len(levels) - 1))
    old = levels[at]
    quota = data.draw(st.integers(1_000, old.quota or 2_500_000))
    cpuset = data.draw(st.frozensets(st.sampled_from(sorted(old.cpuset or CPUS)), min_size=1))
    tighter = [*levels[:at], Level(quota, cpuset), *levels[at + 1 :]]
    everything = frozenset(CPUS)
    assume(usable(tighter, everything))
    found = []
    for case in (levels, tighter):
        with empty_folder() as root:
            build(root, case, version, [])
            found.append(available_cpus(root, everything).whole)
    assert found[1] <= found[0]
