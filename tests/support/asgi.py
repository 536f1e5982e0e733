"""Open connections to an ASGI app without sockets: the answer byte by byte as it comes, and WebSockets.

httpx's own transport waits for the whole answer, which a stream that is still open does not have.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Any
from urllib.parse import urlsplit


class Connection:
    """One request's two ways: what the app sent, and what it gets to hear."""

    def __init__(self, app: Any, scope: dict[str, Any]) -> None:
        self._to_app: asyncio.Queue[dict[str, Any]] = asyncio.Queue()
        self._from_app: asyncio.Queue[dict[str, Any]] = asyncio.Queue()
        self._task = asyncio.ensure_future(app(scope, self._to_app.get, self._from_app.put))

    def say(self, **message: Any) -> None:
        self._to_app.put_nowait(message)

    async def hear(self, seconds: float = 10) -> dict[str, Any]:
        """The app's next message."""
        async with asyncio.timeout(seconds):
            return await self._from_app.get()

    async def close(self, **message: Any) -> None:
        self.say(**message)
        async with asyncio.timeout(10):
            await self._task


class Stream:
    """An answer's head, and its body as far as it came."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self.status = 0
        self.headers: dict[str, str] = {}
        self.body = b""
        self.ended = False

    async def begin(self) -> None:
        head = await self._connection.hear()
        self.status = head["status"]
        self.headers = {name.decode().lower(): value.decode() for name, value in head["headers"]}

    async def more(self) -> bool:
        """Read the next piece; False after the end."""
        if self.ended:
            return False
        message = await self._connection.hear()
        self.body += message.get("body", b"")
        self.ended = not message.get("more_body", False)
        return not self.ended

    async def until(self, text: bytes) -> bytes:
        """Read until `text` has come; the body so far."""
        while text not in self.body:
            assert await self.more(), f"{text!r} did not come: {self.body!r}"
        return self.body

    async def whole(self) -> bytes:
        while await self.more():
            pass
        return self.body


def scope(kind: str, url: str, headers: Mapping[str, str]) -> dict[str, Any]:
    parts = urlsplit(url)
    return {
        "type": kind,
        "asgi": {"version": "3.0", "spec_version": "2.3"},
        "http_version": "1.1",
        "method": "GET",
        "scheme": "http" if kind == "http" else "ws",
        "path": parts.path,
        "raw_path": parts.path.encode(),
        "query_string": parts.query.encode(),
        "root_path": "",
        "headers": [(name.lower().encode(), value.encode()) for name, value in headers.items()],
        "client": ("127.0.0.1", 1),
        "server": ("gateway", 80),
        "subprotocols": [],
        "extensions": {"websocket.http.response": {}} if kind == "websocket" else {},
        "state": {},
    }


@asynccontextmanager
async def post(app: Any, url: str, body: Any, **headers: str) -> AsyncIterator[Stream]:
    """As `get`, with a JSON body."""
    async with _open(app, "POST", url, json.dumps(body).encode(), headers) as stream:
        yield stream


@asynccontextmanager
async def get(app: Any, url: str, **headers: str) -> AsyncIterator[Stream]:
    """Open a stream; leaving the block is the client going away. `Last_Event_ID` is the header `Last-Event-ID`."""
    async with _open(app, "GET", url, b"", headers) as stream:
        yield stream


@asynccontextmanager
async def _open(app: Any, method: str, url: str, body: bytes, headers: Mapping[str, str]) -> AsyncIterator[Stream]:
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    connection = Connection(app, scope("http", url, named) | {"method": method})
    connection.say(type="http.request", body=body, more_body=False)
    stream = Stream(connection)
    await stream.begin()
    try:
        yield stream
    finally:
        await connection.close(type="http.disconnect")


@asynccontextmanager
async def websocket(app: Any, url: str, **headers: str) -> AsyncIterator[Connection]:
    """Open a WebSocket; the app's first message says whether it accepts."""
    connection = Connection(app, scope("websocket", url, headers))
    connection.say(type="websocket.connect")
    try:
        yield connection
    finally:
        await connection.close(type="websocket.disconnect", code=1000)


def messages(sent: list[dict[str, Any]]) -> list[Any]:
    """The JSON texts among what a WebSocket sent."""
    return [json.loads(message["text"]) for message in sent if message["type"] == "websocket.send"]
