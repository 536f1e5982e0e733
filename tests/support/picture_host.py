"""A small HTTP host of pictures that can misbehave, on loopback addresses that stand for the good and the forbidden.

127.0.0.2 is where a test lets downloads go; what arrives at any other address is a hole.
"""

from __future__ import annotations

import asyncio
import errno
import io
import socket
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from urllib.parse import parse_qs, urlsplit

from PIL import Image

GOOD = "127.0.0.2"
FORBIDDEN = ("127.0.0.1", "::1")


def cat() -> bytes:
    data = io.BytesIO()
    Image.new("RGB", (48, 32), "red").save(data, "PNG")
    return data.getvalue()


CAT = cat()


@dataclass
class Request:
    """What arrived: at which of the host's addresses, for what, with which headers (lower-case names)."""

    at: str
    target: str
    headers: dict[str, str]


@dataclass
class PictureHost:
    port: int = 0
    requests: list[Request] = field(default_factory=list)
    sent: int = 0  # bytes of bodies
    gone: asyncio.Event = field(default_factory=asyncio.Event)  # set when a client hung up on an endless answer

    @property
    def holes(self) -> list[Request]:
        """Requests that should never have been made."""
        return [request for request in self.requests if request.at != GOOD]

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1")
            first, *lines = head.strip().split("\r\n")
            headers = {n.lower(): v for n, v in (line.split(": ", 1) for line in lines)}
            request = Request(writer.get_extra_info("sockname")[0], first.split(" ")[1], headers)
            self.requests.append(request)
            await self._answer(request, reader, writer)
        except (ConnectionError, asyncio.IncompleteReadError, ssl.SSLError):
            self.gone.set()
        finally:
            writer.close()

    async def _answer(self, request: Request, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        url = urlsplit(request.target)
        query = {name: values[0] for name, values in parse_qs(url.query).items()}
        if url.path == "/redirect":
            status, to = query.get("status", "302"), query["to"]
            writer.write(f"HTTP/1.1 {status} Found\r\nLocation: {to}\r\nContent-Length: 0\r\n\r\n".encode())
        elif url.path == "/chain":
            left = int(query["left"])
            to = f"/chain?left={left - 1}" if left else "/cat.png"
            writer.write(f"HTTP/1.1 307 Found\r\nLocation: {to}\r\nContent-Length: 0\r\n\r\n".encode())
        elif url.path == "/silent":
            await reader.read()  # says nothing until the client goes
            self.gone.set()
        elif url.path in ("/drip", "/endless", "/heads"):
            await self._pour(url.path, writer)
        else:
            writer.write(self._plain(url.path, query))
        await writer.drain()

    async def _pour(self, path: str, writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Type: image/png\r\n" + (b"" if path == "/heads" else b"\r\n"))
        piece = {"/drip": b"x", "/endless": b"x" * 65536, "/heads": b"X-More: " + b"x" * 1000 + b"\r\n"}[path]
        while True:
            writer.write(piece)
            await writer.drain()
            self.sent += len(piece)
            if path == "/drip":
                await asyncio.sleep(0.02)

    def _plain(self, path: str, query: dict[str, str]) -> bytes:
        body = {"/html": b"<html>", "/broken.png": CAT[:-30]}.get(path, CAT)
        self.sent += len(body)
        headers = {"Content-Type": query.get("type", "image/png"), "Content-Length": query.get("length", len(body))}
        if "encoding" in query:
            headers["Content-Encoding"] = query["encoding"]
        if "cookie" in query:
            headers["Set-Cookie"] = query["cookie"]
        lines = "".join(f"{name}: {value}\r\n" for name, value in headers.items() if value != "none")
        return f"HTTP/1.1 {query.get('status', '200')} OK\r\n{lines}\r\n".encode() + body


@asynccontextmanager
async def picture_host(tls: ssl.SSLContext | None = None) -> AsyncIterator[PictureHost]:
    """One host at all addresses, the same port on each."""
    host = PictureHost()
    sockets = _sockets()
    host.port = sockets[0].getsockname()[1]
    servers = [await asyncio.start_server(host.serve, sock=one, ssl=tls) for one in sockets]
    try:
        yield host
    finally:
        for server in servers:
            server.close()


def _sockets() -> list[socket.socket]:
    """Bound to a port that is free at every address; one that is free at the first may be taken at another."""
    while True:
        bound = [socket.create_server((GOOD, 0))]
        port = bound[0].getsockname()[1]
        try:
            for at in FORBIDDEN:
                family = socket.AF_INET6 if ":" in at else socket.AF_INET
                bound.append(socket.create_server((at, port), family=family))
        except OSError as error:
            for one in bound:
                one.close()
            if error.errno != errno.EADDRINUSE:
                raise
        else:
            return bound
