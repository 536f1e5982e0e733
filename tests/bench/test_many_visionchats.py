"""200 VisionChats at one operator: quick, small, and quiet when nothing changes. Nothing else should run.

python -m pytest -s tests/bench/test_many_visionchats.py
"""

from __future__ import annotations

import os
import re
import time
from concurrent.futures import ThreadPoolExecutor
from math import ceil
from pathlib import Path

from support.cluster_fixtures import Chats, Start, eventually
from support.operator_process import OperatorProcess
from support.played_node import PlayedNode
from visionchat_operator.resync import PERIOD

MANY = 200
CHANGED = 40
QUIET_SECONDS = int(os.environ.get("VISIONCHAT_QUIET_SECONDS", "30"))
KINDS = 12  # that are listed now and then


def test_two_hundred_visionchats(start_operator: Start, node: PlayedNode, chats: Chats) -> None:
    node.turn_seconds, node.report_seconds = 1, 15  # one thread plays 200 replicas
    operator = start_operator()
    names = [f"chat-{number}" for number in range(MANY)]
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(chats.create, names))

    def settled() -> bool:
        items = chats.api.get(chats.path)["items"]
        ready = [i for i in items if i.get("status", {}).get("replicas", {}).get("ready") == 1]
        return len(ready) == MANY

    began = time.monotonic()
    eventually(settled, "all are ready", seconds=240)
    print(f"\n{MANY} VisionChats ready after {time.monotonic() - began:.0f} s")
    time.sleep(5)  # what is on its way may still arrive
    reads = operator.metric("visionchat_operator_api_calls_total", verb="GET")
    print(f"{reads:.0f} reads of the API server so far, {reads / MANY:.2f} for each VisionChat")
    assert resident_mib(operator) < 300
    within, count = reconciles(operator, 0.2)
    for name in names[:CHANGED]:
        chats.change(name, cpusPerReplica=3)  # a roll each: a pod that comes, one that goes, a new head
        time.sleep(0.5)
    eventually(settled, "the changed ones are ready again", seconds=120)
    later_within, later_count = reconciles(operator, 0.2)
    assert later_count - count >= 5 * CHANGED
    share = (later_within - within) / (later_count - count)
    quick, _ = reconciles(operator, 0.05)
    print(f"{later_count - count:.0f} reconciles while {CHANGED} are rolled: {share:.2%} within 200 ms", end=", ")
    print(f"{quick / later_count:.1%} of all within 50 ms; {resident_mib(operator):.0f} MiB")
    assert share >= 0.99
    time.sleep(5)
    before, used = operator.metric("visionchat_operator_api_calls_total"), cpu_seconds(operator)
    time.sleep(QUIET_SECONDS)
    asked = operator.metric("visionchat_operator_api_calls_total") - before
    share = (cpu_seconds(operator) - used) / QUIET_SECONDS
    print(f"{QUIET_SECONDS} s in which nothing changes: {asked:.0f} API calls, {share:.0%} of a CPU")
    assert asked <= KINDS * ceil(QUIET_SECONDS / PERIOD.total_seconds())  # a listing now and then, whatever the number
    assert resident_mib(operator) < 300


def reconciles(operator: OperatorProcess, seconds: float) -> tuple[float, float]:
    """How many took at most so long, and how many there were."""
    name = "visionchat_operator_reconcile_seconds"
    return operator.metric(f"{name}_bucket", le=str(seconds)), operator.metric(f"{name}_count")


def cpu_seconds(operator: OperatorProcess) -> float:
    user, system = Path(f"/proc/{operator.pid}/stat").read_text().rsplit(")", 1)[1].split()[11:13]
    return (int(user) + int(system)) / os.sysconf("SC_CLK_TCK")


def resident_mib(operator: OperatorProcess) -> float:
    status = Path(f"/proc/{operator.pid}/status").read_text()
    found = re.search(r"VmRSS:\s+(\d+) kB", status)
    assert found is not None
    return int(found[1]) / 1024
