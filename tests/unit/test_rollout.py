"""Which pods come and go, case by case; what holds of all cases is in `test_plan_properties`."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from typing import Any

from support.small_cluster import START, SmallCluster
from visionchat_operator.api import Fallback, VisionChatSpec
from visionchat_operator.names import FINALIZER
from visionchat_operator.plan import Plan, PlanSettings, plan
from visionchat_operator.rollout import Steps, Wanted, next_steps
from visionchat_operator.status_api import Mode
from visionchat_operator.world import Load, Ref, Worker

MINUTE = timedelta(minutes=1)
NOW = START + 10 * MINUTE


def pod(number: int, **fields: Any) -> Worker:
    mode, revision = fields.pop("mode", Mode.SHARED), fields.pop("revision", "new")
    created = fields.pop("created", START)
    warm = {"ready": True, "serving": True, "jobs": 0} | fields
    return Worker(f"p{number}", f"uid{number}", mode, revision, created, **warm)


def steps(workers: list[Worker], replicas: int = 1, **fields: Any) -> Steps:
    wanted = Wanted(replicas, fields.pop("pinned", 0), "new", fields.pop("minimum", 1), **fields)
    return next_steps(wanted, workers, frozenset(range(len(workers))), NOW)


def names(made: Steps) -> list[str]:
    return [worker.name for worker in made.delete]


def test_the_only_replica_is_replaced_by_one_that_comes_first() -> None:
    old = pod(0, revision="old")
    made = steps([old])
    assert (made.create, names(made)) == (((1, Mode.SHARED),), [])
    starting = pod(1, serving=False)
    assert steps([old, starting]) == Steps(rolling="1 replicas of an older revision are replaced one at a time")
    assert names(steps([old, pod(1)])) == ["p0"]


def test_a_new_revision_without_room_beside_the_old_takes_its_place() -> None:
    waiting = pod(1, ready=False, serving=False, unschedulable_since=NOW - 2 * MINUTE)
    made = steps([pod(0, revision="old"), waiting])
    assert names(made) == ["p0"]
    assert made.no_room


def test_another_mode_without_room_waits() -> None:
    waiting = pod(1, mode=Mode.PINNED, ready=False, serving=False, unschedulable_since=NOW - 2 * MINUTE)
    assert names(steps([pod(0), waiting], pinned=1, fallback=Fallback.WAIT)) == []


def test_with_more_than_the_minimum_a_new_pod_takes_the_place_of_an_old_one() -> None:
    made = steps([pod(0, revision="old", jobs=1), pod(1, revision="old")], replicas=2)
    assert (len(made.create), names(made)) == (1, ["p1"])


def test_the_next_one_waits_until_the_last_one_is_gone() -> None:
    workers = [pod(0, revision="old"), pod(1), pod(2, revision="old", deleting=True)]
    assert steps(workers, replicas=2).delete == ()


def test_one_that_does_not_end_long_after_its_grace_is_not_waited_for() -> None:
    def with_grace_over_for(ago: timedelta) -> Steps:
        going = pod(2, revision="old", deleting=True, ends_by=NOW - ago)
        return steps([pod(0, revision="old"), pod(1), going], replicas=2)

    assert with_grace_over_for(timedelta(seconds=59)).delete == ()
    assert names(with_grace_over_for(timedelta(seconds=60))) == ["p0"]


def test_replicas_that_do_not_report_are_not_all_thrown_away() -> None:
    """A Redis that lost its data for a moment, in the middle of a roll."""
    workers = [pod(number, revision="old", serving=False) for number in range(3)]
    assert len(steps(workers, replicas=3).delete) == 1


def test_outdated_pods_that_never_joined_go_at_once() -> None:
    workers = [pod(number, revision="old", ready=False, serving=False) for number in range(3)]
    made = steps(workers, replicas=3)
    assert len(made.delete) == len(made.create) == 3


def test_a_pod_that_failed_young_is_not_replaced_at_once() -> None:
    young = pod(0, failed=True, failure="OutOfmemory", ready=False, serving=False, created=NOW - timedelta(seconds=5))
    assert steps([young]) == Steps()
    old = pod(0, failed=True, failure="Evicted", ready=False, serving=False)
    made = steps([old])
    assert (len(made.create), names(made)) == (1, ["p0"])


def test_surplus_goes_idle_first_and_youngest_first() -> None:
    workers = [pod(0, jobs=1), pod(1), pod(2, created=START + MINUTE), pod(3, jobs=1)]
    assert names(steps(workers, replicas=3)) == ["p2"]
    assert sorted(names(steps(workers, replicas=2))) == ["p1", "p2"]


def test_the_gateway_changes_when_the_new_replicas_answer() -> None:
    cluster = SmallCluster(VisionChatSpec.model_validate({"model": {"id": "tiny"}}))

    def lived(seconds: int) -> set[Ref]:
        applied: set[Ref] = set()
        for _ in range(seconds):
            cluster.advance(timedelta(seconds=1))
            made = cluster.plan(Load(0))
            cluster.carry_out(made)
            applied = {Ref(m["kind"], m["metadata"]["name"]) for m in made.apply}
        return applied

    head = {Ref("Deployment", "demo-head"), Ref("ConfigMap", "demo-settings")}
    assert head <= lived(60)
    before = cluster.children[Ref("ConfigMap", "demo-settings")]["data"]
    cluster.spec = VisionChatSpec.model_validate({"model": {"id": "tiny", "maxContext": 512}})
    assert not head & lived(30)
    assert cluster.children[Ref("ConfigMap", "demo-settings")]["data"] == before
    assert head <= lived(60)
    assert cluster.children[Ref("ConfigMap", "demo-settings")]["data"]["VISIONCHAT_MAX_CONTEXT"] == "512"


def test_with_another_image_the_head_comes_first() -> None:
    cluster = SmallCluster(VisionChatSpec.model_validate({"model": {"id": "tiny"}}))
    for _ in range(60):
        cluster.advance(timedelta(seconds=1))
        cluster.carry_out(cluster.plan(Load(0)))
    cluster.spec = VisionChatSpec.model_validate({"model": {"id": "tiny"}, "image": "other"})
    made = cluster.plan(Load(0))
    assert Ref("Deployment", "demo-head") in {Ref(m["kind"], m["metadata"]["name"]) for m in made.apply}


def farewell(*workers: Worker, ago: timedelta = timedelta(0), head: bool = False) -> Plan:
    spec = VisionChatSpec.model_validate({"model": {"id": "tiny"}, "queue": {"deleteWithResource": True}})
    children = {Ref("Deployment", "demo-head"): {"metadata": {}}} if head else {}
    seen = SmallCluster(spec).observe(None)
    gone = {"deleting": True, "deleted_at": NOW - ago, "finalizers": (FINALIZER,)}
    return plan(replace(seen, workers=workers, children=children, **gone), PlanSettings(), NOW)


def test_the_queue_goes_after_replicas_and_head() -> None:
    first = farewell(pod(0), head=True)
    assert ([removal.ref.name for removal in first.delete], first.finalizer) == (["p0"], True)
    second = farewell(head=True)
    assert ([removal.ref.name for removal in second.delete], second.forget_queue) == (["demo-head"], False)
    last = farewell()
    assert (last.forget_queue, last.finalizer, last.patient) == (True, False, True)


def test_a_farewell_waits_neither_for_a_dead_node_nor_for_a_dead_queue_for_ever() -> None:
    going = pod(0, deleting=True, ends_by=NOW)
    assert not farewell(going).forget_queue
    assert farewell(replace(going, ends_by=NOW - MINUTE)).forget_queue
    assert not farewell(ago=5 * MINUTE).patient
