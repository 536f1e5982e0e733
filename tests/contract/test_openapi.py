"""Whatever the API's own description allows, and what it does not: no request makes the server fail, every status is
one that the description names, and every refusal is in OpenAI's form. schemathesis makes the requests up."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import hypothesis
import pytest
import schemathesis
from schemathesis.checks import not_a_server_error
from schemathesis.specs.openapi.checks import content_type_conformance, status_code_conformance

from support.house import MODEL, chat, open_house
from visionchat_serve.config import Settings
from visionchat_serve.http_server import HttpServer, listen
from visionchat_serve.memory_broker import MemoryBroker
from visionchat_serve.routes import create_app

EXAMPLES = 40  # for each address and method
PATIENCE = timedelta(seconds=5)


class Server:
    """A gateway with a replica behind it, in a thread; asked over a socket."""

    def __init__(self) -> None:
        self.url = self.job_id = ""
        self._loop = asyncio.new_event_loop()
        self._stop = asyncio.Event()
        self._ready = threading.Event()
        self._thread = threading.Thread(target=self._loop.run_until_complete, args=(self._serve(),), daemon=True)

    def start(self) -> None:
        self._thread.start()
        assert self._ready.wait(30)

    def stop(self) -> None:
        self._loop.call_soon_threadsafe(self._stop.set)
        self._thread.join(30)

    async def _serve(self) -> None:
        with listen("127.0.0.1", 0) as free:
            port = free.getsockname()[1]
        async with open_house(MemoryBroker()) as house:
            await house.start_replica()
            server = HttpServer(house.app, "127.0.0.1", port)
            await server.start()
            self.url = f"http://127.0.0.1:{port}"
            self.job_id = (await house.http.post("/v1/jobs", json=chat("a job that is there"))).json()["id"]
            self._ready.set()
            await self._stop.wait()
            await server.stop(PATIENCE)


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    server = Server()
    server.start()
    yield server
    server.stop()


described = schemathesis.openapi.from_dict(create_app(Settings(), MemoryBroker).openapi())


@schemathesis.check
def refusals_are_in_openais_form(_: Any, response: Any, __: Any) -> None:
    if response.status_code < 400 or response.request.url.endswith("/readyz"):
        return
    error = response.json()["error"]
    assert {"message", "type", "param", "code"} <= set(error)
    assert error["message"]


CHECKS = [not_a_server_error, status_code_conformance, content_type_conformance, refusals_are_in_openais_form]


@described.parametrize()
@hypothesis.settings(
    max_examples=EXAMPLES, deadline=None, derandomize=True, suppress_health_check=list(hypothesis.HealthCheck)
)
def test_no_request_makes_the_server_fail(case: Any, server: Server) -> None:
    if isinstance(case.body, dict) and isinstance(case.body.get("model"), str):
        case.body["model"] = MODEL  # a made-up name would be all that is ever refused
    if len(case.path_parameters.get("job_id", "")) % 2:
        case.path_parameters["job_id"] = server.job_id
    case.validate_response(case.call(base_url=server.url, timeout=30), checks=CHECKS)


def test_every_address_is_described() -> None:
    paths = described.raw_schema["paths"]
    methods = {(path, method) for path, operations in paths.items() for method in operations}
    assert methods >= {
        ("/v1/chat/completions", "post"),
        ("/v1/jobs", "post"),
        ("/v1/jobs", "get"),
        ("/v1/jobs/{job_id}", "get"),
        ("/v1/jobs/{job_id}", "delete"),
        ("/v1/jobs/{job_id}/events", "get"),
        ("/v1/models", "get"),
        ("/healthz", "get"),
        ("/readyz", "get"),
        ("/metrics", "get"),
    }
