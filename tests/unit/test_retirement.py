"""When a replica makes room for a fresh one."""

from __future__ import annotations

import pytest

from visionchat_serve.retirement import RetirementPolicy, is_short, retirement

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


@pytest.mark.parametrize(("memory", "short"), [(None, False), (0.71, False), (0.73, True), (0.95, True)])
def test_memory_is_given_back_before_anybody_retires_for_it(memory: float | None, short: bool) -> None:
    assert is_short(memory, POLICY) is short
    assert short or retirement(1, memory, POLICY) is None
