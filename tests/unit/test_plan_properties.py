"""What must hold of every plan, whatever is thrown at it."""

from __future__ import annotations

import itertools
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from support.small_cluster import START, SmallCluster
from visionchat_operator import pinning, scaling
from visionchat_operator.api import PinningMode, PodTemplate, VisionChatSpec
from visionchat_operator.plan import Plan
from visionchat_operator.status_api import Mode
from visionchat_operator.world import Load, Ref, Worker

SECOND = timedelta(seconds=1)
quick = settings(deadline=None, max_examples=60)  # a busy machine is no fault of a plan


@st.composite
def specs(draw: st.DrawFn, **fixed: Any) -> VisionChatSpec:
    low = draw(st.integers(0, 4))
    scaling_spec = {
        "minReplicas": low,
        "maxReplicas": draw(st.integers(max(1, low), 8)),
        "targetQueueDepth": draw(st.integers(1, 10)),
        "scaleUpDelaySeconds": draw(st.sampled_from([0, 3, 30])),
        "scaleDownDelaySeconds": draw(st.sampled_from([0, 60, 300])),
    }
    unpin = draw(st.integers(0, 3))
    pinning_spec = {
        "mode": draw(st.sampled_from(list(PinningMode))),
        "pinAbove": unpin + draw(st.integers(1, 4)),
        "unpinBelow": unpin,
        "dwellSeconds": draw(st.sampled_from([0, 30, 120])),
        "fallback": draw(st.sampled_from(["Shared", "Wait"])),
    }
    spec = {"model": {"id": "tiny"}, "scaling": scaling_spec, "pinning": pinning_spec}
    return VisionChatSpec.model_validate(spec | {"cpusPerReplica": draw(st.integers(1, 4))} | fixed)


loads = st.none() | st.integers(0, 60).map(Load)
durations = st.sampled_from([timedelta(0), SECOND, 5 * SECOND, 30 * SECOND, 120 * SECOND, 400 * SECOND])


@dataclass(frozen=True)
class Moment:
    """What comes next: this much time, this load, and jobs in the hands of the replicas."""

    passes: timedelta
    load: Load | None
    busy: frozenset[int]


moments = st.builds(Moment, durations, loads, st.frozensets(st.integers(0, 7), max_size=3))


@st.composite
def clusters(draw: st.DrawFn, **fixed: Any) -> SmallCluster:
    nodes = {f"n{i}": cpus for i, cpus in enumerate(draw(st.lists(st.integers(1, 24), min_size=1, max_size=3)))}
    refuses = frozenset(draw(st.sets(st.sampled_from(sorted(nodes)))))
    return SmallCluster(draw(specs(**fixed)), nodes=nodes, refuses=refuses)


def live_through(cluster: SmallCluster, moment: Moment) -> Plan:
    """One turn of the operator's loop; the plan it carried out."""
    cluster.advance(moment.passes)
    for number, name in enumerate(sorted(cluster.workers)):
        worker = cluster.workers[name]
        cluster.workers[name] = replace(worker, jobs=int(number in moment.busy) if worker.serving else None)
    made = cluster.plan(moment.load)
    cluster.carry_out(made)
    return made


histories = st.lists(moments, max_size=25)


@quick
@given(clusters(), histories)
def test_the_number_of_replicas_keeps_its_bounds(cluster: SmallCluster, history: list[Moment]) -> None:
    for moment in history:
        made = live_through(cluster, moment)
        low, high = cluster.spec.scaling.min_replicas, cluster.spec.scaling.max_replicas
        assert low <= made.status.replicas.desired <= high
        assert len(cluster.live) <= high + 1  # one more while a new pod comes before the old one goes


@quick
@given(clusters(), histories, durations)
def test_missing_load_never_scales_down_and_never_changes_the_mode(
    cluster: SmallCluster, history: list[Moment], passes: timedelta
) -> None:
    for moment in history:
        live_through(cluster, moment)
    live_through(cluster, Moment(SECOND, Load(0), frozenset()))
    before, mode = cluster.status.replicas.desired, cluster.status.mode
    for _ in range(3):
        made = live_through(cluster, Moment(passes, None, frozenset()))
        assert made.status.replicas.desired == before
        assert made.status.mode == mode


@quick
@given(specs(), st.integers(1, 100))
def test_from_none_to_one_needs_no_delay(spec: VisionChatSpec, depth: int) -> None:
    decided = scaling.desired_replicas(spec, 0, Load(depth), scaling.ScalingState(), START)
    assert decided.replicas >= 1


