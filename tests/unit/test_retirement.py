"""When a replica makes room for a fresh one."""

from __future__ import annotations

import pytest

from visionchat_serve.retirement import RetirementPolicy, retirement

POLICY = RetirementPolicy(max_jobs=10, memory_high=0.8, memory_last=0.9)


@pytest.mark.parametrize(
    ("begun", "memory", "reason", "at_once"),
    [
        (1, None, None, False),
        (9, 0.79, None, False),
        (10, 0.1, "JobsDone", False),
        (10, None, "JobsDone", False),
        (1, 0.8, "MemoryHigh", False),
        (10, 0.8, "MemoryHigh", False),
        (1, 0.9, "OutOfMemory", True),
        (1, 1.2, "OutOfMemory", True),
        (0, 1.0, None, False),  # it came to the world like this: another one would be no better
    ],
)
def test_retirement(begun: int, memory: float | None, reason: str | None, at_once: bool) -> None:
    verdict = retirement(begun, memory, POLICY)
    assert (verdict and verdict.reason, bool(verdict and verdict.at_once)) == (reason, at_once)


def test_without_limits_nobody_retires() -> None:
    assert retirement(10**9, None, RetirementPolicy()) is None
