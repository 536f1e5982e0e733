"""The page in a real browser: what a person does with it, and what it says."""

from __future__ import annotations

import base64
import re
from pathlib import Path

import pytest
from playwright.sync_api import Browser, Page, Route, expect

from visionchat_serve.config import Settings

from .conftest import PICTURES, Site, serving

PICTURE = PICTURES / "circle-and-square.png"


def open_with_picture(page: Page, site: Site) -> None:
    page.goto(site.url)
    page.get_by_label("Choose a picture").set_input_files(PICTURE)
    expect(page.get_by_alt_text("The picture you chose")).to_be_visible()


def ask(page: Page, text: str) -> None:
    box = page.get_by_label("Your question about the picture")
    box.fill(text)
    box.press("Enter")


def answers(page: Page) -> list[str]:
    return [text.removeprefix("Answer: ") for text in page.locator("li.answer").all_inner_texts()]


def test_choose_a_picture_ask_and_follow_up(page: Page, site: Site) -> None:
    open_with_picture(page, site)
    expect(page.get_by_text("visionchat-tiny")).to_be_visible()
    expect(page.get_by_label("Your question about the picture")).to_be_focused()
    ask(page, "a red circle")
    expect(page.locator("li.answer")).to_have_text("Answer: a red circle")
    expect(page.get_by_label("Your question about the picture")).to_be_focused()
    ask(page, "and a square")
    expect(page.locator("li.answer")).to_have_count(2)
    expect(page.locator("li.answer").last).to_have_text("Answer: and a square")
    first, second = site.engine.seen
    assert [m.role for m in second.messages] == ["user", "assistant", "user"]
    assert second.images == first.images
    assert len(second.images) == 1
    assert second.messages[1].parts[0].text == "a red circle"  # type: ignore[union-attr]


def test_text_appears_while_it_is_written(page: Page, site: Site) -> None:
    open_with_picture(page, site)
    ask(page, "first words !hold last words")
    expect(page.locator("li.answer")).to_have_text("Answer: first words ")
    expect(page.get_by_role("status")).to_have_text("Answering …")
    expect(page.get_by_role("log")).to_have_attribute("aria-busy", "true")
    site.engine.release.set()
    expect(page.locator("li.answer")).to_have_text("Answer: first words !hold last words")
    expect(page.get_by_role("log")).to_have_attribute("aria-busy", "false")
    expect(page.get_by_role("status")).to_be_empty()


@pytest.mark.parametrize("how", ["button", "escape"])
def test_stop_keeps_what_was_said_and_frees_the_model(page: Page, site: Site, how: str) -> None:
    open_with_picture(page, site)
    ask(page, "some words !hold more")
    expect(page.locator("li.answer")).to_contain_text("some words")
    if how == "button":
        page.get_by_role("button", name="Stop").click()
    else:
        page.keyboard.press("Escape")
    expect(page.locator("li.answer .note")).to_have_text("(stopped)")
    expect(page.get_by_role("button", name="Ask")).to_be_visible()
    site.engine.release.set()
    ask(page, "next one")
    expect(page.locator("li.answer").last).to_have_text("Answer: next one")
    assert site.engine.aborted == [site.engine.seen[0].id]


def test_who_waits_sees_the_place_in_the_queue(page: Page, site: Site) -> None:
    open_with_picture(page, site)
    ask(page, "a long !hold answer")
    expect(page.locator("li.answer")).to_contain_text("a long")
    other = page.context.new_page()
    open_with_picture(other, site)
    ask(other, "a short one")
    expect(other.get_by_role("status")).to_have_text(re.compile("You are next"))
    site.engine.release.set()
    expect(other.locator("li.answer")).to_have_text("Answer: a short one")
    expect(other.get_by_role("status")).to_be_empty()


def test_every_form_of_the_place_is_understood(page: Page, site: Site) -> None:
    """From the comments of the stream; one without a place is just a sign of life."""

    def queued(route: Route) -> None:
        body = ": position 3, about 12 s\n\n" + 'data: {"error": {"message": "that was all"}}\n\n'
        route.fulfill(status=200, content_type="text/event-stream", body=body)

    open_with_picture(page, site)
    told: list[str] = []
    page.expose_function("told", lambda text: told.append(text))
    page.evaluate(
        "new MutationObserver(() => told(document.getElementById('status').textContent))"
        ".observe(document.getElementById('status'), {childList: true, characterData: true, subtree: true})"
    )
    page.route("**/v1/chat/completions", queued)
    ask(page, "what is it")
    expect(page.get_by_role("alert")).to_have_text("that was all")
    assert "Number 3 in the queue, about 12 s …" in told
    assert page.evaluate("[': waiting', 'alive', 'position 1', 'position: 2'].map(placeOf)") == [
        None,
        None,
        "You are next …",
        "Number 2 in the queue …",
    ]


