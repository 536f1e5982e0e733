"""What the HTTP server itself refuses, before anything of ours sees it, and whom it does not wait for."""

from __future__ import annotations

import asyncio
import json
import socket
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import pytest
from websockets.asyncio.client import connect
from websockets.exceptions import ConnectionClosedError, InvalidStatus

from support.house import House, chat, open_house
from support.waiting import wait_until
from visionchat_serve import http_connection
from visionchat_serve.config import Settings
from visionchat_serve.http_server import HttpServer, listen
from visionchat_serve.memory_broker import MemoryBroker

MOST = 10 << 20  # bytes; by then a server that bounds nothing holds all of them
PATIENCE = timedelta(seconds=5)
SOON = timedelta(milliseconds=200)
POST = b"POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"


@dataclass
class Listening:
    house: House
    server: HttpServer
    port: int

    @property
    def connections(self) -> int:
        return len(self.server._server.server_state.connections)

    async def connect(self) -> Client:
        return Client(*await asyncio.open_connection("127.0.0.1", self.port))


@dataclass
class Client:
    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter

    async def send(self, *parts: bytes) -> None:
        for part in parts:
            self.writer.write(part)
            await self.writer.drain()

    async def answer(self) -> bytes:
        """All that comes until the server closes."""
        async with asyncio.timeout(PATIENCE.total_seconds()):
            return await self.reader.read()

    async def refusal(self) -> tuple[int, dict[str, Any]]:
        """Status and error; the connection is closed behind it."""
        head, _, body = (await self.answer()).partition(b"\r\n\r\n")
        assert b"connection: close" in head.lower()
        return int(head.split()[1]), json.loads(body)["error"]


@asynccontextmanager
async def listening(settings: Settings | None = None, broker: MemoryBroker | None = None) -> AsyncIterator[Listening]:
    with listen("127.0.0.1", 0) as free:
        port = free.getsockname()[1]
    async with open_house(broker or MemoryBroker(), settings) as house:
        server = HttpServer(house.app, "127.0.0.1", port)
        await server.start()
        try:
            yield Listening(house, server, port)
        finally:
            await server.stop(PATIENCE)


@pytest.fixture
def hurried(monkeypatch: pytest.MonkeyPatch) -> None:
    for deadline in ("HEAD_WITHIN", "TAKEN_WITHIN", "REST_WITHIN"):
        monkeypatch.setattr(http_connection, deadline, SOON)


async def test_headers_without_an_end_are_refused() -> None:
    async with listening() as there:
        sent, answer = await send_endless_header(there.port)
    assert sent < MOST
    assert answer.startswith(b"HTTP/1.1 431") or answer == b""  # lost when the connection is reset meanwhile


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


@pytest.mark.usefixtures("hurried")
@pytest.mark.parametrize("before", [b"", b"GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n"])
async def test_a_head_that_takes_its_time_is_not_waited_for(before: bytes) -> None:
    """On a new connection, and on one that has had an answer already."""
    async with listening() as there:
        client = await there.connect()
        await client.send(before)
        if before:
            await client.reader.readuntil(b'"ok"}')
        await client.send(b"GET /healthz HTTP/1.1\r\nHost: ")
        trickling = asyncio.create_task(trickle(client))
        status, error = await client.refusal()
        trickling.cancel()
        assert (status, error["code"]) == (408, "request_timeout")
        await wait_until(lambda: there.connections == 0, "it is closed")


async def trickle(client: Client) -> None:
    while True:
        client.writer.write(b"x")
        await asyncio.sleep(0.02)


async def test_no_piece_of_an_answer_waits_for_the_one_before_to_be_acknowledged() -> None:
    async with listening() as there:
        client = await there.connect()
        await client.send(b"GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n")
        await client.reader.readuntil(b'"ok"}')
        [connection] = there.server._server.server_state.connections
        served = connection.transport.get_extra_info("socket")
        assert served.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)


async def test_connections_over_a_number_are_sent_away(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http_connection, "most_connections", lambda: 3)
    async with listening() as there:
        kept = [await there.connect() for _ in range(3)]
        await wait_until(lambda: there.connections == 3, "they are there")
        status, error = await (await there.connect()).refusal()
        assert (status, error["code"]) == (503, "overloaded")
        kept[0].writer.close()
        await wait_until(lambda: there.connections == 2, "one has left")
        client = await there.connect()
        await client.send(b"GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n")
        assert (await client.reader.readuntil(b'"ok"}')).startswith(b"HTTP/1.1 200")


def test_a_process_that_may_open_few_files_keeps_some_for_itself() -> None:
    code = (
        "import resource as r; r.setrlimit(r.RLIMIT_NOFILE, (256, 1024));"
        "from visionchat_serve import http_connection as c; c.allow_many_files();"
        "print(r.getrlimit(r.RLIMIT_NOFILE)[0], c.most_connections())"
    )
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert ran.stdout.split() == ["1024", "512"]


