"""The operator's scaling against other rules: what the README claims, from the same code."""

from __future__ import annotations

import pytest

from sim.run import RESULTS, outcomes, table
from sim.traces import Trace, traces


@pytest.mark.parametrize("trace", traces(), ids=lambda trace: trace.name)
def test_ours_waits_less_at_no_higher_cost(trace: Trace) -> None:
    found = dict(outcomes(trace))
    ours = found.pop("VisionChat")
    found.pop("VisionChat, pinning by depth")
    assert ours.unanswered == 0
    for theirs in found.values():
        assert ours.wait(0.95) < theirs.wait(0.95)
        assert sum(ours.waits) < sum(theirs.waits)
        assert ours.replica_seconds <= theirs.replica_seconds


def test_the_kept_table_is_what_the_simulation_prints() -> None:
    assert RESULTS.read_text() == table(), "run `make sim` and `make generate`"
