"""The bodies of requests that are not in the queue yet: how long one is, how long it may take, how much all may hold.

A body is read piece by piece, each piece counted against its own limit and against the room that all requests of this
gateway share; pictures that are fetched for a request take of the same room. Whoever finds no room is sent away before
more is read, and nobody else is slowed down. Knows nothing of chats or queues. Used by `gateway`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta

from fastapi import Request

from visionchat_serve.errors import EncodingRefused, Overloaded, RequestTimedOut, RequestTooLarge


class Room:
    """Bytes that all requests may hold together."""

    def __init__(self, total: int) -> None:
        self._total = total
        self.held = 0

    @contextmanager
    def share(self) -> Iterator[Share]:
        """One request's part, given back at the end of the block."""
        share = Share(self)
        try:
            yield share
        finally:
            self.held -= share.held

    def check(self, count: int) -> None:
        """Raise `Overloaded` if `count` bytes more do not fit in."""
        if self.held + count > self._total:
            raise Overloaded("too many large requests are being received at once; send this one again later")


class Share:
    """What one request holds."""

    def __init__(self, room: Room) -> None:
        self._room = room
        self.held = 0

    def check(self, count: int) -> None:
        """See `Room.check`."""
        self._room.check(count)

    def take(self, count: int) -> None:
        """Hold `count` bytes more. Raises `Overloaded`."""
        self._room.check(count)
        self._room.held += count
        self.held += count


@dataclass(frozen=True, slots=True)
class BodyLimits:
    """Of one body: its bytes, and the time from its head to its end."""

    size: int
    within: timedelta


async def read_body(request: Request, limits: BodyLimits, share: Share) -> bytearray:
    """The whole body, refused as soon as it is known to be too long, too late, or more than there is room for."""
    encoding = request.headers.get("content-encoding", "identity")
    if encoding.lower() != "identity":
        raise EncodingRefused(f"Content-Encoding: {encoding} is not supported; send the body as it is")
    too_large = RequestTooLarge(f"the request body is over {limits.size} bytes; send fewer or smaller pictures")
    declared = int(request.headers.get("content-length") or 0)
    if declared > limits.size:
        raise too_large
    share.check(declared)
    body = bytearray()
    try:
        async with asyncio.timeout(limits.within.total_seconds()):
            async for part in request.stream():
                if len(body) + len(part) > limits.size:
                    raise too_large
                share.take(len(part))
                body += part
    except TimeoutError:
        seconds = f"{limits.within.total_seconds():g}"
        message = f"the request body did not arrive within {seconds} s; send fewer or smaller pictures"
        raise RequestTimedOut(message) from None
    return body
