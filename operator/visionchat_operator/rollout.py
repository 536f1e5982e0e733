"""Which replica pods to create and which to delete, one careful step at a time. Pure; `plan` calls it.

Deleting a pod drains it: Ray takes no new work onto its node, the job in hand ends within the pod's grace, and what is
left goes back to the queue. Surplus pods go together, the idle first. Outdated pods (another revision, another mode)
are replaced one at a time, only while all others serve and nothing is being scaled in: where one fewer would be under
the minimum the new pod comes first, otherwise it takes the place of the old one, so that no second set of nodes is
needed. A pod that does not end long after its grace (its node is gone, most often) holds nothing up any more; it is
said in a condition, and never deleted by force: only people know whether its node is really dead.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from visionchat_operator.api import Fallback
from visionchat_operator.pinning import UNSCHEDULABLE_FOR, refusal
from visionchat_operator.status_api import Mode
from visionchat_operator.world import Decision, Worker

REST = timedelta(seconds=30)
STUCK_AFTER = timedelta(seconds=60)  # beyond its grace


@dataclass(frozen=True, slots=True)
class Wanted:
    """What the pods should be. `minimum`: how many must go on serving while others are replaced."""

    replicas: int
    pinned: int  # of them
    revision: str
    minimum: int
    hold: bool = False  # create no shared pods in the place of pinned ones
    fallback: Fallback = Fallback.SHARED


@dataclass(frozen=True, slots=True)
class Steps:
    """Pods to create, by index and mode; pods to delete; why."""

    create: tuple[tuple[int, Mode], ...] = ()
    delete: tuple[Worker, ...] = ()
    decisions: tuple[Decision, ...] = ()
    rolling: str | None = None  # what is being replaced, for people
    no_room: bool = False  # the new pod finds no node beside the old one


def next_steps(wanted: Wanted, workers: Sequence[Worker], used: frozenset[int], now: datetime) -> Steps:
    """`used`: indices of pods that exist in any state."""
    dead, resting = _dead(wanted, workers, now)
    able = [w for w in workers if not w.deleting and w not in dead and w not in resting]
    absent = tuple(w for w in _outdated(wanted, able) if not w.ready)  # nobody misses them: no need to go one by one
    live = [w for w in able if w not in absent]
    outdated = _outdated(wanted, live)
    kept, surplus = _surplus(wanted, live, outdated)
    modes = _missing(wanted, kept, len(resting))
    no_room = False
    decisions = [_deleted(w, "Surplus", "it is not needed any more") for w in surplus]
    decisions += [_deleted(w, w.failure or "Refused", "it cannot run", warning=True) for w in dead]
    decisions += [_deleted(w, "Outdated", "it is outdated and has not joined yet") for w in absent]
    delete = (*dead, *absent, *surplus)
    if not modes and not delete and not resting:  # one thing at a time
        modes, replaced = _replace(wanted, live, outdated, draining=any(_drains(w, now) for w in workers), now=now)
        delete += replaced
        no_room = bool(replaced) and not modes
        decisions += [_deleted(w, "Replaced", "it is replaced, drained first") for w in replaced]
    created = tuple(zip(_free(used, len(modes)), modes, strict=True))
    decisions += [Decision("CreatedReplica", f"create replica {i} on {m.value.lower()} CPUs") for i, m in created]
    return Steps(created, delete, tuple(decisions), _what_rolls(wanted, (*absent, *outdated)), no_room)


def _dead(wanted: Wanted, workers: Sequence[Worker], now: datetime) -> tuple[tuple[Worker, ...], tuple[Worker, ...]]:
    """Pods that will never run: to be deleted, and those that failed so young that another would fail likewise.

    The latter stay where they are for a while, so that no node is asked again and again. How long pinning is not
    tried again is decided in `pinning`.
    """
    refused = [w for w in workers if refusal(w, wanted.fallback, now)]
    failed = [w for w in workers if w.failed and not w.deleting and w not in refused]
    resting = tuple(w for w in failed if now - w.created < REST)
    return tuple(w for w in workers if w in refused or (w in failed and w not in resting)), resting


def is_stuck(worker: Worker, now: datetime) -> bool:
    """It should have ended long ago."""
    return worker.ends_by is not None and now - worker.ends_by >= STUCK_AFTER


def _drains(worker: Worker, now: datetime) -> bool:
    return worker.deleting and not is_stuck(worker, now)


def only_surplus(wanted: Wanted, workers: Sequence[Worker], now: datetime) -> Steps:
    """The steps while new pods could not start: nothing is created, nothing replaced."""
    steps = next_steps(wanted, workers, frozenset(), now)
    if steps.create:
        return Steps(rolling=steps.rolling)
    return steps


def _deleted(worker: Worker, reason: str, why: str, warning: bool = False) -> Decision:
    busy = f", with {worker.jobs} jobs in hand" if worker.jobs else ""
    return Decision(reason, f"delete pod {worker.name}{busy}: {why}", warning)


def _outdated(wanted: Wanted, live: Sequence[Worker]) -> list[Worker]:
    """Those to be replaced, the cheapest to lose first."""
    ordered = sorted(live, key=_loss)
    old = [w for w in ordered if w.revision != wanted.revision]
    current = [w for w in ordered if w.revision == wanted.revision]
    for mode, number in ((Mode.PINNED, wanted.pinned), (Mode.SHARED, wanted.replicas - wanted.pinned)):
        of_mode = [w for w in current if w.mode == mode]
        if mode == Mode.SHARED and wanted.hold:
            continue  # nothing may take their place
        old += of_mode[: max(0, len(of_mode) - number)]
    return old


def _loss(worker: Worker) -> tuple[bool, int, float, str]:
    """Order of who goes first: not serving, then idle, then youngest."""
    jobs = 1 if worker.jobs is None else worker.jobs
    return worker.serving, jobs, -worker.created.timestamp(), worker.name


def _surplus(wanted: Wanted, live: Sequence[Worker], outdated: Sequence[Worker]) -> tuple[list[Worker], list[Worker]]:
    """Who stays and who is too many. While one pod is replaced by a new one that came first, one more is right."""
    too_many = len(live) - wanted.replicas
    fresh = [w for w in live if w not in outdated]
    if too_many == 1 and outdated and not all(w.serving for w in fresh) and wanted.replicas:
        return list(live), []
    order = sorted(live, key=lambda w: (w in fresh, *_mode_surplus(wanted, w), *_loss(w)))
    gone = order[: max(0, too_many)]
    return [w for w in live if w not in gone], gone


def _mode_surplus(wanted: Wanted, worker: Worker) -> tuple[bool]:
    """Pods of the mode that is wanted for all go last."""
    return ((worker.mode == Mode.PINNED) == (wanted.pinned > 0),)


def _missing(wanted: Wanted, kept: Sequence[Worker], resting: int) -> list[Mode]:
    number = max(0, wanted.replicas - len(kept) - resting)
    pinned = max(0, wanted.pinned - sum(w.mode == Mode.PINNED and w.revision == wanted.revision for w in kept))
    modes = [Mode.PINNED] * min(number, pinned)
    return modes if wanted.hold else modes + [Mode.SHARED] * (number - len(modes))


def _replace(
    wanted: Wanted, live: Sequence[Worker], outdated: Sequence[Worker], draining: bool, now: datetime
) -> tuple[list[Mode], tuple[Worker, ...]]:
    """The next pod to replace: the mode of the new pod, and the old one unless the new must serve first."""
    if not outdated or draining:
        return [], ()
    victim = outdated[0]
    if len(live) > wanted.replicas:  # the new pod is there already
        return [], (victim,) if _cannot_come_first(wanted, live, outdated, victim, now) else ()
    mode = _mode_for(wanted, [w for w in live if w is not victim])
    if not victim.serving:
        return ([mode], (victim,)) if all(w.ready for w in live) else ([], ())
    if not all(w.serving for w in live):
        return [], ()
    return [mode], (victim,) if len(live) - 1 >= wanted.minimum else ()


def _mode_for(wanted: Wanted, others: Sequence[Worker]) -> Mode:
    pinned = sum(w.mode == Mode.PINNED and w.revision == wanted.revision for w in others)
    return Mode.PINNED if pinned < wanted.pinned else Mode.SHARED


def _cannot_come_first(
    wanted: Wanted, live: Sequence[Worker], outdated: Sequence[Worker], victim: Worker, now: datetime
) -> bool:
    """The new pod finds no node beside the old one. A new revision then has to take its place; a mode need not."""
    waiting = [w for w in live if w not in outdated and w.unschedulable_since is not None]
    impatient = any(now - (w.unschedulable_since or now) >= UNSCHEDULABLE_FOR for w in waiting)
    return impatient and victim.revision != wanted.revision


def _free(used: frozenset[int], number: int) -> list[int]:
    free = (i for i in range(len(used) + number) if i not in used)
    return [index for index, _ in zip(free, range(number), strict=False)]


def _what_rolls(wanted: Wanted, outdated: Sequence[Worker]) -> str | None:
    if not outdated:
        return None
    old = sum(w.revision != wanted.revision for w in outdated)
    what = f"{old} replicas of an older revision" if old else f"{len(outdated)} replicas in another mode"
    return f"{what} are replaced one at a time"
