"""Control groups of made-up machines: version 1, 2, both, nested, namespaced, and garbage."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from support.machine import Machine, empty_folder
from visionchat_serve.cgroup import Cgroup, Throttling, format_cpu_list, memory_share, parse_cpu_list, read_cgroup

NOTHING = Cgroup(None, None, None, None)


@pytest.mark.parametrize(
    ("text", "cpus"),
    [
        ("0-3,8,10-11", {0, 1, 2, 3, 8, 10, 11}),
        ("5", {5}),
        (" 0-1\n", {0, 1}),
        ("", None),
        (None, None),
        ("3-1", None),
        ("-1", None),
        ("0-", {0}),
        ("a-b", None),
        ("0,,1", None),
        ("0-999999999999", None),
        ("0-3:2/4", None),
    ],
)
def test_cpu_lists(text: str | None, cpus: set[int] | None) -> None:
    assert parse_cpu_list(text) == (None if cpus is None else frozenset(cpus))


@given(st.frozensets(st.integers(0, 300), min_size=1))
def test_cpu_lists_there_and_back(cpus: frozenset[int]) -> None:
    assert parse_cpu_list(format_cpu_list(cpus)) == cpus


def test_version_2_in_a_container(tmp_path: Path) -> None:
    machine = Machine(tmp_path).v2("/")
    machine.put("sys/fs/cgroup/cpuset.cpus.effective", "2-3")
    machine.put("sys/fs/cgroup/cpu.max", "250000 100000")
    machine.put("sys/fs/cgroup/memory.max", "4294967296")
    machine.put("sys/fs/cgroup/cpu.stat", "usage_usec 5\nnr_periods 10\nnr_throttled 4\nthrottled_usec 2500000")
    assert read_cgroup(tmp_path) == Cgroup(frozenset({2, 3}), 2.5, 1 << 32, Throttling(10, 4, timedelta(seconds=2.5)))


def test_version_2_without_limits(tmp_path: Path) -> None:
    machine = Machine(tmp_path).v2("/a")
    machine.put("sys/fs/cgroup/a/cpu.max", "max 100000")
    machine.put("sys/fs/cgroup/a/memory.max", "max")
    machine.put("sys/fs/cgroup/a/cpuset.cpus", "")
    assert read_cgroup(tmp_path) == NOTHING


def test_the_tightest_limit_on_the_way_up_counts(tmp_path: Path) -> None:
    machine = Machine(tmp_path).v2("/pods/pod1/box")
    machine.put("sys/fs/cgroup/pods/cpu.max", "800000 100000")
    machine.put("sys/fs/cgroup/pods/pod1/cpu.max", "150000 100000")
    machine.put("sys/fs/cgroup/pods/pod1/box/cpu.max", "max 100000")
    machine.put("sys/fs/cgroup/pods/memory.max", "1000")
    machine.put("sys/fs/cgroup/pods/pod1/box/memory.max", "2000")
    machine.put("sys/fs/cgroup/cpuset.cpus.effective", "0-7")
    machine.put("sys/fs/cgroup/pods/cpuset.cpus.effective", "2-5")
    machine.put("sys/fs/cgroup/pods/cpu.stat", "nr_periods 9\nnr_throttled 1\nthrottled_usec 7")
    machine.put("sys/fs/cgroup/pods/pod1/cpu.stat", "nr_periods 9\nnr_throttled 5\nthrottled_usec 90")
    machine.put("sys/fs/cgroup/pods/pod2/cpu.max", "1000 100000")  # a neighbour's is not ours
    seen = read_cgroup(tmp_path)
    assert (seen.cpus, seen.quota, seen.memory_bytes) == (frozenset({2, 3, 4, 5}), 1.5, 1000)
    assert seen.throttling == Throttling(9, 5, timedelta(microseconds=90))


def test_version_1(tmp_path: Path) -> None:
    machine = Machine(tmp_path).v1({"cpu,cpuacct": "/kube/pod", "cpuset": "/kube/pod", "memory": "/kube/pod"})
    machine.put("sys/fs/cgroup/cpu,cpuacct/kube/pod/cpu.cfs_quota_us", "300000")
    machine.put("sys/fs/cgroup/cpu,cpuacct/kube/pod/cpu.cfs_period_us", "100000")
    machine.put("sys/fs/cgroup/cpu,cpuacct/cpu.cfs_quota_us", "-1")
    machine.put("sys/fs/cgroup/cpu,cpuacct/cpu.cfs_period_us", "100000")
    machine.put("sys/fs/cgroup/cpu,cpuacct/kube/pod/cpu.stat", "nr_periods 3\nnr_throttled 2\nthrottled_time 5000000")
    machine.put("sys/fs/cgroup/cpuset/kube/pod/cpuset.cpus", "0-3")
    machine.put("sys/fs/cgroup/cpuset/kube/cpuset.effective_cpus", "1-7")
    machine.put("sys/fs/cgroup/memory/kube/pod/memory.limit_in_bytes", "9223372036854771712")
    machine.put("sys/fs/cgroup/memory/kube/memory.limit_in_bytes", "123456789")
    assert read_cgroup(tmp_path) == Cgroup(
        frozenset({1, 2, 3}), 3.0, 123456789, Throttling(3, 2, timedelta(milliseconds=5))
    )


def test_version_1_container_without_a_cgroup_namespace(tmp_path: Path) -> None:
    """Docker on version 1: /proc/self/cgroup has the host's path, and just that group is mounted."""
    machine = Machine(tmp_path).v1({"cpu": "/docker/abc"}, mount_root="/docker/abc")
    machine.put("sys/fs/cgroup/cpu/cpu.cfs_quota_us", "50000")
    machine.put("sys/fs/cgroup/cpu/cpu.cfs_period_us", "100000")
    assert read_cgroup(tmp_path).quota == 0.5


