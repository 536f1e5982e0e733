"""Which request runs next."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from visionchat_serve.engines.scheduler import Decode, Idle, Prefill, Scheduler


def test_prefill_then_decode_then_nothing() -> None:
    scheduler = Scheduler(max_running=1)
    assert scheduler.plan() == Idle()
    scheduler.add("a")
    assert scheduler.plan() == Prefill("a")
    assert scheduler.plan() == Decode(("a",))
    scheduler.remove("a")
    assert scheduler.plan() == Idle()
    assert not scheduler.has_work


def test_a_new_request_is_read_before_the_running_ones_go_on() -> None:
    scheduler = Scheduler(max_running=2)
    for name in "abc":
        scheduler.add(name)
    assert [scheduler.plan() for _ in range(3)] == [Prefill("a"), Prefill("b"), Decode(("a", "b"))]
    scheduler.remove("a")
    assert [scheduler.plan() for _ in range(2)] == [Prefill("c"), Decode(("b", "c"))]


def test_what_was_aborted_while_waiting_never_runs() -> None:
    scheduler = Scheduler(max_running=1)
    for name in "abc":
        scheduler.add(name)
    scheduler.remove("b")
    scheduler.remove("unknown")
    assert scheduler.plan() == Prefill("a")
    scheduler.remove("a")
    assert scheduler.plan() == Prefill("c")


def test_no_place_at_all_is_refused() -> None:
    with pytest.raises(ValueError, match="at least 1"):
        Scheduler(max_running=0)


@given(st.integers(1, 4), st.lists(st.sampled_from(["add", "step", "end", "abort"]), max_size=60), st.randoms())
def test_never_more_than_max_running_always_in_order_and_nobody_forgotten(
    max_running: int, events: list[str], random: object
) -> None:
    scheduler, added, begun, open_ = Scheduler(max_running), 0, [], set()
    for event in [*events, *["step", "end"] * 60]:
        if event == "add":
            scheduler.add(str(added))
            open_.add(str(added))
            added += 1
        elif event == "step":
            plan = scheduler.plan()
            if isinstance(plan, Prefill):
                begun.append(plan.request_id)
            if isinstance(plan, Decode):
                assert 0 < len(plan.request_ids) <= max_running
                assert set(plan.request_ids) <= open_
        elif open_:
            gone = min(open_, key=int) if event == "end" else random.choice(sorted(open_))  # type: ignore[attr-defined]
            scheduler.remove(gone)
            open_.discard(gone)
    assert begun == sorted(begun, key=int)
    assert scheduler.has_work == bool(open_)
