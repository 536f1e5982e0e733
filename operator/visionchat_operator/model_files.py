"""How far the Job that brings the model's files is, from the Job and its pods. Pure; `plan` calls it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from visionchat_operator.world import Manifest

READY = ("Embedded", "Present")


def state(job: Manifest | None) -> str:
    """`Fetching`, `Present` or `Failed`."""
    status = (job or {}).get("status", {})
    if status.get("succeeded"):
        return "Present"
    failed = any(c["type"] == "Failed" and c["status"] == "True" for c in status.get("conditions", ()))
    return "Failed" if failed else "Fetching"


def progress(job: Manifest | None, pods: Sequence[Manifest], fetched: str | None = None) -> str:
    """For people: which attempt it is, what it waits for or has `fetched`, why the last one failed. Empty before there
    is a Job."""
    if job is None:
        return ""
    ordered = sorted(pods, key=lambda pod: pod["metadata"]["creationTimestamp"], reverse=True)
    failures = [words for pod in ordered if (words := _why_failed(pod))]
    going = next(
        (_doing(pod) for pod in ordered if pod.get("status", {}).get("phase") in (None, "Pending", "Running")), ""
    )
    attempt = f"attempt {job.get('status', {}).get('failed', 0) + 1}" if going else ""
    so_far = f"{fetched} so far" if going and fetched else ""
    last = f"the last one failed: {failures[0]}" if failures else ""
    return "; ".join(filter(None, (" ".join(filter(None, (attempt, going))), so_far, last)))


def _doing(pod: Manifest) -> str:
    status = pod.get("status", {})
    for condition in status.get("conditions", ()):
        if condition["type"] == "PodScheduled" and condition["status"] == "False":
            return f"finds no node: {condition.get('message', condition.get('reason', ''))}"
    for waiting in _states(pod, "waiting"):
        return f"waits: {waiting.get('reason', '')} {waiting.get('message', '')}".rstrip()
    for running in _states(pod, "running"):
        return f"runs since {running.get('startedAt', 'just now')}"
    return "starts"


def _why_failed(pod: Manifest) -> str | None:
    """The last line that it wrote, or the kubelet's word."""
    status = pod.get("status", {})
    if status.get("phase") != "Failed":
        return None
    for ended in _states(pod, "terminated"):
        lines = [line for line in ended.get("message", "").splitlines() if line.strip()]
        return lines[-1].strip()[:300] if lines else f"{ended.get('reason')}, exit code {ended.get('exitCode')}"
    return str(status.get("message") or status.get("reason") or "no reason is known")


def _states(pod: Manifest, kind: str) -> Iterable[Manifest]:
    for container in pod.get("status", {}).get("containerStatuses", ()):
        if (found := container.get("state", {}).get(kind)) is not None:
            yield found