def test_hybrid_reads_both_trees(tmp_path: Path) -> None:
    machine = Machine(tmp_path).v1({"cpuset": "/", "name=systemd": "/x"}).v2("/", at="/sys/fs/cgroup/unified")
    machine.put("sys/fs/cgroup/cpuset/cpuset.cpus", "0-3")
    machine.put("sys/fs/cgroup/unified/cpu.max", "200000 100000")
    assert read_cgroup(tmp_path) == Cgroup(frozenset({0, 1, 2, 3}), 2.0, None, None)


def test_a_path_of_another_namespace_means_the_mount(tmp_path: Path) -> None:
    machine = Machine(tmp_path).v2("/../../other")
    machine.put("sys/fs/cgroup/cpu.max", "100000 100000")
    assert read_cgroup(tmp_path).quota == 1.0


def test_an_empty_machine_says_nothing(tmp_path: Path) -> None:
    assert read_cgroup(tmp_path) == NOTHING
    assert read_cgroup(tmp_path / "missing") == NOTHING


GARBAGE = st.one_of(
    st.text(max_size=30),
    st.sampled_from(
        ["max", "-1", "0", "0 0", "100000 0", "1 2 3", "9" * 40, "x y", "0-9999999999", "nr_periods x", "²³ 5"]
    ),
)
FILES = ["cpu.max", "cpuset.cpus.effective", "cpuset.cpus", "memory.max", "cpu.stat", "cpu.cfs_quota_us"]


@settings(max_examples=40, deadline=None, derandomize=True)
@given(st.dictionaries(st.sampled_from(FILES), GARBAGE), GARBAGE, GARBAGE)
def test_garbage_never_raises(files: dict[str, str], cgroup: str, mountinfo: str) -> None:
    with empty_folder() as root:
        machine = Machine(root).v2("/")
        for name, text in files.items():
            machine.put(f"sys/fs/cgroup/{name}", text)
        seen = read_cgroup(root)
        assert seen.quota is None or seen.quota > 0
        assert seen.cpus is None or seen.cpus
        machine.put("proc/self/cgroup", "1:cpu:/\n" + cgroup + "\n::\n0::relative")
        machine.put("proc/self/mountinfo", mountinfo + "\n1 2 3 / / - cgroup2\n1 2 3 / /sys rw - cgroup cgroup rw,cpu")
        read_cgroup(root)


def test_files_that_may_not_be_read_say_nothing(tmp_path: Path) -> None:
    Machine(tmp_path).v2("/")
    (tmp_path / "sys/fs/cgroup/cpu.max").mkdir(parents=True)  # reading a folder fails, as a forbidden file does
    (tmp_path / "sys/fs/cgroup/memory.max").write_bytes(b"\xff\xfe\x00")
    assert read_cgroup(tmp_path) == NOTHING


def test_the_machine_we_are_on() -> None:
    seen = read_cgroup()
    assert seen.quota is None or seen.quota > 0
    assert seen.cpus is None or min(seen.cpus) >= 0


def test_the_share_of_the_memory_in_version_2(tmp_path: Path) -> None:
    machine = Machine(tmp_path).v2("/a/b")
    machine.put("sys/fs/cgroup/a/memory.max", "1000")
    machine.put("sys/fs/cgroup/a/memory.current", "900")
    machine.put("sys/fs/cgroup/a/memory.stat", "anon 200\ninactive_file 400\nactive_file 300")
    assert memory_share(tmp_path) == 0.5
    machine.put("sys/fs/cgroup/a/b/memory.max", "400")
    machine.put("sys/fs/cgroup/a/b/memory.current", "300")
    assert memory_share(tmp_path) == 0.75, "the tightest group counts"
    machine.put("sys/fs/cgroup/a/b/memory.max", "max")
    machine.put("sys/fs/cgroup/a/memory.max", "max")
    assert memory_share(tmp_path) is None


def test_the_share_of_the_memory_in_version_1(tmp_path: Path) -> None:
    machine = Machine(tmp_path).v1({"memory": "/"})
    machine.put("sys/fs/cgroup/memory/memory.limit_in_bytes", "1000")
    machine.put("sys/fs/cgroup/memory/memory.usage_in_bytes", "900")
    machine.put("sys/fs/cgroup/memory/memory.stat", "inactive_file 0\ntotal_inactive_file 300")
    assert memory_share(tmp_path) == 0.6
    machine.put("sys/fs/cgroup/memory/memory.usage_in_bytes", "garbage")
    assert memory_share(tmp_path) is None
