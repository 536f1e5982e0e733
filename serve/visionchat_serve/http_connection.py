"""Connections that nobody can hold open, or fill the memory with, by being slow: uvicorn's protocols with deadlines.

A request's head must come in time and be an ordinary one, and an answer must be taken in time; what is refused is told
in OpenAI's form. How long a body may take is `request_body`'s affair. Used by `http_server`.
"""

from __future__ import annotations

import asyncio
import json
import resource
import socket
from collections.abc import Callable
from datetime import timedelta
from http import HTTPStatus
from typing import Any

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol
from uvicorn.protocols.websockets.websockets_sansio_impl import WebSocketsSansIOProtocol
from websockets.frames import Frame

from visionchat_serve.errors import Overloaded, RequestTimedOut, VisionChatError
from visionchat_serve.http_head import Head, check_head, refusal_of

HEAD_WITHIN = timedelta(seconds=10)  # from the connection, or the first byte of a later request, to the head's end
TAKEN_WITHIN = timedelta(seconds=60)  # what was sent must leave our memory
REST_WITHIN = timedelta(seconds=10)  # for the rest of a request that nobody reads, after the answer
MOST_DROPPED = 1 << 20  # bytes after a refusal


ENOUGH_FILES = 65536
OTHER_FILES = 512  # for all that is no connection of a client, and for connections that are accepted at the same time


def allow_many_files() -> None:
    """Let this process open as many files as it may, up to `ENOUGH_FILES`; each connection is one."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = ENOUGH_FILES if hard == resource.RLIM_INFINITY else min(hard, ENOUGH_FILES)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


def most_connections() -> int:
    """At which further ones are sent away: without a file left none could even be accepted."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return ENOUGH_FILES if soft == resource.RLIM_INFINITY else max(soft - OTHER_FILES, soft // 4)


