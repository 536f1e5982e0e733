"""The page as it is served: whole, from here alone, and nothing else may run on it."""

from __future__ import annotations

import base64
import hashlib
import re

import httpx

from visionchat_serve.config import Settings
from visionchat_serve.memory_broker import MemoryBroker
from visionchat_serve.page import load_page
from visionchat_serve.routes import create_app


async def test_it_is_served_with_a_policy_that_names_its_script_and_style() -> None:
    app = create_app(Settings(), MemoryBroker)
    async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://gateway") as http:
        response = await http.get("/")
    assert response.status_code == 200
    assert response.headers["content-type"] == "text/html; charset=utf-8"
    policy = dict(part.strip().split(" ", 1) for part in response.headers["content-security-policy"].split(";"))
    assert policy["default-src"] == policy["base-uri"] == policy["form-action"] == policy["frame-ancestors"] == "'none'"
    assert policy["connect-src"] == "'self'"
    for element in ("script", "style"):
        (content,) = re.findall(rf"<{element}>(.*?)</{element}>", response.text, re.DOTALL)
        digest = base64.b64encode(hashlib.sha256(content.encode()).digest()).decode()
        assert policy[f"{element}-src"] == f"'sha256-{digest}'"


def test_it_needs_nothing_from_elsewhere() -> None:
    text = load_page().body.decode()
    assert "//" not in re.sub(r"(?m)(^|\s)// .*$", "", text), "an address with a host"
    assert not re.search(r"<(link|iframe|object|embed|base)\b|\bsrc=|@import|url\(", text)
    assert not re.search(r"\son\w+=|\sstyle=|javascript:", text), "the policy would forbid it"
    assert not re.search(r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|\beval\b", text)


def test_its_paths_are_relative_so_that_it_works_below_a_prefix() -> None:
    text = load_page().body.decode()
    assert re.findall(r'(?:fetch|request)\("([^"]*)"', text) == ["v1/models", "v1/chat/completions"]


async def test_who_only_asks_for_the_head_gets_it() -> None:
    app = create_app(Settings(), MemoryBroker)
    async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://gateway") as http:
        for path in ("/", "/healthz"):
            assert (await http.head(path)).status_code == 200
        assert "head" not in str((await http.get("/openapi.json")).json()["paths"]["/healthz"].keys())
