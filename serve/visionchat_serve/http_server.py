"""Answers HTTP in the running event loop: uvicorn around an ASGI app, on a socket that a restart gets back at once.

A gateway that was killed leaves connections in TIME_WAIT on its port; with SO_REUSEADDR the next one listens there all
the same. With SO_REUSEPORT several gateways of one machine share the port. Used by `app`.
"""

from __future__ import annotations

import asyncio
import socket
from datetime import timedelta
from typing import Any

import uvicorn

from visionchat_serve.errors import ConfigError
from visionchat_serve.http_connection import HttpConnection, SocketConnection, allow_many_files

BACKLOG = 256  # connections that wait to be accepted; asyncio accepts so many at once
SOCKET_MESSAGE = 4096  # bytes; what clients send over a WebSocket is not listened to


class HttpServer:
    """`start`, then `check` now and then, then `stop`."""

    def __init__(self, app: Any, host: str, port: int) -> None:
        self._host, self._port = host, port
        config = uvicorn.Config(
            app,
            lifespan="on",
            backlog=BACKLOG,
            http=HttpConnection,
            ws=SocketConnection,
            ws_max_size=SOCKET_MESSAGE,
            ws_per_message_deflate=False,  # each stream would cost its memory, and messages are short
            log_config=None,
            log_level="error",  # below it, addresses of WebSockets are logged, and those may hold tickets
            access_log=False,
            server_header=False,
        )
        self._server = uvicorn.Server(config)
        self._task: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Return when the app listens. Raises `ConfigError` when the port is taken, and what the app's start raises."""
        allow_many_files()
        listening = listen(self._host, self._port)
        self._task = asyncio.create_task(self._server.serve(sockets=[listening]), name="http")
        while not self._server.started:  # uvicorn has no event to wait for
            done, _ = await asyncio.wait({self._task}, timeout=0.01)
            if done:
                listening.close()
                self._task.result()
                raise RuntimeError("the HTTP server ended while it started; its log says why")

    def check(self) -> None:
        """Raises when the server has ended by itself."""
        if self._task is None or self._task.done():
            raise RuntimeError("the HTTP server does not run any more")

    async def stop(self, patience: timedelta) -> None:
        """Stop listening, let the answers that are under way end, and leave after `patience` in any case."""
        if self._task is None:
            return
        self._server.should_exit = True
        try:
            await asyncio.wait_for(asyncio.shield(self._task), patience.total_seconds())
        except TimeoutError:
            self._server.force_exit = True
            await self._task


def listen(host: str, port: int) -> socket.socket:
    """A listening socket that others may share and that TIME_WAIT does not block."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        return socket.create_server((host, port), family=family, backlog=BACKLOG, reuse_port=True)
    except OSError as error:
        raise ConfigError(f"cannot listen on {host}:{port}: {error.strerror}") from error
