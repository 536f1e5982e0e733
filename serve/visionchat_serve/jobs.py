"""What an owner may do with jobs of one's own: look, list, cancel. A job of another owner is as one that is not there.

Knows the queue, not HTTP. Used by `job_routes`.
"""

from __future__ import annotations

import hmac
from typing import Any

from visionchat_serve import broker as queue
from visionchat_serve.broker import Broker
from visionchat_serve.errors import Unauthorised
from visionchat_serve.job_bodies import full_body, job_body
from visionchat_serve.messages import JobView


async def own(broker: Broker, owner: str, job_id: str) -> JobView:
    """The job, if it is the owner's. Raises `errors.NotFound`."""
    view = await broker.describe(job_id)
    if view.owner != owner:
        raise queue.unknown_job(job_id)
    return view


async def check_ticket(broker: Broker, job_id: str, ticket: str) -> None:
    """Raise `errors.Unauthorised` if the ticket is not the job's; whether there is such a job is not told."""
    [job] = await broker.asked([job_id])
    if job is None or not job.ticket or not hmac.compare_digest(job.ticket.encode(), ticket.encode()):
        raise Unauthorised("the ticket is not valid any more: take `events_url` from the job's body anew")


async def look(broker: Broker, owner: str, job_id: str) -> dict[str, Any]:
    """All there is to say of a job, with its text. Raises `errors.NotFound`."""
    view = await own(broker, owner, job_id)
    [job] = await broker.asked([job_id])
    if job is None:
        raise queue.unknown_job(job_id)
    return full_body(view, job, await _pace(broker, [view]), await broker.so_far(job_id))


async def page(broker: Broker, owner: str, limit: int, after: str | None) -> dict[str, Any]:
    """Up to `limit` of the owner's jobs, newest first, those that follow `after`. Raises `errors.NotFound`."""
    views = await broker.jobs(owner, limit + 1, before=after)
    pace = await _pace(broker, views)
    jobs = await broker.asked([view.id for view in views[:limit]])
    data = [job_body(view, job, pace) for view, job in zip(views, jobs, strict=False) if job is not None]
    return {
        "object": "list",
        "data": data,
        "first_id": data[0]["id"] if data else None,
        "last_id": data[-1]["id"] if data else None,
        "has_more": len(views) > limit,
    }


async def cancel(broker: Broker, owner: str, job_id: str) -> dict[str, Any]:
    """Stop the job and say how it stands; one that a replica holds ends within a token. One that has ended is left
    as it is. Raises `errors.NotFound`."""
    await own(broker, owner, job_id)
    await broker.cancel(job_id)
    return await look(broker, owner, job_id)


async def _pace(broker: Broker, views: list[JobView]) -> float:
    return (await broker.load()).pace if any(view.position is not None for view in views) else 0.0
