"""The chaos run in small."""

from __future__ import annotations

from pathlib import Path

from load.chaos import Plan, chaos


def test_what_was_accepted_is_answered_whatever_dies(tmp_path: Path) -> None:
    report = chaos(tmp_path, Plan(replica_kills=3, redis_kills=2, gateway_kills=1, rate=8))
    print(report)
    assert report.problems == []
    assert len(report.outcomes) > 40  # the run is as short as the parts are quick to come back
    assert report.kills == {"replica": 3, "redis": 2, "gateway": 1}