def test_a_picture_can_be_dropped_and_pasted(page: Page, site: Site) -> None:
    page.goto(site.url)
    data = base64.b64encode(PICTURE.read_bytes()).decode()
    transfer = page.evaluate_handle(
        """async (data) => {
            const transfer = new DataTransfer();
            const bytes = Uint8Array.from(atob(data), (c) => c.charCodeAt(0));
            transfer.items.add(new File([bytes], "drawn.png", { type: "image/png" }));
            return transfer;
        }""",
        data,
    )
    page.dispatch_event("body", "drop", {"dataTransfer": transfer})
    expect(page.get_by_alt_text("The picture you chose")).to_be_visible()
    ask(page, "a drop")
    expect(page.locator("li.answer")).to_have_text("Answer: a drop")
    page.evaluate(
        "(t) => document.dispatchEvent(new ClipboardEvent('paste', { clipboardData: t, bubbles: true }))", transfer
    )
    expect(page.locator("li")).to_have_count(0)
    ask(page, "a paste")
    expect(page.locator("li.answer")).to_have_text("Answer: a paste")
    assert [len(request.messages) for request in site.engine.seen] == [1, 1], "another picture begins anew"


def test_another_picture_while_an_answer_is_written(page: Page, site: Site) -> None:
    open_with_picture(page, site)
    ask(page, "old !hold words")
    expect(page.locator("li.answer")).to_contain_text("old")
    page.get_by_label("Choose, paste or drop another one").set_input_files(PICTURE)
    expect(page.locator("li")).to_have_count(0)
    site.engine.release.set()
    ask(page, "new words")
    expect(page.locator("li.answer")).to_have_text("Answer: new words")
    assert len(site.engine.seen[-1].messages) == 1


def test_a_key_is_asked_for_where_one_is_needed(page: Page, locked_site: Site) -> None:
    page.goto(locked_site.url)
    field = page.get_by_label("API key")
    expect(field).to_be_focused()
    field.fill("wrong")
    field.press("Enter")
    expect(page.get_by_role("alert")).to_contain_text("API key")
    field.fill(locked_site.key)
    field.press("Enter")
    expect(field).to_be_hidden()
    page.reload()
    expect(page.get_by_text("visionchat-tiny")).to_be_visible()
    expect(field).to_be_hidden()
    page.get_by_label("Choose a picture").set_input_files(PICTURE)
    ask(page, "with a key")
    expect(page.locator("li.answer")).to_have_text("Answer: with a key")


def test_what_goes_wrong_is_said_and_the_question_kept(page: Page, site: Site, tmp_path: Path) -> None:
    page.goto(site.url)
    alert = page.get_by_role("alert")
    ask(page, "anything there?")
    expect(alert).to_contain_text("Add a picture first")
    (tmp_path / "notes.txt").write_text("hello")
    page.get_by_label("Choose a picture").set_input_files(tmp_path / "notes.txt")
    expect(alert).to_have_text("notes.txt is not a picture.")
    (tmp_path / "broken.png").write_bytes(PICTURE.read_bytes()[:200])
    page.get_by_label("Choose a picture").set_input_files(tmp_path / "broken.png")
    ask(page, "what is it")
    expect(alert).to_contain_text("cut off")
    expect(page.get_by_label("Your question about the picture")).to_have_value("what is it")
    expect(page.locator("li")).to_have_count(0)
    page.route("**/v1/chat/completions", lambda route: route.abort())
    ask(page, "hello?")
    expect(alert).to_contain_text("cannot be reached")
    page.unroute("**/v1/chat/completions")
    page.route(
        "**/v1/chat/completions",
        lambda route: route.fulfill(
            status=429, headers={"Retry-After": "7"}, json={"error": {"message": "Too many wait."}}
        ),
    )
    ask(page, "hello?")
    expect(alert).to_have_text("Too many wait. Try again in 7 s.")
    page.unroute("**/v1/chat/completions")
    page.route("**/v1/chat/completions", lambda route: route.fulfill(status=502, body="<html>Bad Gateway"))
    ask(page, "hello?")
    expect(alert).to_have_text("The server answered 502.")


