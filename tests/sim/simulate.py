"""A discrete simulation, second by second: jobs, replicas that start, work and drain, and a rule that counts them.

Ours is the real `plan()` on a small cluster. The others' rules get the same replicas, the same start-up, and the same
gentle way to let the idle go first.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any, Protocol

from sim.rivals import Rule
from sim.traces import Trace
from support.small_cluster import SmallCluster
from visionchat_operator.api import VisionChatSpec
from visionchat_operator.plan import plan
from visionchat_operator.world import Load, Observed

START_UP = 45  # seconds from a pod's creation to a warm replica: image there, Ray joined, model loaded
TARGET, MOST = 4, 6


@dataclass
class Outcome:
    """What a trace cost and how it felt. Waits in seconds, by job."""

    waits: list[float] = field(default_factory=list)
    replica_seconds: int = 0
    changes: int = 0
    mode_changes: int = 0
    unanswered: int = 0

    def wait(self, share: float) -> float:
        """The wait that this share of the jobs does not exceed."""
        return sorted(self.waits)[min(len(self.waits) - 1, int(share * len(self.waits)))]


class Fleet(Protocol):
    """Replicas under some rule."""

    def step(self, second: int, depth: int | None, busy: frozenset[str]) -> None: ...
    def serving(self) -> list[str]: ...
    def paid(self) -> int: ...


class Ours:
    """The operator's planner on a cluster with room enough."""

    def __init__(self, min_replicas: int, **fields: Any) -> None:
        scaling = {"minReplicas": min_replicas, "maxReplicas": MOST, "targetQueueDepth": TARGET}
        spec = VisionChatSpec.model_validate({"model": {"id": "tiny"}, "scaling": scaling, **fields})
        start_up, instant = timedelta(seconds=START_UP), timedelta(0)
        self._cluster = SmallCluster(spec, start_up=start_up, drain=instant, nodes={"a": 64})
        self._seen: Observed | None = None
        self._due = self._cluster.now
        self.changes = self.mode_changes = 0

    def step(self, second: int, depth: int | None, busy: frozenset[str]) -> None:
        cluster = self._cluster
        cluster.held = busy
        cluster.advance(timedelta(seconds=1))
        cluster.jobs_in_hand(busy)
        before = cluster.status
        seen = cluster.observe(None if depth is None else Load(depth))
        if seen == self._seen and cluster.now < self._due:  # as the reconciler does
            return
        made = plan(seen, cluster.settings, cluster.now)
        self._seen, self._due = seen, cluster.now + made.requeue_after
        cluster.carry_out(made)
        self.changes += made.status.replicas.desired != before.replicas.desired
        self.mode_changes += made.status.mode != before.mode

    def serving(self) -> list[str]:
        return sorted(worker.uid for worker in self._cluster.serving)

    def paid(self) -> int:
        return len(self._cluster.workers)


class Theirs:
    """A plain set of replicas that follows a rule."""

    def __init__(self, rule: Rule) -> None:
        self._rule = rule
        self._warm_at: dict[str, int] = {}
        self._leaving: set[str] = set()
        self._made = 0
        self.changes = self.mode_changes = 0
        self._second = 0

    def step(self, second: int, depth: int | None, busy: frozenset[str]) -> None:
        self._second = second
        for name in [n for n in self._leaving if n not in busy]:
            self._leaving.discard(name)
            del self._warm_at[name]
        staying = [n for n in self._warm_at if n not in self._leaving]
        wanted = self._rule.replicas(second, depth, len(staying)) if second or staying else self._first()
        self.changes += wanted != len(staying)
        for _ in range(wanted - len(staying)):
            self._made += 1
            self._warm_at[f"r{self._made}"] = second + START_UP
        idle_first = sorted(staying, key=lambda n: (self._warm_at[n] <= second, n in busy, -int(n[1:])))
        for name in idle_first[: max(0, len(staying) - wanted)]:
            if name in busy:
                self._leaving.add(name)
            else:
                del self._warm_at[name]

    def _first(self) -> int:
        return getattr(self._rule, "_low", 1) if not getattr(self._rule, "_zero", False) else 0

    def serving(self) -> list[str]:
        return [n for n, at in self._warm_at.items() if at <= self._second and n not in self._leaving]

    def paid(self) -> int:
        return len(self._warm_at)


def simulate(trace: Trace, fleet: Any) -> Outcome:
    """Run the trace to its end. One job at a time in each replica, oldest first."""
    outcome = Outcome()
    arriving, waiting = deque(trace.jobs), deque[tuple[float, float]]()
    working: dict[str, float] = {}  # replica -> when its job is done
    for second in range(trace.seconds):
        away = trace.away(second)
        while arriving and arriving[0][0] <= second:
            waiting.append(arriving.popleft())
        working = {name: done for name, done in working.items() if done > second}
        depth = None if away else len(waiting) + len(working)
        fleet.step(second, depth, frozenset(working))
        outcome.replica_seconds += fleet.paid()
        for name in fleet.serving() if not away else ():
            if waiting and name not in working:
                arrived, work = waiting.popleft()
                outcome.waits.append(second - arrived)
                working[name] = second + work
    outcome.unanswered = len(waiting) + len(arriving)
    outcome.changes, outcome.mode_changes = fleet.changes, fleet.mode_changes
    return outcome


Maker = Callable[[Trace], Any]