@pytest.mark.usefixtures("hurried")
async def test_a_connection_that_says_nothing_is_closed() -> None:
    async with listening() as there:
        client = await there.connect()
        assert await client.answer() == b""


@pytest.mark.usefixtures("hurried")
async def test_a_body_that_takes_its_time_is_not_waited_for() -> None:
    async with listening(Settings(body_seconds=0.2)) as there:
        client = await there.connect()
        await client.send(POST + b"Content-Length: 1000\r\n\r\n{")
        trickling = asyncio.create_task(trickle(client))
        assert (await client.reader.readuntil(b"\r\n\r\n")).startswith(b"HTTP/1.1 408")
        error = json.loads(await client.reader.readuntil(b"}}"))["error"]
        assert error["code"] == "request_timeout"
        assert "0.2 s" in error["message"]
        await wait_until(lambda: there.connections == 0, "it is closed")
        trickling.cancel()


@pytest.mark.usefixtures("hurried")
async def test_a_body_that_nobody_reads_is_not_waited_for() -> None:
    async with listening() as there:
        client = await there.connect()
        await client.send(b"GET /healthz HTTP/1.1\r\nHost: x\r\nContent-Length: 1000\r\n\r\n")
        trickling = asyncio.create_task(trickle(client))
        assert (await client.reader.readuntil(b'"ok"}')).startswith(b"HTTP/1.1 200")
        await wait_until(lambda: there.connections == 0, "it is closed")
        trickling.cancel()


