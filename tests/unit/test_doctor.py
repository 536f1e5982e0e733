"""`visionchat doctor` over made-up machines, pods, nodes and queues."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from support.machine import Machine
from visionchat_serve import remedies
from visionchat_serve.doctor import GIB, Finding, Level, Plan, examine
from visionchat_serve.doctor_command import as_json, as_text
from visionchat_serve.node_facts import NodeFacts, read_node
from visionchat_serve.queue_facts import QueueFacts, of_info
from visionchat_serve.remedies import Platform, Remedy

POD = {"KUBERNETES_SERVICE_HOST": "10.0.0.1"}
SAFE = QueueFacts(version=(7, 2, 4), appends=True)
KUBELET = "var/lib/kubelet"


class Node(Machine):
    """A machine whose process may use all of its CPUs, unless `see` is told otherwise."""

    def cpus(self, number: int, threads: int = 1) -> Node:
        """Hyper-threads are numbered as Linux does: all first ones, then all second ones."""
        cores = number // threads
        self.put("sys/devices/system/cpu/online", f"0-{number - 1}")
        self.cores([range(core, number, cores) for core in range(cores)])
        self.put("sys/devices/system/node/node0/cpulist", f"0-{number - 1}")
        self._all = frozenset(range(number))
        return self

    def kubelet(self, policy: str, **config: Any) -> Node:
        state = {"policyName": policy, "defaultCpuSet": "0-1", "entries": {}, "checksum": 1}
        self.put(f"{KUBELET}/cpu_manager_state", json.dumps(state))
        self.put(f"{KUBELET}/config.yaml", json.dumps({"cpuManagerPolicy": policy, **config}))
        return self

    def see(self, cpus: set[int] | None = None, pod: bool = False) -> NodeFacts:
        return read_node(self.root, cpus or self._all, POD if pod else {})


@pytest.fixture
def node(tmp_path: Path) -> Node:
    return Node(tmp_path).cpus(4)


def found(facts: NodeFacts, check: str, plan: Plan | None = None, queue: QueueFacts | None = SAFE) -> list[Finding]:
    return [finding for finding in examine(facts, queue, plan or Plan()) if finding.check == check]


def one(facts: NodeFacts, check: str, plan: Plan | None = None) -> Finding:
    (finding,) = found(facts, check, plan)
    return finding


def test_a_plain_machine_has_no_problems(node: Node) -> None:
    node.put("proc/cpuinfo", "processor : 0\nflags : sse2 avx2 avx512f avx512_bf16 amx_bf16\n")
    node.put("proc/meminfo", "MemTotal:       16000000 kB\nMemFree: 1 kB\n")
    findings = examine(node.see(), SAFE, Plan())
    assert {finding.level for finding in findings} == {Level.GOOD}
    checks = {"cpu-policy", "smt", "numa", "instructions", "memory", "throttling", "storage", "redis"}
    assert {finding.check for finding in findings} == checks


def test_nothing_can_be_seen(tmp_path: Path) -> None:
    facts = read_node(tmp_path, {0, 1}, {})
    assert facts == NodeFacts(frozenset({0, 1}), frozenset({0, 1}), (frozenset({0}), frozenset({1})))
    assert not [f for f in examine(facts, None, Plan()) if f.level in (Level.PROBLEM, Level.WARNING)]


@pytest.mark.parametrize("garbage", ["", "{", "[]", "null", '"x"', "a: [", "\x00"])
def test_garbage_in_the_kubelets_files(node: Node, garbage: str) -> None:
    node.put(f"{KUBELET}/cpu_manager_state", garbage)
    node.put(f"{KUBELET}/config.yaml", garbage)
    assert node.see().kubelet is None


# --- CPU policy ---


def test_policy_none(node: Node) -> None:
    finding = one(node.kubelet("none").see(), "cpu-policy")
    assert (finding.level, finding.remedy) == (Level.PROBLEM, remedies.STATIC_POLICY)
    assert "policy is none" in finding.message


def test_the_state_file_counts_more_than_the_configuration(node: Node) -> None:
    node.kubelet("none").put(f"{KUBELET}/config.yaml", "cpuManagerPolicy: static\n")
    assert one(node.see(), "cpu-policy").level is Level.PROBLEM


def test_policy_static(node: Node) -> None:
    finding = one(node.kubelet("static").see(), "cpu-policy")
    assert (finding.level, finding.message[-8:]) == (Level.GOOD, "CPUs 0-1")


@pytest.mark.parametrize(
    ("mine", "plan", "level", "remedy"),
    [
        (None, Plan(cpus=2), Level.WARNING, remedies.STATIC_POLICY),
        ({2, 3}, Plan(cpus=2), Level.GOOD, None),
        ({1, 2, 3}, Plan(cpus=2), Level.NOTE, remedies.PIN),
        ({2, 3}, Plan(), Level.NOTE, remedies.PIN),
    ],
)
def test_in_a_pod(node: Node, mine: set[int] | None, plan: Plan, level: Level, remedy: Remedy | None) -> None:
    finding = one(node.see(mine, pod=True), "cpu-policy", plan)
    assert (finding.level, finding.remedy) == (level, remedy)


def test_as_many_cpus_as_asked_for_but_with_a_quota_are_shared(node: Node) -> None:
    node.v2("/").put("sys/fs/cgroup/cpu.max", "200000 100000")
    assert one(node.see({2, 3}, pod=True), "cpu-policy", Plan(cpus=2)).level is Level.NOTE


# --- hyper-threads, NUMA ---


def test_a_neighbour_on_the_other_hyper_thread(tmp_path: Path) -> None:
    finding = one(Node(tmp_path).cpus(8, threads=2).see({1, 2}, pod=True), "smt")
    assert (finding.level, finding.remedy) == (Level.WARNING, remedies.FULL_CORES)
    assert "CPUs 5-6" in finding.message


def test_whole_cores(tmp_path: Path) -> None:
    assert one(Node(tmp_path).cpus(8, threads=2).see({1, 5}, pod=True), "smt").level is Level.NOTE


@pytest.mark.parametrize(("value", "level"), [("true", Level.GOOD), (True, Level.GOOD), ("false", Level.WARNING)])
def test_full_pcpus_only(tmp_path: Path, value: object, level: Level) -> None:
    node = Node(tmp_path).cpus(8, threads=2).kubelet("static", cpuManagerPolicyOptions={"full-pcpus-only": value})
    assert one(node.see(), "smt").level is level


def test_two_numa_nodes(node: Node) -> None:
    node.put("sys/devices/system/node/node0/cpulist", "0-1").put("sys/devices/system/node/node1/cpulist", "2-3")
    finding = one(node.see(), "numa")
    assert (finding.level, finding.remedy) == (Level.WARNING, remedies.ONE_NUMA_NODE)
    assert one(node.see({2, 3}), "numa").level is Level.GOOD
    assert one(node.kubelet("static", topologyManagerPolicy="single-numa-node").see(), "numa").level is Level.GOOD


# --- instruction sets ---


@pytest.mark.parametrize(
    ("line", "dtype", "levels"),
    [
        ("flags : sse2 avx2 avx512f avx512_bf16", "auto", [Level.GOOD]),
        ("flags : sse2 avx2 amx_bf16 amx_int8", "bfloat16", [Level.GOOD]),
        ("flags : sse2 avx2", "auto", [Level.WARNING]),
        ("flags : sse2 avx2 avx512f", "bfloat16", [Level.WARNING, Level.WARNING]),
        ("flags : sse2 avx", "float32", [Level.PROBLEM]),
        ("Features : asimd bf16", "auto", [Level.NOTE]),
        ("", "auto", [Level.NOTE]),
    ],
)
def test_instruction_sets(node: Node, line: str, dtype: str, levels: list[Level]) -> None:
    facts = node.put("proc/cpuinfo", f"processor : 0\n{line}\n")
    assert [f.level for f in found(facts.see(), "instructions", Plan(dtype=dtype))] == levels  # type: ignore[attr-defined]


# --- memory, quota ---


@pytest.mark.parametrize(
    ("limit", "dtype", "level"),
    [
        (8, "bfloat16", Level.GOOD),
        (7, "bfloat16", Level.WARNING),
        (5, "bfloat16", Level.PROBLEM),
        (8, "auto", Level.PROBLEM),  # no bfloat16 in hardware: loaded as float32
        (14, "auto", Level.GOOD),
    ],
)
def test_memory_headroom(node: Node, limit: int, dtype: str, level: Level) -> None:
    node.v2("/").put("sys/fs/cgroup/memory.max", str(limit * GIB))
    plan = Plan(dtype=dtype, weights_bytes=4 * GIB, cache_bytes=GIB // 2)
    finding = one(node.see(pod=True), "memory", plan)
    assert finding.level is level
    assert finding.remedy == (None if level is Level.GOOD else remedies.MORE_MEMORY)


def test_no_memory_limit_in_a_pod(node: Node) -> None:
    node.put("proc/meminfo", "MemTotal: 16000000 kB\n")
    levels = [f.level for f in found(node.see(pod=True), "memory")]
    assert levels == [Level.GOOD, Level.WARNING]


def test_a_job_that_looks_at_its_node_does_not_judge_its_own_limit(node: Node) -> None:
    node.v2("/").put("sys/fs/cgroup/memory.max", str(GIB // 4)).put("proc/meminfo", "MemTotal: 16000000 kB\n")
    assert [f.level for f in found(node.see(pod=True), "memory")] == [Level.PROBLEM]
    assert [f.level for f in found(node.kubelet("static").see(pod=True), "memory")] == [Level.GOOD]  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("cpu_max", "stopped", "levels"),
    [
        ("max 100000", 0, [Level.GOOD]),
        ("200000 100000", 0, [Level.GOOD]),
        ("200000 100000", 10, [Level.GOOD]),
        ("200000 100000", 950, [Level.WARNING]),
        ("150000 100000", 0, [Level.WARNING, Level.GOOD]),
        ("50000 100000", 500, [Level.WARNING, Level.WARNING]),
    ],
)
def test_quota(node: Node, cpu_max: str, stopped: int, levels: list[Level]) -> None:
    node.v2("/").put("sys/fs/cgroup/cpu.max", cpu_max)
    node.put("sys/fs/cgroup/cpu.stat", f"nr_periods 1000\nnr_throttled {stopped}\nthrottled_usec 5")
    assert [f.level for f in found(node.see(pod=True), "throttling")] == levels


# --- sidecars, storage ---

TCP = "  sl  local_address rem_address   st\n   0: 00000000:{port:04X} 00000000:0000 {state} 00000000:0\n"


@pytest.mark.parametrize(
    ("port", "state", "level"),
    [(15006, "0A", Level.WARNING), (4143, "0A", Level.WARNING), (15006, "01", Level.GOOD), (8000, "0A", Level.GOOD)],
)
def test_sidecars(node: Node, port: int, state: str, level: Level) -> None:
    node.put("proc/net/tcp6", TCP.format(port=port, state=state))
    assert one(node.see(pod=True), "sidecars").level is level
    assert found(node.see(), "sidecars") == []


@pytest.mark.parametrize(
    ("mount", "level"),
    [
        ("/ /models rw - nfs4 server:/models rw", Level.WARNING),
        ("/ /models rw shared:1 - fuse.s3fs s3fs rw", Level.WARNING),
        ("/ /models rw - ext4 /dev/sdb rw", Level.GOOD),
        ("/ / rw - overlay overlay rw", Level.GOOD),
        ("/ /elsewhere rw - nfs4 server:/ rw", Level.NOTE),
    ],
)
def test_storage(node: Node, mount: str, level: Level) -> None:
    node.put("proc/self/mountinfo", f"30 23 0:26 {mount}\n")
    assert one(node.see(), "storage", Plan(model_folder="/models/a/b")).level is level


# --- Redis ---


@pytest.mark.parametrize(
    ("info", "remedy"),
    [
        ({"aof_enabled": 0}, remedies.KEEP_JOBS),
        ({"maxmemory_policy": "allkeys-lru"}, remedies.NO_EVICTION),
        ({"maxmemory_policy": "volatile-ttl"}, remedies.NO_EVICTION),
        ({"aof_last_write_status": "err"}, remedies.FIX_REDIS_DISK),
        ({"rdb_last_bgsave_status": "err"}, remedies.FIX_REDIS_DISK),
        ({"redis_version": "6.0.16"}, remedies.NEWER_REDIS),
        ({"role": "slave"}, remedies.WRITABLE_REDIS),
        ({"maxmemory": 100, "used_memory": 90}, remedies.MORE_REDIS_MEMORY),
    ],
)
def test_redis(node: Node, info: dict[str, Any], remedy: Remedy) -> None:
    safe = {"redis_version": "7.2.4", "role": "master", "aof_enabled": 1, "maxmemory_policy": "noeviction"}
    assert [f.level for f in found(node.see(), "redis", queue=of_info(safe))] == [Level.GOOD]
    bad = [f for f in found(node.see(), "redis", queue=of_info({**safe, **info})) if f.level is not Level.GOOD]
    assert [f.remedy for f in bad] == [remedy]


def test_redis_away(node: Node) -> None:
    (finding,) = found(node.see(), "redis", queue=QueueFacts(fault="Connection refused"))
    assert (finding.level, finding.remedy) == (Level.PROBLEM, remedies.REACH_REDIS)


# --- what is printed ---


def test_a_remedy_that_differs_by_platform_knows_all_of_them() -> None:
    all_of_them = [value for value in vars(remedies).values() if isinstance(value, Remedy)]
    assert len(all_of_them) > 10
    assert {tuple(remedy.how) for remedy in all_of_them} <= {(), tuple(Platform)}


def test_json(node: Node) -> None:
    findings = examine(node.kubelet("none").see(), None, Plan())
    bodies = json.loads(as_json(findings, [Platform.K3S]))
    assert len(bodies) == len(findings)
    assert all(set(body) == {"check", "level", "message", "change", "how"} for body in bodies)
    policy = next(body for body in bodies if body["check"] == "cpu-policy")
    assert (policy["level"], list(policy["how"])) == ("problem", ["k3s"])
    assert "cpu_manager_state" in policy["how"]["k3s"]


def test_text_begins_with_the_worst_and_tells_a_remedy_once(node: Node) -> None:
    remedy = Remedy("change it", dict.fromkeys(Platform, "here"))
    finding: Callable[[str, Level], Finding] = lambda name, level: Finding(name, level, "is so", remedy)  # noqa: E731
    text = as_text([finding("a", Level.WARNING), finding("b", Level.PROBLEM)], [Platform.EKS])
    assert text.splitlines() == [
        "PROBLEM  b: is so",
        "         -> change it",
        "            eks: here",
        "warning  a: is so",
    ]
