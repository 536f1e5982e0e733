"""The addresses of the jobs API: ask now, fetch the answer later.

POST /v1/jobs   GET /v1/jobs   GET /v1/jobs/{id}   GET /v1/jobs/{id}/events (also as a WebSocket)   DELETE /v1/jobs/{id}

Part of `routes`.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Mapping
from contextlib import aclosing
from typing import Annotated, Any

from fastapi import APIRouter, Header, Path, Query, Request, Response, WebSocket, WebSocketDisconnect
from fastapi.responses import JSONResponse, StreamingResponse

from visionchat_serve import jobs, server_events
from visionchat_serve.errors import VisionChatError
from visionchat_serve.following import START, Following, Update
from visionchat_serve.gateway import Gateway
from visionchat_serve.http_edge import BearerKey, bearer_key, body_schema, headers_of
from visionchat_serve.job_bodies import JobRequest

JobId = Annotated[str, Path(max_length=128, description="the `id` of a job")]
After = Annotated[str, Query(description="an event's `id` to go on after, for clients that cannot send the header")]
Ticket = Annotated[str | None, Query(max_length=128, description="in place of a key; part of the job's `events_url`")]
LastEventId = Annotated[str | None, Header(description="the `id` of the last event that was seen; browsers send it")]
EVENTS: dict[int | str, dict[str, Any]] = {
    200: {"description": "the job's events, until its end", "content": {"text/event-stream": {}}},
    204: {"description": "the job is over and its last event was seen: do not come back"},
}


def add_jobs(v1: APIRouter, gateway: Gateway, errors: Mapping[int | str, dict[str, Any]]) -> None:
    """Add the routes; `errors` describes the answers that are errors."""
    body, _ = body_schema(JobRequest)
    errors = dict(errors)
    found: dict[int | str, dict[str, Any]] = {status: errors[status] for status in (400, 401, 404, 503)}

    @v1.post("/jobs", status_code=202, openapi_extra=body, responses=errors, tags=["jobs"])
    async def create_job(request: Request) -> Response:
        """Accept a chat as a job, to be answered whatever happens to this connection."""
        job_id, headers = await gateway.create_job(request)
        job = await jobs.look(gateway.broker, request.state.owner, job_id)
        return JSONResponse(job, 202, {"Location": f"/v1/jobs/{job_id}", **headers})

    @v1.get("/jobs", responses=found, tags=["jobs"])
    async def list_jobs(
        request: Request,
        limit: Annotated[int, Query(ge=1, le=100, description="jobs in a page")] = 20,
        after: Annotated[str | None, Query(max_length=128, description="`last_id` of the page before")] = None,
    ) -> Response:
        """One's own jobs, newest first."""
        return JSONResponse(await jobs.page(gateway.broker, request.state.owner, limit, after))

    @v1.get("/jobs/{job_id}", responses=found, tags=["jobs"])
    async def show_job(request: Request, job_id: JobId) -> Response:
        """The job now: its place while it waits, the text so far while it is answered, the completion when it is."""
        return JSONResponse(await jobs.look(gateway.broker, request.state.owner, job_id))

    @v1.delete("/jobs/{job_id}", responses=found, tags=["jobs"])
    async def cancel_job(request: Request, job_id: JobId) -> Response:
        """Stop the job. One that a replica is answering ends within a token; one that has ended is left as it is."""
        return JSONResponse(await jobs.cancel(gateway.broker, request.state.owner, job_id))


async def _event_stream(updates: AsyncGenerator[Update, None]) -> AsyncIterator[bytes]:
    async with aclosing(updates):
        yield server_events.RETRY
        try:
            async for update in updates:
                yield _event(update)
        except VisionChatError as error:
            # The queue went away. The connection just ends, and the reader comes back with its last event's id.
            yield server_events.comment(f"interrupted: {error.code}")


def _event(update: Update) -> bytes:
    if update.name == "alive":
        return server_events.ALIVE
    told = server_events.comment(update.comment) if update.comment is not None else b""
    return told + server_events.event(update.name, update.data, update.id)


def job_events(gateway: Gateway, errors: Mapping[int | str, dict[str, Any]]) -> APIRouter:
    """A job's text as it comes: for its owner, or for whoever has the `events_url` out of its body."""
    events = APIRouter(prefix="/v1")
    described = {status: errors[status] for status in (400, 401, 404, 503)} | EVENTS

    @events.get("/jobs/{job_id}/events", responses=described, response_class=StreamingResponse, tags=["jobs"])
    async def follow_job(
        job_id: JobId, given: BearerKey, after: After = START, last_event_id: LastEventId = None, ticket: Ticket = None
    ) -> Response:
        """The job's text as it comes, as server-sent events that can be resumed."""
        await _admit(gateway, job_id, given.credentials if given is not None else None, ticket)
        following = Following(gateway.broker, job_id, last_event_id or after)
        if await following.is_over():
            return Response(status_code=204)
        headers = {"Cache-Control": "no-store"}
        return StreamingResponse(_event_stream(following.updates()), media_type="text/event-stream", headers=headers)

    @events.websocket("/jobs/{job_id}/events")
    async def follow_job_by_socket(
        websocket: WebSocket, job_id: str, after: str = START, ticket: str | None = None
    ) -> None:
        """The same as messages `{"event", "id", "data"}`, `id` null where SSE has none."""
        try:
            await _admit(gateway, job_id, bearer_key(websocket.headers.get("authorization")), ticket)
            following = Following(gateway.broker, job_id, after)
            over = await following.is_over()
        except VisionChatError as error:
            await websocket.send_denial_response(JSONResponse(error.body(), error.status, headers_of(error)))
            return
        await websocket.accept()
        if not over:
            await _until_one_leaves(websocket, following.updates())
            return
        await websocket.close()

    return events


async def _admit(gateway: Gateway, job_id: str, key: str | None, ticket: str | None) -> None:
    if key is None and ticket is not None and gateway.asks_for_keys:
        await jobs.check_ticket(gateway.broker, job_id, ticket)
    else:
        await jobs.own(gateway.broker, gateway.owner_of(key), job_id)


async def _until_one_leaves(websocket: WebSocket, updates: AsyncGenerator[Update, None]) -> None:
    sending = asyncio.ensure_future(_send_all(websocket, updates))
    leaving = asyncio.ensure_future(_left(websocket))
    await asyncio.wait({sending, leaving}, return_when=asyncio.FIRST_COMPLETED)
    for task in (sending, leaving):
        task.cancel()
    results = await asyncio.gather(sending, leaving, return_exceptions=True)
    for result in results:
        if isinstance(result, Exception) and not isinstance(result, WebSocketDisconnect):
            raise result


async def _send_all(websocket: WebSocket, updates: AsyncGenerator[Update, None]) -> None:
    async with aclosing(updates):
        try:
            async for update in updates:
                if update.name != "alive":  # WebSockets have pings of their own
                    await websocket.send_json({"event": update.name, "id": update.id, "data": update.data})
        except VisionChatError as error:
            await websocket.close(1013, error.code)  # "try again later", after the last event's id
            return
    await websocket.close()


async def _left(websocket: WebSocket) -> None:
    """Return when the client goes; what it sends is not listened to."""
    while (await websocket.receive())["type"] != "websocket.disconnect":
        pass
