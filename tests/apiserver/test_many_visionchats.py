"""200 VisionChats at one operator: quick, small, and quiet when nothing changes."""

from __future__ import annotations

import re
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from support.cluster_fixtures import Chats, Start, eventually
from support.operator_process import OperatorProcess
from support.played_node import PlayedNode

MANY = 200
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
    assert share_within(operator, 0.2) >= 0.99
    assert resident_mib(operator) < 300
    before = operator.metric("visionchat_operator_api_calls_total")
    time.sleep(QUIET_SECONDS)
    assert operator.metric("visionchat_operator_api_calls_total") == before
    print(f"{share_within(operator, 0.2):.4f} of reconciles within 200 ms, {resident_mib(operator):.0f} MiB resident")


def share_within(operator: OperatorProcess, seconds: float) -> float:
    """Part of the reconciles that took at most so long."""
    name = "visionchat_operator_reconcile_seconds"
    return operator.metric(f"{name}_bucket", le=str(seconds)) / operator.metric(f"{name}_count")


def resident_mib(operator: OperatorProcess) -> float:
    status = Path(f"/proc/{operator.pid}/status").read_text()
    found = re.search(r"VmRSS:\s+(\d+) kB", status)
    assert found is not None
    return int(found[1]) / 1024
