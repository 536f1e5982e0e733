"""The bodies of the jobs API: what comes in for a job, and what is said of one. Pure.

Knows the queue's messages and OpenAI's completion form; nothing of brokers or HTTP.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any

from pydantic import Field

from visionchat_serve.answer import Answer, failure
from visionchat_serve.completions import completion_body, usage_body
from visionchat_serve.messages import ChatJob, Finish, JobEvent, JobView, Priority, status_after
from visionchat_serve.place import place_of
from visionchat_serve.schemas import ChatCompletionRequest

Label = Annotated[str, Field(max_length=64)]
Note = Annotated[str, Field(max_length=512)]


class JobRequest(ChatCompletionRequest):
    """`POST /v1/jobs`: the body of a chat completion, and two fields more. `stream` changes nothing here: any job's
    events can be followed."""

    priority: Priority = "interactive"
    metadata: dict[Label, Note] | None = Field(None, max_length=16)


NOWHERE = {"position": None, "eta_seconds": None}


def job_body(view: JobView, job: ChatJob, pace: float) -> dict[str, Any]:
    """What is said of a job in a list. `pace`: seconds between two answers, 0 when not measured."""
    place = place_of(view, pace)
    return {
        "id": view.id,
        "object": "job",
        "status": view.status,
        "created_at": int(view.created_at),
        "ended_at": int(view.ended_at) if view.ended_at is not None else None,
        "model": job.model,
        "priority": job.priority,
        "metadata": job.metadata,
        **(place.body() if place is not None else NOWHERE),
        "error": error_body(view.finish),
        "events_url": events_url(job),
    }


def events_url(job: ChatJob) -> str:
    """Where to follow the job. It needs no key: browsers' EventSource and WebSocket cannot send one."""
    return f"/v1/jobs/{job.id}/events" + (f"?ticket={job.ticket}" if job.owner and job.ticket else "")


def full_body(view: JobView, job: ChatJob, pace: float, events: Sequence[JobEvent]) -> dict[str, Any]:
    """`job_body` with the text so far and, at a good end, the completion."""
    answer = answer_of(events)
    done = view.finish if view.status == "succeeded" else None
    completion = completion_body(job, answer.choices, done) if done is not None else None
    return job_body(view, job, pace) | {"text": answer.text, "completion": completion}


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


def answer_of(events: Sequence[JobEvent]) -> Answer:
    """What the latest attempt said; an earlier one, whose replica was lost, is no part of the answer."""
    answer = Answer()
    latest = max((event.attempt for event in events), default=0)
    for event in events:
        if event.attempt == latest and not isinstance(event.value, Finish):
            answer.feed(event)
    return answer