@quick
@given(specs(), st.integers(0, 8), st.integers(0, 80), st.integers(0, 80), st.integers(0, 400), st.integers(0, 8))
def test_more_load_never_means_fewer_replicas(
    spec: VisionChatSpec, current: int, depth: int, more: int, waited: int, peak: int
) -> None:
    since = START - waited * SECOND
    for state in (
        scaling.ScalingState(fewer_since=since, fewer_peak=peak),
        scaling.ScalingState(more_since=since),
        scaling.ScalingState(),
    ):
        low = scaling.desired_replicas(spec, current, Load(depth), state, START).replicas
        high = scaling.desired_replicas(spec, current, Load(depth + more), state, START).replicas
        assert high >= low


@quick
@given(clusters(), histories)
def test_at_most_one_change_in_each_delay(cluster: SmallCluster, history: list[Moment]) -> None:
    last, began = START - timedelta(days=1), False
    for moment in history:
        before = cluster.status.replicas.desired
        after = live_through(cluster, moment).status.replicas.desired
        if after == before:
            continue
        delay = cluster.spec.scaling.up_delay if after > before else cluster.spec.scaling.down_delay
        to_the_minimum = not began and after == cluster.spec.scaling.min_replicas
        assert before == 0 or to_the_minimum or cluster.now - last >= delay
        last, began = cluster.now, True


@quick
@given(clusters(), histories)
def test_the_mode_never_flips_within_its_dwell(cluster: SmallCluster, history: list[Moment]) -> None:
    flips = []
    for moment in history:
        before = cluster.status.mode
        if live_through(cluster, moment).status.mode != before:
            flips.append(cluster.now)
    if cluster.spec.pinning.mode != PinningMode.QUEUE_DEPTH:
        assert len(flips) <= 1
    for first, second in itertools.pairwise(flips):
        assert second - first >= cluster.spec.pinning.dwell


