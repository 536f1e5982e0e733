"""A small client for the command line: ask one question about pictures, get the text as it comes.

Speaks plain HTTP to any VisionChat server; knows nothing of how one is run.
"""

from __future__ import annotations

import base64
import json
import mimetypes
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx

from visionchat_serve.errors import VisionChatError, from_code

_WAIT = httpx.Timeout(connect=5, read=30, write=60, pool=5)  # the server sends a sign of life every 10 s


@dataclass(slots=True)
class Timing:
    """Of one answer, in seconds; `tokens` as the server counted them."""

    first_token: float | None = None
    total: float = 0.0
    tokens: int = 0

    @property
    def tokens_per_second(self) -> float | None:
        """Speed after the first token, None for answers too short to tell."""
        if self.first_token is None or self.tokens < 2 or self.total <= self.first_token:
            return None
        return (self.tokens - 1) / (self.total - self.first_token)


def is_up(url: str) -> bool:
    """Whether a VisionChat server answers there."""
    try:
        return bool(httpx.get(f"{url}/healthz", timeout=2).json() == {"status": "ok"})
    except (httpx.HTTPError, ValueError):
        return False


def data_url(picture: Path) -> str:
    """The file as a data: URL. The server looks at the bytes; a wrong file name must not matter, so a type is
    only named when the name gives one."""
    kind = mimetypes.guess_type(picture.name)[0] or "application/octet-stream"
    kind = kind if kind.startswith("image/") else "application/octet-stream"
    return f"data:{kind};base64,{base64.b64encode(picture.read_bytes()).decode()}"


def ask(
    url: str,
    pictures: Sequence[Path],
    question: str,
    timing: Timing,
    *,
    api_key: str | None = None,
    **sampling: Any,
) -> Iterator[str]:
    """Stream the answer's text; fills `timing`. Raises `VisionChatError` with the server's message."""
    content: list[dict[str, Any]] = [
        {"type": "image_url", "image_url": {"url": data_url(picture)}} for picture in pictures
    ]
    content.append({"type": "text", "text": question})
    headers = {"Authorization": f"Bearer {api_key}"} if api_key else {}
    with httpx.Client(base_url=url, headers=headers, timeout=_WAIT) as http:
        model = _checked(http.get("/v1/models"))["data"][0]["id"]
        body = {
            "model": model,
            "messages": [{"role": "user", "content": content}],
            "stream": True,
            "stream_options": {"include_usage": True},
        } | sampling
        yield from _stream(http, body, timing)


def _stream(http: httpx.Client, body: dict[str, Any], timing: Timing) -> Iterator[str]:
    began = time.monotonic()
    with http.stream("POST", "/v1/chat/completions", json=body) as response:
        if response.status_code != 200:
            response.read()
            _checked(response)
        for event in _events(response):
            if event.get("usage"):
                timing.tokens = event["usage"]["completion_tokens"]
            for choice in event["choices"]:
                if text := choice["delta"].get("content"):
                    timing.first_token = timing.first_token or time.monotonic() - began
                    timing.total = time.monotonic() - began
                    yield text


def _events(response: httpx.Response) -> Iterator[dict[str, Any]]:
    for line in response.iter_lines():
        if line == "data: [DONE]":
            return
        if line.startswith("data: "):
            event: dict[str, Any] = json.loads(line[6:])
            if "error" in event:
                raise from_code(event["error"]["code"], event["error"]["message"])
            yield event
    raise VisionChatError("the server closed the stream before the answer was complete")


def _checked(response: httpx.Response) -> dict[str, Any]:
    body: dict[str, Any] = response.json() if "json" in response.headers.get("content-type", "") else {}
    if response.status_code == 200:
        return body
    error = body.get("error", {})
    message = error.get("message") or f"the server answered {response.status_code}: {response.text[:200]}"
    raise from_code(error.get("code", ""), message)
