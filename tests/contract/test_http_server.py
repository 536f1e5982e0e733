"""What the HTTP server itself refuses, before anything of ours sees it."""

from __future__ import annotations

import asyncio
from datetime import timedelta

from support.house import open_house
from visionchat_serve.http_server import HttpServer, listen
from visionchat_serve.memory_broker import MemoryBroker

MOST = 10 << 20  # bytes; by then a server that bounds nothing holds all of them
PATIENCE = timedelta(seconds=5)


async def test_headers_without_an_end_are_refused() -> None:
    with listen("127.0.0.1", 0) as free:
        port = free.getsockname()[1]
    async with open_house(MemoryBroker()) as house:
        server = HttpServer(house.app, "127.0.0.1", port)
        await server.start()
        try:
            sent, answer = await send_endless_header(port)
        finally:
            await server.stop(PATIENCE)
    assert sent < MOST
    assert answer.startswith(b"HTTP/1.1 400") or answer == b""  # lost when the connection is reset meanwhile


async def send_endless_header(port: int) -> tuple[int, bytes]:
    """How many bytes were taken at most, and what was answered."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    sent, answer = 0, b""
    try:
        writer.write(b"GET /healthz HTTP/1.1\r\nHost: x\r\nX-Long: ")
        while sent < MOST and not reader.at_eof():
            writer.write(b"x" * 65536)
            await writer.drain()
            sent += 65536
        async with asyncio.timeout(PATIENCE.total_seconds()):
            answer = await reader.read()
    except ConnectionError:
        pass  # refused while more was on its way
    finally:
        writer.close()
    return sent, answer
