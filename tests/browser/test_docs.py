"""The page at /docs in a real browser."""

from __future__ import annotations

from playwright.sync_api import Page, expect

from .conftest import Site


def test_it_shows_the_api_and_loads_nothing_from_elsewhere(page: Page, site: Site) -> None:
    asked: list[str] = []
    page.on("request", lambda request: asked.append(request.url))
    page.goto(f"{site.url}docs")
    expect(page.get_by_role("heading", name="VisionChat")).to_be_visible()
    chat = page.locator("#operations-default-chat_completions_v1_chat_completions_post")
    expect(chat).to_be_visible()
    chat.get_by_role("button", name="POST").first.click()
    expect(chat.get_by_text("Request body", exact=False).first).to_be_visible()
    assert f"{site.url}openapi.json" in asked
    assert [url for url in asked if not url.startswith((site.url, "data:"))] == []
