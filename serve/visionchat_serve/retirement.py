"""When a replica gives memory back, and when it ends by itself, to make room for a fresh one: after so many jobs, or
before memory runs out.

Pure: what was counted and measured are arguments. `replica` asks before each claim and every second; `app` carries
it out. A replica that has begun no job yet stays, whatever its memory: a fresh one would be no smaller.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class RetirementPolicy:
    """Shares are of the memory limit. `max_jobs` None: as many as there are."""

    max_jobs: int | None = None
    memory_high: float = 0.85  # finish what runs, then end
    memory_short: float = 0.9  # of `memory_high`: give back what is only kept to be quicker
    memory_last: float = 0.95  # do not even finish: the kernel would soon end it, and perhaps others


@dataclass(frozen=True, slots=True)
class Retirement:
    """`at_once`: do not finish what runs. It counts as lost, because it may be what took the memory."""

    reason: str
    message: str
    at_once: bool = False


def is_short(memory: float | None, policy: RetirementPolicy) -> bool:
    """Is so much of the memory in use that nothing should be kept that could be computed again?"""
    return memory is not None and memory >= policy.memory_short * policy.memory_high


def retirement(begun: int, memory: float | None, policy: RetirementPolicy) -> Retirement | None:
    """What to do after `begun` jobs and with this share of the memory in use; None: go on. `memory` None: no limit."""
    if begun == 0:
        return None
    if memory is not None and memory >= policy.memory_last:
        return Retirement("OutOfMemory", f"{memory:.0%} of the memory limit are used: ending now", at_once=True)
    if memory is not None and memory >= policy.memory_high:
        return Retirement("MemoryHigh", f"{memory:.0%} of the memory limit are used: ending when idle")
    if policy.max_jobs is not None and begun >= policy.max_jobs:
        return Retirement("JobsDone", f"{begun} jobs were its share: ending when idle")
    return None
