"""Which request heads are taken: what two servers might read in two ways, or is far longer than any client's, is not.

A proxy in front of us and we must agree where a request ends, or one client's bytes become another one's request. Pure.
Used by `http_connection`.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from visionchat_serve.errors import AddressTooLong, HeadersTooLarge, InvalidRequest, VisionChatError

LONGEST = 8000  # bytes of an address, and of one header; the WebSocket library takes no longer lines
MOST_HEADERS = 100
VERSIONS = b"1.0", b"1.1"

_END = re.compile(rb"\n\r?\n")
_BARE_LF = re.compile(rb"(?<!\r)\n")


@dataclass(frozen=True, slots=True)
class Head:
    """`raw` are the bytes it came as, with what follows; `headers` have lower-case names."""

    raw: bytes
    target: bytes
    version: bytes
    headers: Sequence[tuple[bytes, bytes]]


def check_head(head: Head) -> VisionChatError | None:
    """Why it is refused, None if it is not."""
    names = [name for name, _ in head.headers]
    if head.version not in VERSIONS:
        return refusal_of(505, f"version {head.version.decode()} is not spoken here")
    if len(head.target) > LONGEST:
        return AddressTooLong(f"the address is {len(head.target)} bytes long; at most {LONGEST} are taken")
    if len(names) > MOST_HEADERS:
        return HeadersTooLarge(f"{len(names)} headers are too many; send at most {MOST_HEADERS}")
    for name, value in head.headers:
        if len(name) + len(value) > LONGEST:
            return HeadersTooLarge(f"the header {name[:50].decode()} is too long; at most {LONGEST} bytes are taken")
    framed = sorted({b"content-length", b"transfer-encoding"} & set(names))
    if len(framed) == 2:
        return InvalidRequest("a request has Content-Length or Transfer-Encoding, not both")
    if b"transfer-encoding" in framed and head.version == b"1.0":
        return InvalidRequest("Transfer-Encoding came with HTTP/1.1; in HTTP/1.0 a request has Content-Length")
    if _asks_for_socket(head) and framed:
        return InvalidRequest("a request for a WebSocket has no body")
    if _has_bare_lf(head.raw):
        return InvalidRequest("lines of a request end with CR LF; this one has a bare LF")
    return None


def _asks_for_socket(head: Head) -> bool:
    return any(name == b"upgrade" and value.lower() == b"websocket" for name, value in head.headers)


def _has_bare_lf(raw: bytes) -> bool:
    end = _END.search(raw)
    return _BARE_LF.search(raw, 0, end.end() if end is not None else len(raw)) is not None


def refusal_of(status: int, reason: str) -> VisionChatError:
    """In our form what the parser says of bytes that are no request."""
    if status == HeadersTooLarge.status:
        return HeadersTooLarge("the request's headers are too long; send fewer or shorter ones")
    error = InvalidRequest(f"this is not a request in HTTP/1.1: {reason.partition(': bytearray')[0]}")
    error.status = status
    return error
