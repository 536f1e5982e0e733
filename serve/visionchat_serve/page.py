"""The page at `/`: one file without any resource from elsewhere, and the headers that hold it to that.

Its script and its style stand in the file and are named to the browser by their hashes, so nothing else runs on it,
whatever an answer contains. Knows nothing of chats: the page uses the public API like anybody else.
"""

from __future__ import annotations

import base64
import hashlib
import re
from dataclasses import dataclass
from importlib import resources


@dataclass(frozen=True, slots=True)
class Page:
    """HTML in UTF-8, and the headers to send it with."""

    body: bytes
    headers: dict[str, str]


def load_page() -> Page:
    html = resources.files("visionchat_serve").joinpath("page.html").read_text(encoding="utf-8")
    policy = {
        "default-src": "'none'",
        "script-src": _hash(html, "script"),
        "style-src": _hash(html, "style"),
        "img-src": "data:",
        "connect-src": "'self'",
        "base-uri": "'none'",
        "form-action": "'none'",
        "frame-ancestors": "'none'",
    }
    headers = {
        "Content-Security-Policy": "; ".join(f"{name} {value}" for name, value in policy.items()),
        "Referrer-Policy": "no-referrer",
        "Cache-Control": "no-cache",  # after an upgrade the page and the API must fit
    }
    return Page(html.encode(), headers)


def _hash(html: str, element: str) -> str:
    """Of the one `element` in the page, as a policy names it."""
    (content,) = re.findall(rf"<{element}>(.*?)</{element}>", html, re.DOTALL)
    return f"'sha256-{base64.b64encode(hashlib.sha256(content.encode()).digest()).decode()}'"