@quick
@given(clusters(), histories)
def test_pinned_cpus_never_exceed_what_a_node_can_give(cluster: SmallCluster, history: list[Moment]) -> None:
    for moment in history:
        made = live_through(cluster, moment)
        asked = [m for m in made.create if m["kind"] == "Pod" and m["metadata"]["labels"][pinning_label()] == "Pinned"]
        room = sum((n - cluster.reserved) // cluster.spec.cpus_per_replica for n in cluster.nodes.values())
        staying = [w for w in cluster.live if w.mode == Mode.PINNED]
        assert len(asked) <= max(room, 0)
        assert len(staying) <= max(room, 0) + 1
        cluster.advance(timedelta(0))
        assert all(cluster.free(node) >= 0 or cluster.nodes[node] < cluster.reserved for node in cluster.nodes)


def pinning_label() -> str:
    return "visionchat.dev/mode"


@quick
@given(clusters(), histories)
def test_the_pods_are_what_their_mode_promises(cluster: SmallCluster, history: list[Moment]) -> None:
    for moment in history:
        for manifest in live_through(cluster, moment).create:
            if manifest["kind"] != "Pod":
                continue
            (container,) = manifest["spec"]["containers"]
            requests, limits = container["resources"]["requests"], container["resources"]["limits"]
            assert "initContainers" not in manifest["spec"]
            assert int(limits["cpu"]) == cluster.spec.cpus_per_replica
            threads = {e["name"]: e.get("value") for e in container["env"]}
            assert threads["OMP_NUM_THREADS"] == str(cluster.spec.cpus_per_replica)
            pinned = manifest["metadata"]["labels"][pinning_label()] == "Pinned"
            assert (requests == limits) == pinned


@quick
@given(clusters(), histories)
def test_the_same_input_gives_the_same_plan(cluster: SmallCluster, history: list[Moment]) -> None:
    for moment in history:
        live_through(cluster, moment)
        observed = cluster.observe(moment.load)
        assert cluster.plan(moment.load) == cluster.plan(moment.load)
        assert cluster.observe(moment.load) == observed


@quick
@given(clusters(), histories)
def test_planning_again_on_the_outcome_changes_nothing(cluster: SmallCluster, history: list[Moment]) -> None:
    for moment in history:
        live_through(cluster, moment)
        again = cluster.plan(moment.load)
        assert [m["metadata"]["name"] for m in again.create if m["kind"] == "Pod"] == []
        assert [r for r in again.delete if r.ref.kind == "Pod"] == []
        assert again.status.replicas.desired == cluster.status.replicas.desired
        assert again.status.pinning == cluster.status.pinning
        cluster.carry_out(again)
        third = cluster.plan(moment.load)
        assert third.status == cluster.status
        assert not third.decisions
        assert not third.token
        assert {Ref(m["kind"], m["metadata"]["name"]) for m in third.apply} <= set(cluster.children)


@quick
@given(clusters(), histories)
def test_replicas_are_replaced_one_at_a_time_and_never_while_scaling_in(
    cluster: SmallCluster, history: list[Moment]
) -> None:
    for turn, moment in enumerate(history):
        if turn == len(history) // 2:  # in the middle of it all, a new revision
            new = PodTemplate(annotations={"edition": "2"})
            cluster.spec = cluster.spec.model_copy(update={"pod_template": new})
        draining_before = {w.name for w in cluster.workers.values() if w.deleting}
        desired_before = cluster.status.replicas.desired
        made = live_through(cluster, moment)
        reasons = [d.reason for d in made.decisions]
        assert reasons.count("Replaced") <= 1
        if "Replaced" in reasons:
            assert "Surplus" not in reasons
            if made.status.replicas.desired < desired_before:  # it was the one that is not needed any more
                assert len(cluster.live) == made.status.replicas.desired
            still = {w.name for w in cluster.workers.values() if w.deleting} & draining_before
            assert not still


@quick
@given(clusters(), histories)
def test_a_change_of_mode_never_leaves_fewer_than_the_minimum(cluster: SmallCluster, history: list[Moment]) -> None:
    for moment in history:
        cluster.advance(moment.passes)
        before = len(cluster.serving)
        made = cluster.plan(moment.load)
        cluster.carry_out(made)
        if any(d.reason == "Replaced" for d in made.decisions) and len(cluster.serving) < before:
            desired = made.status.replicas.desired
            assert len(cluster.serving) >= min(desired, max(1, cluster.spec.scaling.min_replicas))


@quick
@given(clusters(), histories)
def test_scale_in_takes_the_idle(cluster: SmallCluster, history: list[Moment]) -> None:
    for moment in history:
        made = live_through(cluster, moment)
        surplus = {d.message.split()[2].strip(",:") for d in made.decisions if d.reason == "Surplus"}
        taken = [w for w in cluster.workers.values() if w.name in surplus and w.serving]
        same_kind = [w for w in cluster.serving if any((w.mode, w.revision) == (t.mode, t.revision) for t in taken)]
        if any(w.jobs for w in taken):
            assert all(w.jobs for w in same_kind if w.mode in {t.mode for t in taken if t.jobs})


@settings(max_examples=10, deadline=None)  # ten minutes each
@given(clusters(pinning={"mode": "Always", "fallback": "Shared"}))
def test_refusals_back_off_and_never_become_a_storm(cluster: SmallCluster) -> None:
    cluster.nodes, cluster.refuses = {"a": 64}, frozenset({"a"})
    refusals = 0
    for _ in range(600):
        made = live_through(cluster, Moment(SECOND, Load(3), frozenset()))
        refusals += sum(d.reason == "SMTAlignmentError" and "refused" in d.message for d in made.decisions)
    wanted = cluster.status.replicas.desired
    assert refusals <= 5  # 30 s, 60 s, 120 s, 240 s …
    assert len(cluster.live) >= min(wanted, 1)


@quick
@given(specs(pinning={"mode": "QueueDepth", "pinAbove": 4, "unpinBelow": 1, "dwellSeconds": 60}))
def test_the_mode_follows_the_queue_after_the_dwell(spec: VisionChatSpec) -> None:
    state = pinning.PinningState()
    for second, expected in ((0, Mode.SHARED), (59, Mode.SHARED), (60, Mode.PINNED), (61, Mode.PINNED)):
        decided = pinning.decide(spec, 1, Load(9), (), None, state, START + second * SECOND)
        state = decided.state
        assert decided.mode == expected
    for second, expected in ((62, Mode.PINNED), (121, Mode.PINNED), (122, Mode.SHARED)):
        decided = pinning.decide(spec, 1, Load(0), (), None, state, START + second * SECOND)
        state = decided.state
        assert decided.mode == expected


def test_only_a_later_pinned_pod_ends_the_pause_after_a_refusal() -> None:
    """One that has run all along would end it at once, and pods would be made and deleted every minute."""
    spec = VisionChatSpec.model_validate({"model": {"id": "tiny"}, "pinning": {"mode": "Always"}})
    refused = pinning.PinningState(Mode.PINNED, START, None, 1, START + SECOND, pinning.NO_ROOM)
    older = Worker("demo-worker-0", "1", Mode.PINNED, "r", START, node="a", ready=True)
    later = replace(older, name="demo-worker-1", created=START + 40 * SECOND)
    for workers, refusals, pinned in (((older,), 1, 1), ((older, later), 0, 2)):
        decided = pinning.decide(spec, 2, None, workers, None, refused, START + 2 * SECOND)
        assert (decided.state.refusals, decided.pinned) == (refusals, pinned)
