"""A gateway on loopback with a scripted engine behind it, and a headless Chromium in front of it.

A machine without Chromium fails here, and says what to install: a page that nobody looked at is not a tested page.
"""

from __future__ import annotations

import asyncio
import os
import shutil
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path

import pytest
from playwright.sync_api import Browser, Page, expect, sync_playwright

from support.scripted_engine import ScriptedEngine, loader
from visionchat_serve.api_keys import new_key
from visionchat_serve.config import Settings
from visionchat_serve.http_server import HttpServer, listen
from visionchat_serve.memory_broker import MemoryBroker
from visionchat_serve.replica import Replica
from visionchat_serve.routes import create_app

PATIENCE_MS = 60_000  # a busy machine takes its time; nothing waits longer than it must
expect.set_options(timeout=PATIENCE_MS)

PICTURES = Path(__file__).parents[1] / "data" / "pictures"


@dataclass
class Site:
    """A running gateway; `engine.release` lets `!hold` go on, `cut_connections` breaks what browsers have open."""

    url: str
    engine: ScriptedEngine
    broker: MemoryBroker
    key: str
    cut_connections: Callable[[], None] = lambda: None


@contextmanager
def serving(settings: Settings, key: str = "") -> Iterator[Site]:
    """The gateway, an in-memory queue and a replica in one event loop, in a thread of their own."""
    site = Site("", ScriptedEngine(), MemoryBroker(), key)
    app = create_app(settings, lambda: site.broker)
    with listen("127.0.0.1", 0) as free:
        port = free.getsockname()[1]
    site.url = f"http://127.0.0.1:{port}/"
    loop, started, over = asyncio.new_event_loop(), threading.Event(), asyncio.Event()

    async def run() -> None:
        replica = Replica(loader(site.engine), site.broker, "r1", (0,), claim_wait=timedelta(milliseconds=20))
        await replica.start()
        server = HttpServer(app, "127.0.0.1", port)
        await server.start()
        connections = server._server.server_state.connections
        site.cut_connections = lambda: loop.call_soon_threadsafe(
            lambda: [connection.transport.abort() for connection in list(connections)]
        )
        started.set()
        await over.wait()
        await server.stop(timedelta(seconds=1))
        await replica.drain(timedelta(seconds=5))

    thread = threading.Thread(target=loop.run_until_complete, args=(run(),), daemon=True)
    thread.start()
    assert started.wait(30), "the gateway did not start"
    try:
        yield site
    finally:
        site.engine.release.set()
        loop.call_soon_threadsafe(over.set)
        thread.join(15)
        loop.close()


@pytest.fixture
def site() -> Iterator[Site]:
    with serving(Settings()) as site:
        yield site


@pytest.fixture
def locked_site(tmp_path: Path) -> Iterator[Site]:
    """One that asks for a key."""
    key, line = new_key("ana")
    (tmp_path / "keys").write_text(line)
    with serving(Settings(api_keys_file=tmp_path / "keys"), key) as site:
        yield site


@pytest.fixture(scope="module")  # Playwright's event loop must not outlive the module: other tests have their own
def browser() -> Iterator[Browser]:
    chromium = os.environ.get("CHROMIUM") or shutil.which("chromium") or shutil.which("google-chrome")
    if chromium is None:
        pytest.fail("no browser: install chromium, or set CHROMIUM to one", pytrace=False)
    with sync_playwright() as playwright:
        flags = ["--no-sandbox"] if os.geteuid() == 0 else []
        browser = playwright.chromium.launch(executable_path=chromium, args=flags)
        yield browser
        browser.close()


@pytest.fixture
def page(browser: Browser) -> Iterator[Page]:
    """A tab in which whatever the console calls an error, a violated policy among it, fails the test."""
    page = browser.new_context(viewport={"width": 800, "height": 700}).new_page()
    faults: list[str] = []
    page.on("pageerror", lambda error: faults.append(str(error)))
    page.on("console", lambda said: faults.append(said.text) if said.type == "error" else None)
    page.set_default_timeout(PATIENCE_MS)
    yield page
    page.context.close()
    # A refused request is also an "error" to the console; what the page does about it is what the tests look at.
    assert [fault for fault in faults if "Failed to load resource" not in fault] == []
