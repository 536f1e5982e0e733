"""A job followed by a browser's own EventSource and WebSocket, which can send no key."""

from __future__ import annotations

from typing import Any

import httpx
from playwright.sync_api import Page, Request

from support.house import chat

from .conftest import Site

FOLLOW = """(url) => {
  const seen = window.seen = {text: "", ids: [], ends: [], opened: 0};
  const source = window.source = new EventSource(url);
  source.addEventListener("open", () => { seen.opened += 1; });
  source.addEventListener("text", (event) => {
    seen.text += JSON.parse(event.data).text;
    seen.ids.push(event.lastEventId);
  });
  source.addEventListener("succeeded", (event) => { seen.ends.push(JSON.parse(event.data).status); });
}"""
LISTEN = """(url) => new Promise((resolve) => {
  const socket = new WebSocket(url.replace("http", "ws")), seen = [];
  socket.addEventListener("message", (event) => { seen.push(JSON.parse(event.data)); });
  socket.addEventListener("close", () => { resolve(seen); });
})"""


def create(site: Site, text: str) -> Any:
    response = httpx.post(f"{site.url}v1/jobs", json=chat(text), headers={"Authorization": f"Bearer {site.key}"})
    assert response.status_code == 202
    return response.json()


def test_an_event_source_comes_back_without_loss_or_repeat(page: Page, locked_site: Site) -> None:
    job = create(locked_site, "one two three !hold four five")
    asked: list[Request] = []
    page.on("request", lambda request: asked.append(request) if "/events" in request.url else None)
    page.goto(locked_site.url)
    page.evaluate(FOLLOW, job["events_url"])
    page.wait_for_function("() => seen.text.startsWith('one two three ')")
    locked_site.cut_connections()
    page.wait_for_function("() => seen.opened > 1")
    locked_site.engine.release.set()
    page.wait_for_function("() => source.readyState === EventSource.CLOSED")  # told by 204 that nothing more comes
    seen = page.evaluate("seen")
    assert seen["text"] == "one two three !hold four five"
    assert seen["ends"] == ["succeeded"]
    resumed = [request.all_headers().get("last-event-id") for request in asked]
    assert resumed[0] is None
    assert resumed[1] in seen["ids"]
    assert all("authorization" not in request.all_headers() for request in asked)


def test_a_web_socket(page: Page, locked_site: Site) -> None:
    job = create(locked_site, "a red circle")
    page.goto(locked_site.url)
    seen = page.evaluate(LISTEN, locked_site.url.rstrip("/") + job["events_url"])
    assert "".join(message["data"]["text"] for message in seen if message["event"] == "text") == "a red circle"
    assert seen[-1]["event"] == "succeeded"