async def test_bodies_have_one_room_together() -> None:
    size, settings = 80_000, Settings(max_body_bytes=100_000, max_bodies_bytes=100_000)
    half = POST + b"Content-Length: %d\r\n\r\n" % size + b" " * (size // 2)
    async with listening(settings) as there:
        await there.house.start_replica()
        first, second, third = [await there.connect() for _ in range(3)]
        await first.send(half)
        gateway_holds = held_by(there.house)
        await wait_until(lambda: gateway_holds() == size // 2, "half of it has come")
        await second.send(half)  # by its length there would be no room for all of it
        head = await second.reader.readuntil(b"\r\n\r\n")
        assert head.startswith(b"HTTP/1.1 503")
        assert b"retry-after: 5" in head.lower()
        assert b'"code":"overloaded"' in await second.reader.readuntil(b"}}")
        await third.send(POST + b"Transfer-Encoding: chunked\r\n\r\n", *[b"2710\r\n" + b" " * 10000 + b"\r\n"] * 7)
        assert (await third.reader.readuntil(b"\r\n\r\n")).startswith(b"HTTP/1.1 503"), "its length was not told"
        assert gateway_holds() == size // 2
        for client in (first, second, third):
            client.writer.close()
        await wait_until(lambda: gateway_holds() == 0, "all is given back")
        assert (await there.house.http.post("/v1/chat/completions", json=chat("a"))).status_code == 200
        assert gateway_holds() == 0


def held_by(house: House) -> Any:
    return lambda: house.app.state.gateway._room.held


SOCKET = (
    b"Host: x\r\nConnection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Version: 13\r\n"
    b"Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n"
)


@pytest.mark.parametrize(
    ("head", "status", "code"),
    [
        (b"GET /v1/jobs/" + b"x" * 9000 + b"/events HTTP/1.1\r\n" + SOCKET, 414, "address_too_long"),
        (b"GET /v1/jobs/x/events HTTP/1.1\r\n" + SOCKET + b"X: " + b"x" * 9000 + b"\r\n", 431, "headers_too_large"),
        (b"GET /v1/jobs/x/events HTTP/1.1\r\n" + SOCKET + b"X: x\r\n" * 200, 431, "headers_too_large"),
        (b"GET /" + b"x" * 9000 + b" HTTP/1.1\r\nHost: x\r\n", 414, "address_too_long"),
        (POST + b"Content-Length: 5\r\nTransfer-Encoding: chunked\r\n", 400, "invalid_request"),
        (POST.replace(b"1.1", b"1.0") + b"Transfer-Encoding: chunked\r\n", 400, "invalid_request"),
        (b"GET /v1/jobs/x/events HTTP/1.1\r\n" + SOCKET + b"Content-Length: 5\r\n", 400, "invalid_request"),
        (POST + b"Content-Length: 5\r\nContent-Length: 6\r\n", 400, "invalid_request"),
        (POST + b"Content-Length: +5\r\n", 400, "invalid_request"),
        (POST + b"Transfer-Encoding : chunked\r\n", 400, "invalid_request"),
        (POST + b"Transfer-Encoding: xchunked\r\n", 501, "invalid_request"),
        (POST + b"Transfer-Encoding: chunked\r\nTransfer-Encoding: identity\r\n", 501, "invalid_request"),
        (POST + b"X: a\nTransfer-Encoding: chunked\r\n", 400, "invalid_request"),
        (POST + b"X: a\rTransfer-Encoding: chunked\r\n", 400, "invalid_request"),
        (b"GET /healthz HTTP/1.1\nHost: x\r\n", 400, "invalid_request"),
        (b"GET /healthz HTTP/1.1\r\n", 400, "invalid_request"),
        (b"GET http://x\x00/ HTTP/1.1\r\nHost: x\r\n", 400, "invalid_request"),
        (b"PRI * HTTP/2.0\r\n", 505, "invalid_request"),
        (b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03\r\n", 400, "invalid_request"),
    ],
)
async def test_a_head_that_is_no_ordinary_one_is_refused_at_once(head: bytes, status: int, code: str) -> None:
    async with listening() as there:
        client = await there.connect()
        await client.send(head + b"\r\n")
        told, error = await client.refusal()
        assert (told, error["code"]) == (status, code), error


async def test_what_is_hidden_behind_a_good_request_is_refused_too() -> None:
    async with listening() as there:
        client = await there.connect()
        good = b"GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n"
        await client.send(good + b"GET /healthz HTTP/1.1\r\nHost: x\nX: y\r\n\r\n" + good)
        first, second = (await client.answer()).split(b'{"status":"ok"}')
        assert first.startswith(b"HTTP/1.1 200")
        assert second.startswith(b"HTTP/1.1 400")


async def test_a_socket_where_there_is_none_is_told() -> None:
    async with listening() as there:
        with pytest.raises(InvalidStatus) as refused:
            await connect(f"ws://127.0.0.1:{there.port}/v1/elsewhere")
        assert refused.value.response.status_code == 404
        assert json.loads(refused.value.response.body)["error"]["code"] == "not_found"


async def test_a_compressed_body_is_refused_by_name() -> None:
    async with listening() as there:
        refused = await there.house.http.post("/v1/jobs", json=chat("a"), headers={"Content-Encoding": "gzip"})
        assert (refused.status_code, refused.json()["error"]["code"]) == (415, "unsupported_encoding")


async def test_a_socket_that_does_not_shake_hands_is_told() -> None:
    async with listening() as there:
        client = await there.connect()
        await client.send(
            b"GET /v1/jobs/x/events HTTP/1.1\r\nHost: x\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\n"
        )
        assert (await client.answer()).split()[1] in (b"400", b"426")


async def test_addresses_are_not_logged(caplog: pytest.LogCaptureFixture) -> None:
    """They may hold tickets, which open a job's events."""
    caplog.set_level("DEBUG")
    async with listening() as there:
        await there.house.start_replica()
        job_id = (await there.house.http.post("/v1/jobs", json=chat("a b"))).json()["id"]
        caplog.clear()
        async with connect(f"ws://127.0.0.1:{there.port}/v1/jobs/{job_id}/events?ticket=s3cret"):
            pass
        client = await there.connect()
        await client.send(f"GET /v1/jobs/{job_id}/events?ticket=s3cret HTTP/1.1\r\nHost: x\r\n\r\n".encode())
        await client.reader.readuntil(b"\r\n\r\n")
        client.writer.close()
        with pytest.raises(InvalidStatus):
            await connect(f"ws://127.0.0.1:{there.port}/v1/jobs/nobody/events?ticket=s3cret")
    ours = [record for record in caplog.records if not record.name.startswith("websockets.client")]
    assert [record for record in ours if record.levelname == "ERROR"] == []
    assert "s3cret" not in "".join(record.getMessage() for record in ours)


@pytest.mark.usefixtures("hurried")
async def test_who_does_not_take_a_stream_is_let_go() -> None:
    """With all that would be told: 32 MB are more than the kernel's buffers hold."""
    broker, piece = MemoryBroker(), "x" * (1 << 20)
    async with listening(broker=broker) as there:
        job_id = (await there.house.http.post("/v1/jobs", json=chat("x"))).json()["id"]
        [claim] = await broker.claim("by hand", 1, timedelta(seconds=1))
        for index in range(32):
            await broker.publish(claim, index, piece)
        deaf = socket.create_connection(("127.0.0.1", there.port))
        deaf.sendall(f"GET /v1/jobs/{job_id}/events HTTP/1.1\r\nHost: x\r\n\r\n".encode())
        await wait_until(lambda: there.connections == 1, "it is there")
        await wait_until(lambda: there.connections == 0, "it is let go")
        deaf.close()


async def test_what_a_socket_says_is_not_kept() -> None:
    """A client's messages are dropped, and a long one ends the connection."""
    async with listening() as there:
        job_id = (await there.house.http.post("/v1/jobs", json=chat("a b"))).json()["id"]
        async with connect(f"ws://127.0.0.1:{there.port}/v1/jobs/{job_id}/events") as client:
            for _ in range(1000):
                await client.send("hello")
            await there.house.start_replica()
            events = [json.loads(message)["event"] async for message in client]
            assert events[-1] == "succeeded"
        job_id = (await there.house.http.post("/v1/jobs", json=chat("a !hold b"))).json()["id"]
        async with connect(f"ws://127.0.0.1:{there.port}/v1/jobs/{job_id}/events") as client:
            await client.send("x" * 5000)
            with pytest.raises(ConnectionClosedError):
                _ = [message async for message in client]
            assert client.close_code == 1009
