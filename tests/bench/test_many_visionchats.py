"""200 VisionChats at one operator: quick, small, and quiet when nothing changes. Nothing else should run.

python -m pytest -s tests/bench/test_many_visionchats.py
"""

from __future__ import annotations

import re
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from support.cluster_fixtures import Chats, Start, eventually
from support.operator_process import OperatorProcess
from support.played_node import PlayedNode

MANY = 200
CHANGED = 40
QUIET_SECONDS = 30


def test_two_hundred_visionchats(start_operator: Start, node: PlayedNode, chats: Chats) -> None:
    operator = start_operator()
    names = [f"chat-{number}" for number in range(MANY)]
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(chats.create, names))

    def settled() -> bool:
        items = chats.api.get(chats.path)["items"]
        ready = [i for i in items if i.get("status", {}).get("replicas", {}).get("ready") == 1]
        return len(ready) == MANY

    eventually(settled, "all are ready", seconds=240)
    time.sleep(5)  # what is on its way may still arrive
    assert resident_mib(operator) < 300
    within, count = reconciles(operator, 0.2)
    for name in names[:CHANGED]:
        chats.change(name, cpusPerReplica=3)  # a roll each: a pod that comes, one that goes, a new head
        time.sleep(0.5)
    eventually(settled, "the changed ones are ready again", seconds=120)
    later_within, later_count = reconciles(operator, 0.2)
    assert later_count - count >= 5 * CHANGED
    share = (later_within - within) / (later_count - count)
    print(f"{share:.4f} of {later_count - count:.0f} reconciles within 200 ms, {resident_mib(operator):.0f} MiB")
    assert share >= 0.99
    time.sleep(5)
    before = operator.metric("visionchat_operator_api_calls_total")
    time.sleep(QUIET_SECONDS)
    assert operator.metric("visionchat_operator_api_calls_total") == before


def reconciles(operator: OperatorProcess, seconds: float) -> tuple[float, float]:
    """How many took at most so long, and how many there were."""
    name = "visionchat_operator_reconcile_seconds"
    return operator.metric(f"{name}_bucket", le=str(seconds)), operator.metric(f"{name}_count")


def resident_mib(operator: OperatorProcess) -> float:
    status = Path(f"/proc/{operator.pid}/status").read_text()
    found = re.search(r"VmRSS:\s+(\d+) kB", status)
    assert found is not None
    return int(found[1]) / 1024
