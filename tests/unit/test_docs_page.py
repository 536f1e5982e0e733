"""The page at /docs: all of it is served from here, and the browser is told to load nothing else."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator

import httpx
import pytest

from visionchat_serve.config import Settings
from visionchat_serve.memory_broker import MemoryBroker
from visionchat_serve.routes import create_app


@pytest.fixture
async def http() -> AsyncIterator[httpx.AsyncClient]:
    app = create_app(Settings(), MemoryBroker)
    async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://gateway") as http:
        yield http


async def test_it_names_only_files_of_this_server(http: httpx.AsyncClient) -> None:
    page = await http.get("/docs")
    assert page.status_code == 200
    assert "//" not in page.text, "an address with a host"
    for address in re.findall(r'(?:src|href)="([^"]*)"', page.text):
        file = await http.get(f"/{address}")
        assert file.status_code == 200, address
        assert file.content
    assert re.findall(r'"([^"]*\.json)"', (await http.get("/docs/start.js")).text) == ["openapi.json"]


async def test_the_browser_loads_nothing_from_elsewhere(http: httpx.AsyncClient) -> None:
    policy = dict(
        part.strip().split(" ", 1) for part in (await http.get("/docs")).headers["content-security-policy"].split(";")
    )
    assert policy.pop("default-src") == "'none'"
    allowed = {source for sources in policy.values() for source in sources.split()}
    assert allowed <= {"'none'", "'self'", "data:"}
    assert policy["script-src"] == "'self'"


async def test_no_other_files_are_given_out(http: httpx.AsyncClient) -> None:
    for name in ("__init__.py", "..%2f__init__.py", "%2e%2e/main.py", "x"):
        assert (await http.get(f"/docs/{name}")).status_code == 404
