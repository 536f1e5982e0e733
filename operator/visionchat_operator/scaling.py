"""How many replicas there should be. Pure; `plan` calls it.

More as soon as the queue has asked for more for `scaleUpDelaySeconds`, the first one at once. Fewer only after the
queue has allowed fewer for `scaleDownDelaySeconds`, and then no fewer than it ever asked for meanwhile. Between the
two lies a band in which nothing changes. When the load is not known, the number is held.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from math import ceil

from visionchat_operator.api import ScalingPolicy, ScalingSpec, VisionChatSpec
from visionchat_operator.status_api import ScalingMemory
from visionchat_operator.world import Load

DEFAULT_DEPTH = 4
SLACK = 0.7  # fewer replicas only if each would then have this part of its target at most


@dataclass(frozen=True, slots=True)
class ScalingState:
    """What is remembered between decisions; in the status as `ScalingMemory`."""

    changed_at: datetime | None = None
    more_since: datetime | None = None
    fewer_since: datetime | None = None
    fewer_peak: int = 0

    @classmethod
    def of(cls, memory: ScalingMemory) -> ScalingState:
        return cls(memory.changed_at, memory.more_since, memory.fewer_since, memory.fewer_peak)

    def memory(self) -> ScalingMemory:
        return ScalingMemory(
            changed_at=self.changed_at,
            more_since=self.more_since,
            fewer_since=self.fewer_since,
            fewer_peak=self.fewer_peak,
        )


@dataclass(frozen=True, slots=True)
class ScalingDecision:
    """How many, why, and what to remember."""

    replicas: int
    reason: str
    message: str
    state: ScalingState
    wake_after: timedelta | None = None  # when waiting alone will change the decision


def desired_replicas(
    spec: VisionChatSpec, current: int, load: Load | None, state: ScalingState, now: datetime
) -> ScalingDecision:
    """`current` is what was decided last."""
    if spec.suspend:
        return _jump(0, current, "Suspended", "spec.suspend is set", state, now)
    if spec.scaling.policy == ScalingPolicy.MANUAL:
        return _jump(spec.replicas, current, "Manual", f"spec.replicas is {spec.replicas}", state, now)
    low, high = spec.scaling.min_replicas, spec.scaling.max_replicas
    bounded = min(max(current, low), high)
    if bounded != current:  # a new spec, or the very first look
        decided = desired_replicas(spec, bounded, load, ScalingState(changed_at=now), now)
        if decided.replicas != bounded:
            return decided
        return replace(decided, reason="Bounds", message=f"between {low} and {high} replicas are allowed")
    if load is None:
        return ScalingDecision(current, "LoadUnknown", "the queue's load is not known, the number is held", state)
    return _follow(spec.scaling, current, load, state, now)


def _jump(to: int, current: int, reason: str, message: str, state: ScalingState, now: datetime) -> ScalingDecision:
    changed = now if to != current else state.changed_at
    return ScalingDecision(to, reason, message, ScalingState(changed_at=changed))


def _follow(spec: ScalingSpec, current: int, load: Load, state: ScalingState, now: datetime) -> ScalingDecision:
    wanted, least = (_bounded(spec, wanted_for(spec, load, share)) for share in (1.0, SLACK))
    if wanted > current:
        return _more(spec, current, wanted, load, state, now)
    if least < current:
        return _fewer(spec, current, least, load, state, now)
    settled = ScalingState(changed_at=state.changed_at)
    return ScalingDecision(current, "Steady", f"{load.depth} jobs are right for {current} replicas", settled)


def wanted_for(spec: ScalingSpec, load: Load, share: float = 1.0) -> int:
    """Replicas with which each has `share` of its target; at least one if there is any job."""
    if spec.target_wait_seconds is not None and load.work is not None:
        wanted = ceil(load.work.total_seconds() / (spec.target_wait_seconds * share))
    else:
        wanted = ceil(load.depth / ((spec.target_queue_depth or DEFAULT_DEPTH) * share))
    return max(wanted, 1 if load.depth else 0)


def _bounded(spec: ScalingSpec, replicas: int) -> int:
    return min(max(replicas, spec.min_replicas), spec.max_replicas)


def _more(
    spec: ScalingSpec, current: int, wanted: int, load: Load, state: ScalingState, now: datetime
) -> ScalingDecision:
    since = _since(state.more_since, now)
    waited = now - since
    if current > 0 and waited < spec.up_delay:  # the first replica waits for nobody
        message = f"{load.depth} jobs ask for {wanted} replicas"
        waiting = replace(state, more_since=since, fewer_since=None, fewer_peak=0)
        return ScalingDecision(current, "Waiting", message, waiting, spec.up_delay - waited)
    message = f"{load.depth} jobs need {wanted} replicas, there were {current}"
    return ScalingDecision(wanted, "QueueGrew", message, ScalingState(changed_at=now))


def _fewer(
    spec: ScalingSpec, current: int, least: int, load: Load, state: ScalingState, now: datetime
) -> ScalingDecision:
    since = _since(state.fewer_since, now)
    peak = max(least, min(state.fewer_peak, current - 1) if state.fewer_since else 0)
    waited = now - since
    if waited < spec.down_delay:
        message = f"{load.depth} jobs allow {least} replicas"
        waiting = replace(state, more_since=None, fewer_since=since, fewer_peak=peak)
        return ScalingDecision(current, "Waiting", message, waiting, spec.down_delay - waited)
    message = f"{peak} replicas have been enough for {spec.scale_down_delay_seconds} s, there were {current}"
    return ScalingDecision(peak, "QueueShrank", message, ScalingState(changed_at=now))


def _since(before: datetime | None, now: datetime) -> datetime:
    return now if before is None or before > now else before