def test_an_answer_is_text_and_nothing_else(page: Page, site: Site) -> None:
    open_with_picture(page, site)
    ask(page, "<img src=x onerror=alert(1)> <b>bold</b> <script>alert(2)</script>")
    expect(page.locator("li.answer")).to_contain_text("<b>bold</b>")
    assert page.locator("li b, li img, li script").count() == 0


def test_a_keyboard_is_enough(page: Page, site: Site) -> None:
    page.goto(site.url)
    box = page.get_by_label("Your question about the picture")
    expect(box).to_be_focused()
    page.keyboard.press("Shift+Tab")
    expect(page.locator("#file")).to_be_focused()
    page.locator("#file").set_input_files(PICTURE)
    expect(box).to_be_focused()
    page.keyboard.type("two lines")
    page.keyboard.press("Shift+Enter")
    page.keyboard.type("in one")
    expect(box).to_have_value("two lines\nin one")
    page.keyboard.press("Tab")
    expect(page.get_by_role("button", name="Ask")).to_be_focused()
    page.keyboard.press("Enter")
    expect(page.locator("li.answer")).to_contain_text("two lines in one")


def test_everything_has_a_name_for_those_who_do_not_see_it(page: Page, site: Site) -> None:
    open_with_picture(page, site)
    ask(page, "a red circle")
    expect(page.locator("li.answer")).to_have_text("Answer: a red circle")
    tree = page.locator("body").aria_snapshot()
    for line in (
        'heading "VisionChat"',
        'img "The picture you chose"',
        'log "Questions and answers"',
        'listitem: "You asked: a red circle"',
        'listitem: "Answer: a red circle"',
        'textbox "Your question about the picture"',
        'button "Ask"',
        'button "New picture"',
    ):
        assert line in tree, tree


def luminance(colour: str) -> float:
    """WCAG's relative luminance of `rgb(r, g, b)`."""
    channels = [int(number) / 255 for number in re.findall(r"\d+", colour)[:3]]
    linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in channels]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_text_can_be_read_by_day_and_by_night(page: Page, site: Site, scheme: str) -> None:
    """WCAG AA: a contrast of 4.5 between every text and what is behind it."""
    page.emulate_media(color_scheme=scheme)  # type: ignore[arg-type]
    open_with_picture(page, site)
    ask(page, "a red circle")
    expect(page.locator("li.answer")).to_have_text("Answer: a red circle")
    page.evaluate("complain('something went wrong')")
    pairs = page.evaluate(
        """() => [...document.querySelectorAll("h1, .soft, li, .trouble, button, textarea, .drop span, .drop strong")]
          .filter((e) => e.offsetParent && (e.textContent || e.value !== undefined)).map((e) => {
            let behind = e;
            while (getComputedStyle(behind).backgroundColor === "rgba(0, 0, 0, 0)") behind = behind.parentElement;
            const ground = getComputedStyle(behind).backgroundColor;
            return [e.id || e.className || e.tagName, getComputedStyle(e).color, ground];
          })"""
    )
    assert len(pairs) > 6
    for name, ink, ground in pairs:
        low, high = sorted((luminance(ink), luminance(ground)))
        assert (high + 0.05) / (low + 0.05) >= 4.5, (name, ink, ground)
    assert (luminance(pairs[0][2]) < 0.2) is (scheme == "dark")


@pytest.mark.parametrize("width", [320, 800])
def test_nothing_sticks_out_on_a_narrow_screen(browser: Browser, site: Site, width: int) -> None:
    page = browser.new_context(viewport={"width": width, "height": 640}).new_page()
    open_with_picture(page, site)
    ask(page, "a very-very-very-very-long-word-" * 8)
    expect(page.locator("li.answer")).to_contain_text("Answer: a very")
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    page.context.close()


def test_nothing_is_loaded_from_elsewhere(page: Page) -> None:
    asked: list[str] = []
    with serving(Settings()) as site:
        page.on("request", lambda request: asked.append(request.url))
        open_with_picture(page, site)
        ask(page, "a red circle")
        expect(page.locator("li.answer")).to_have_text("Answer: a red circle")
        assert {url for url in asked if not url.startswith(("data:", site.url))} == set()
