"""What is the same for every request and every answer: which headers come in and go out, how errors look.

Plain ASGI and Starlette; knows nothing of chats or queues. Used by `gateway`.
"""

from __future__ import annotations

import re
import uuid
from collections.abc import Mapping, Sequence
from typing import Annotated, Any

from fastapi import Depends
from fastapi.security import HTTPAuthorizationCredentials, HTTPBearer
from pydantic import BaseModel
from starlette.datastructures import MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from visionchat_serve.errors import Forbidden, Unauthorised, VisionChatError

ERROR_SCHEMA: dict[str, Any] = {
    "type": "object",
    "required": ["error"],
    "properties": {
        "error": {
            "type": "object",
            "required": ["message", "type", "param", "code"],
            "properties": {
                "message": {"type": "string"},
                "type": {"type": "string"},
                "param": {"type": ["string", "null"]},
                "code": {"type": "string"},
                "position": {"type": "integer", "description": "in a full queue: where the request would stand"},
                "eta_seconds": {"type": ["integer", "null"], "description": "and about how long it would wait"},
            },
        }
    },
}


def error_responses(*statuses: int) -> dict[int | str, dict[str, Any]]:
    """What the API's description says of answers that are errors."""
    form = {"application/json": {"schema": {"$ref": "#/components/schemas/Error"}}}
    return {status: {"description": "OpenAI's error form", "content": form} for status in statuses}


def body_schema(form: type[BaseModel]) -> tuple[dict[str, Any], dict[str, Any]]:
    """What the API's description says of a request that a route reads by itself, and the schemas it refers to."""
    schema = form.model_json_schema(ref_template="#/components/schemas/{model}")
    definitions = schema.pop("$defs", {})
    body = {"required": True, "content": {"application/json": {"schema": schema}}}
    return {"requestBody": body, "parameters": [_header(*header) for header in _HEADERS]}, definitions


_HEADERS = (
    ("Idempotency-Key", "the same key with the same body is the same job"),
    ("Cache-Control", "`no-cache` for a fresh answer, `no-store` for none to be kept"),
)


def _header(name: str, about: str) -> dict[str, Any]:
    return {"name": name, "in": "header", "required": False, "schema": {"type": "string"}, "description": about}


BearerKey = Annotated[HTTPAuthorizationCredentials | None, Depends(HTTPBearer(auto_error=False))]


def bearer_key(authorization: str | None) -> str | None:
    """The key in an `Authorization` header, None if there is no such key."""
    scheme, _, key = (authorization or "").partition(" ")
    return key.strip() if scheme.lower() == "bearer" else None


def check_site(headers: Mapping[str, str], origins: Sequence[str]) -> None:
    """Raise `Forbidden` when a browser says that the page of another site asks, unless that is among `origins`.

    Where everybody may ask, and the server is on one's own machine, any page that is looked at could keep it busy: a
    browser sends such a request without asking first, and only hides the answer.
    """
    is_foreign = headers.get("sec-fetch-site", "none") not in ("none", "same-origin")
    if is_foreign and not {"*", headers.get("origin")} & set(origins):
        raise Forbidden("pages of other sites may not ask this server; name them in `cors_origins`, or use API keys")


def headers_of(error: VisionChatError) -> dict[str, str]:
    """HTTP headers that go with an error."""
    headers = {}
    if error.retry_after is not None:
        headers["Retry-After"] = str(max(1, round(error.retry_after.total_seconds())))
    if isinstance(error, Unauthorised):
        headers["WWW-Authenticate"] = "Bearer"
    return headers


class CommonHeaders:
    """What every answer carries: `X-Request-Id` (the client's own if it is a plain one, else a new one), and that
    browsers must not guess its type."""

    _PLAIN = re.compile(rb"[A-Za-z0-9._:-]{1,128}")

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        given = dict(scope["headers"]).get(b"x-request-id", b"")
        request_id = given.decode() if self._PLAIN.fullmatch(given) else f"req-{uuid.uuid4().hex}"

        async def send_with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                headers["X-Request-Id"] = request_id
                headers["X-Content-Type-Options"] = "nosniff"
            await send(message)

        await self._app(scope, receive, send_with_headers)
