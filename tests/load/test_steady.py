"""The load run in small; the full form also looks at memory over ten minutes."""

from __future__ import annotations

from pathlib import Path

from load.steady import steady


def test_many_users_and_idle_streams_on_one_replica(tmp_path: Path) -> None:
    report = steady(tmp_path, seconds=10, users=16, idle=200)
    print(report)
    assert set(report.statuses) <= {"200", "429"}
    assert report.statuses["200"] > 16
    assert report.broken_streams == 0
