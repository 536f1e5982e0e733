"""A page of another site in a real browser, with a gateway on one's own machine that asks for no keys."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest
from playwright.sync_api import Page

from support.house import chat

from .conftest import Site

ASK = (
    """([url, body]) => fetch(url, {method: "POST", mode: "no-cors", body: JSON.stringify(body)}).then(() => "sent")"""
)


class OtherSite(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        self.send_response(200)
        self.send_header("Content-Type", "text/html")
        self.end_headers()
        self.wfile.write(b"<!doctype html><link rel=icon href=data:,><p>a page</p>")

    def log_message(self, *_: object) -> None: ...


@pytest.fixture
def other_port() -> Iterator[int]:
    with ThreadingHTTPServer(("127.0.0.1", 0), OtherSite) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield server.server_address[1]
        server.shutdown()


@pytest.mark.parametrize("host", ["localhost", "127.0.0.1"])
def test_it_cannot_make_the_gateway_work(page: Page, site: Site, other_port: int, host: str) -> None:
    """Of another site, and of the same one at another port."""
    answered: list[int] = []
    page.on("response", lambda response: answered.append(response.status) if "/v1/" in response.url else None)
    page.goto(f"http://{host}:{other_port}/")
    assert page.evaluate(ASK, [f"{site.url}v1/chat/completions", chat("a b")]) == "sent"
    page.wait_for_function("() => performance.getEntriesByType('resource').some((one) => one.name.includes('/v1/'))")
    assert answered == [403]
    assert site.engine.seen == []