class Deadline:
    """Calls `late` unless stopped in time."""

    def __init__(self, within: timedelta, late: Callable[[], None]) -> None:
        self._within = within
        self._late = late
        self._timer: asyncio.TimerHandle | None = None

    def start(self) -> None:
        """From now on; one that runs goes on as it does."""
        if self._timer is None:
            loop = asyncio.get_running_loop()
            self._timer = loop.call_later(self._within.total_seconds(), self._ring)

    def stop(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _ring(self) -> None:
        self._timer = None
        self._late()


class StrictH11(h11.Connection):
    """Refuses heads that others may read in another way than h11 does. `refusal` says why."""

    refusal: VisionChatError | None = None

    def next_event(self) -> Any:
        raw = self.trailing_data[0] if self.their_state is h11.IDLE else b""
        try:
            event = super().next_event()
        except h11.RemoteProtocolError as error:
            self.refusal = refusal_of(error.error_status_hint, str(error))
            raise
        if isinstance(event, h11.Request):
            self.refusal = check_head(Head(raw, event.target, event.http_version, [*event.headers]))
            if self.refusal is not None:
                raise h11.RemoteProtocolError(self.refusal.message)
        return event


class HttpConnection(H11Protocol):
    """One connection, until it ends or becomes a WebSocket."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.conn = self._strict = StrictH11(h11.SERVER)
        self._head = Deadline(HEAD_WITHIN, self._no_head)
        self._taken = Deadline(TAKEN_WITHIN, lambda: self.transport.abort())
        self._rest = Deadline(REST_WITHIN, lambda: self.transport.abort())
        self._is_refused = False
        self._dropped = 0

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        # An answer is written in pieces, and the second must not wait for the client to acknowledge the first (40 ms).
        # asyncio does this only for sockets that were made with the protocol's number, and ours was not.
        transport.get_extra_info("socket").setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        transport.set_write_buffer_limits(high=0)  # so that `pause_writing` tells of any byte that is not taken
        if len(self.connections) > most_connections():
            self.transport.write(b"".join(self._encoded(Overloaded("too many connections; come back later"))))
            self.transport.close()
        else:
            self._head.start()

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        self._stop_deadlines()

    def handle_events(self) -> None:
        super().handle_events()
        if self.conn.their_state is not h11.IDLE:
            self._head.stop()
        elif self.timeout_keep_alive_task is None and not self._is_refused and not self.transport.is_closing():
            self._head.start()  # something came, but not yet a whole head

    def handle_websocket_upgrade(self, event: h11.Request) -> None:
        self._stop_deadlines()
        super().handle_websocket_upgrade(event)

    def on_response_complete(self) -> None:
        super().on_response_complete()
        if self.conn.their_state is h11.SEND_BODY:
            self._rest.start()

    def data_received(self, data: bytes) -> None:
        if self._is_refused:
            self._drop(data)
            return
        super().data_received(data)
        if not self._is_refused and self.conn.their_state is not h11.SEND_BODY:
            self._rest.stop()

    def _drop(self, data: bytes) -> None:
        self._dropped += len(data)
        if self._dropped > MOST_DROPPED:
            self.transport.abort()

    def pause_writing(self) -> None:
        super().pause_writing()
        self._taken.start()

    def resume_writing(self) -> None:
        super().resume_writing()
        self._taken.stop()

    def send_400_response(self, msg: str) -> None:
        self._refuse(self._strict.refusal or refusal_of(400, msg))

    def _no_head(self) -> None:
        if self.transport.is_closing():
            return
        if self.conn.trailing_data[0]:
            seconds = f"{HEAD_WITHIN.total_seconds():g}"
            self._refuse(RequestTimedOut(f"the request's headers did not arrive within {seconds} s; send it again"))
        else:
            self.timeout_keep_alive_handler()

    def _refuse(self, error: VisionChatError) -> None:
        """Say why and close, but read on for a moment: a reset for what still comes could overtake the answer. In the
        middle of another answer there is no way to say it."""
        if self.cycle is not None:
            self.cycle.disconnected = True
            self.cycle.message_event.set()
        if self.conn.our_state not in (h11.IDLE, h11.SEND_RESPONSE):
            self.transport.close()
            return
        self._is_refused = True
        self._head.stop()
        self.transport.write(b"".join(self._encoded(error)))
        self.transport.write_eof()
        self._rest.start()

    def _encoded(self, error: VisionChatError) -> list[bytes]:
        body = json.dumps(error.body()).encode()
        headers = {"Content-Type": "application/json", "Content-Length": str(len(body)), "Connection": "close"}
        if error.retry_after is not None:
            headers["Retry-After"] = str(round(error.retry_after.total_seconds()))
        head = h11.Response(
            status_code=error.status, headers=list(headers.items()), reason=HTTPStatus(error.status).phrase
        )
        return [self.conn.send(event) or b"" for event in (head, h11.Data(data=body), h11.EndOfMessage())]

    def _stop_deadlines(self) -> None:
        for deadline in (self._head, self._taken, self._rest):
            deadline.stop()


class SocketConnection(WebSocketsSansIOProtocol):
    """A WebSocket that only tells: what the client sends is dropped, and what it does not take ends it."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._greeting = Deadline(HEAD_WITHIN, lambda: self.transport.abort())
        self._taken = Deadline(TAKEN_WITHIN, lambda: self.transport.abort())

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        self._greeting.start()

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        self._greeting.stop()
        self._taken.stop()

    def pause_writing(self) -> None:
        super().pause_writing()
        self.transport.pause_reading()  # whoever sends pings and takes no pongs waits
        self._taken.start()

    def resume_writing(self) -> None:
        super().resume_writing()
        self.transport.resume_reading()
        self._taken.stop()

    async def send(self, message: Any) -> None:
        await super().send(message)
        self._greeting.stop()
        if self.close_sent:
            self.handshake_complete = True  # also after a refusal, which uvicorn would log as a fault of ours

    def handle_text(self, event: Frame) -> None: ...

    def handle_bytes(self, event: Frame) -> None: ...

    def handle_cont(self, event: Frame) -> None: ...
