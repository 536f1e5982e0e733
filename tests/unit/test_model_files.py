"""What people are told about the Job that brings the model's files."""

from __future__ import annotations

from typing import Any

from visionchat_operator.model_files import progress, state
from visionchat_operator.world import Manifest


def job(**status: Any) -> Manifest:
    return {"status": status}


def pod(second: int, phase: str | None = None, conditions: Any = (), **state: Any) -> Manifest:
    status = {"phase": phase, "conditions": conditions, "containerStatuses": [{"state": state}]}
    return {"metadata": {"creationTimestamp": f"2026-01-01T00:00:{second:02}Z"}, "status": status}


def test_the_jobs_state() -> None:
    assert [state(None), state(job()), state(job(succeeded=1))] == ["Fetching", "Fetching", "Present"]
    assert state(job(conditions=[{"type": "Failed", "status": "True"}])) == "Failed"


def test_what_the_pod_does_or_waits_for() -> None:
    assert progress(None, []) == ""
    running = pod(1, "Running", running={"startedAt": "2026-01-01T00:00:09Z"})
    assert progress(job(), [running]) == "attempt 1 runs since 2026-01-01T00:00:09Z"
    waiting = pod(1, "Pending", waiting={"reason": "ImagePullBackOff", "message": "no such image"})
    assert progress(job(), [waiting]) == "attempt 1 waits: ImagePullBackOff no such image"
    assert progress(job(), [running], "1.2 of 4.3 GB").endswith("; 1.2 of 4.3 GB so far")
    nowhere = [{"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": "0/3 nodes"}]
    assert progress(job(), [pod(1, "Pending", nowhere)]) == "attempt 1 finds no node: 0/3 nodes"
    assert progress(job(), [pod(1)]) == "attempt 1 starts"


def test_why_the_last_attempt_failed() -> None:
    old = pod(1, "Failed", terminated={"exitCode": 1, "message": "trace\nOSError: disk full\n"})
    older = pod(0, "Failed", terminated={"exitCode": 1, "message": "no route"})
    now = pod(2, "Running", running={"startedAt": "T"})
    assert (
        progress(job(failed=2), [old, older, now]) == "attempt 3 runs since T; the last one failed: OSError: disk full"
    )
    killed = pod(1, "Failed", terminated={"exitCode": 137, "reason": "OOMKilled"})
    assert progress(job(failed=1), [killed]) == "the last one failed: OOMKilled, exit code 137"
    evicted = {"metadata": {"creationTimestamp": "T"}, "status": {"phase": "Failed", "message": "low on disk"}}
    assert progress(job(failed=1), [evicted]) == "the last one failed: low on disk"
