"""The bodies of the jobs API: what comes in for a job, and what is said of one. Pure.

Knows the queue's messages and OpenAI's completion form; nothing of brokers or HTTP.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Annotated, Any

from pydantic import Field

from visionchat_serve.answer import failure
from visionchat_serve.completions import completion_body, usage_body
from visionchat_serve.messages import ChatJob, Finish, JobEvent, JobView, Priority, TokenChunk, status_after
from visionchat_serve.schemas import ChatCompletionRequest

Label = Annotated[str, Field(max_length=64)]
Note = Annotated[str, Field(max_length=512)]


class JobRequest(ChatCompletionRequest):
    """`POST /v1/jobs`: the body of a chat completion, and two fields more. `stream` changes nothing here: any job's
    events can be followed."""

    priority: Priority = "interactive"
    metadata: dict[Label, Note] | None = Field(None, max_length=16)


def job_body(view: JobView, job: ChatJob, pace: float) -> dict[str, Any]:
    """What is said of a job in a list. `pace`: seconds between two answers, 0 when not measured."""
    return {
        "id": view.id,
        "object": "job",
        "status": view.status,
        "created_at": int(view.created_at),
        "ended_at": int(view.ended_at) if view.ended_at is not None else None,
        "model": job.model,
        "priority": job.priority,
        "metadata": job.metadata,
        **place_body(view, pace),
        "error": error_body(view.finish),
    }


def full_body(view: JobView, job: ChatJob, pace: float, events: Sequence[JobEvent]) -> dict[str, Any]:
    """`job_body` with the text so far and, at a good end, the completion."""
    text = text_of(events)
    done = view.finish is not None and view.status == "succeeded"
    completion = completion_body(job, text, view.finish) if done and view.finish else None
    return job_body(view, job, pace) | {"text": text, "completion": completion}


def place_body(view: JobView, pace: float) -> dict[str, Any]:
    """`position` 1 is the next job; `eta_seconds` is about when its answer begins, null until a speed was measured."""
    position = view.position + 1 if view.position is not None else None
    eta = math.ceil(position * pace) if position is not None and pace > 0 else None
    return {"position": position, "eta_seconds": eta}


def place_text(place: Mapping[str, Any]) -> str:
    """`position 3, about 12 s`."""
    eta = f", about {place['eta_seconds']} s" if place["eta_seconds"] is not None else ""
    return f"position {place['position']}{eta}"


def end_body(job_id: str, finish: Finish) -> dict[str, Any]:
    """The last event of a job."""
    status = status_after(finish)
    good = status == "succeeded"
    return {
        "id": job_id,
        "status": status,
        "finish_reason": finish.reason if good else None,
        "usage": usage_body(finish.usage) if good else None,
        "error": error_body(finish),
    }


def error_body(finish: Finish | None) -> dict[str, Any] | None:
    """Why a job ended badly, in OpenAI's form; None while it runs and when it ended well."""
    error = failure(finish) if finish is not None else None
    body: dict[str, Any] | None = error.body()["error"] if error is not None else None
    return body


def text_of(events: Sequence[JobEvent]) -> str:
    """The text of the latest attempt: an earlier one, whose replica was lost, is no part of the answer."""
    latest = max((event.attempt for event in events), default=0)
    pieces: dict[int, str] = {}  # one written twice (its reply was lost) counts once
    for event in events:
        if event.attempt == latest and isinstance(event.value, TokenChunk):
            pieces.setdefault(event.value.index, event.value.text)
    return "".join(pieces[index] for index in sorted(pieces))
