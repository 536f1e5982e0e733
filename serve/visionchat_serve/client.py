"""A small client for the command line: ask one question about pictures, get the text as it comes.

Speaks plain HTTP to any VisionChat server; knows nothing of how one is run.
"""

from __future__ import annotations

import base64
import json
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx

from visionchat_serve.errors import ConfigError, ImageError, Unavailable, VisionChatError, from_code

_WAIT = httpx.Timeout(connect=5, read=30, write=60, pool=5)  # the server sends a sign of life every 10 s
_TELLING = 0.01  # seconds; pieces that came closer together came at once, and say nothing about the speed


@dataclass(slots=True)
class Timing:
    """Of one answer, in seconds; `tokens` as the server counted them."""

    first_token: float | None = None
    total: float = 0.0  # until the last piece of text
    tokens: int = 0

    def note_text(self, after: float) -> None:
        """A piece of text came `after` so many seconds."""
        self.first_token = after if self.first_token is None else self.first_token
        self.total = after

    @property
    def tokens_per_second(self) -> float | None:
        """Speed after the first token, None for answers that are too short or came at once."""
        if self.first_token is None or self.tokens < 2 or self.total - self.first_token < _TELLING:
            return None
        return (self.tokens - 1) / (self.total - self.first_token)


def base_url(text: str) -> str:
    """A server's address as people write it: without `http://`, or with the `/v1` that OpenAI's clients want.

    Raises `ConfigError` for what is none.
    """
    try:
        url = httpx.URL(text if "://" in text else f"http://{text}")
    except httpx.InvalidURL as error:
        raise ConfigError(f"{text!r} is not the address of a server: {error}") from error
    if url.scheme not in ("http", "https") or not url.host:
        raise ConfigError(f"{text!r} is not the address of a server, such as http://127.0.0.1:8000")
    path = url.path.rstrip("/").removesuffix("/v1")
    return str(url.copy_with(path=path or "/", query=None, fragment=None)).rstrip("/")


def is_up(url: str) -> bool:
    """Whether a VisionChat server answers there."""
    try:
        return bool(httpx.get(f"{url}/healthz", timeout=2).json() == {"status": "ok"})
    except (httpx.HTTPError, ValueError):
        return False


def data_url(picture: Path) -> str:
    """The file as a data: URL. It names no type: the server looks at the bytes, and a wrong file name must not
    matter."""
    return f"data:application/octet-stream;base64,{base64.b64encode(picture.read_bytes()).decode()}"


def ask(
    url: str,
    pictures: Sequence[Path],
    question: str,
    timing: Timing,
    *,
    api_key: str | None = None,
    **sampling: Any,
) -> Iterator[str]:
    """Stream the answer's text; fills `timing`. Raises `VisionChatError` with the server's message, and the place in
    the request that it is about as `param`; `Unavailable` when no server answers."""
    content: list[dict[str, Any]] = [
        {"type": "image_url", "image_url": {"url": data_url(picture)}} for picture in pictures
    ]
    content.append({"type": "text", "text": question})
    headers = {"Authorization": f"Bearer {api_key}"} if api_key else {}
    with _reaching(url), _naming(pictures), httpx.Client(base_url=url, headers=headers, timeout=_WAIT) as http:
        models = _checked(http.get("/v1/models")).get("data")
        if not models:
            raise VisionChatError(f"what answers at {url} is not VisionChat: it names no model at /v1/models")
        body = {
            "model": models[0]["id"],
            "messages": [{"role": "user", "content": content}],
            "stream": True,
            "stream_options": {"include_usage": True},
        } | sampling
        yield from _stream(http, body, timing)


@contextmanager
def _reaching(url: str) -> Iterator[None]:
    try:
        yield
    except (httpx.ConnectError, httpx.ConnectTimeout) as error:
        raise Unavailable(f"no server answers at {url}; start one with `visionchat serve`") from error
    except httpx.TimeoutException as error:
        raise Unavailable(f"the server at {url} does not answer any more") from error
    except httpx.TransportError as error:
        raise Unavailable(f"the connection to {url} broke off: {error}") from error


@contextmanager
def _naming(pictures: Sequence[Path]) -> Iterator[None]:
    """The server knows a picture by its place in the request, people by its file."""
    try:
        yield
    except ImageError as error:
        files = {f"messages.0.content.{at}.image_url": picture for at, picture in enumerate(pictures)}
        if error.param not in files:
            raise
        raise type(error)(f"{files[error.param]}: {error.message.removeprefix(f'{error.param}: ')}") from error


def _stream(http: httpx.Client, body: dict[str, Any], timing: Timing) -> Iterator[str]:
    began = time.monotonic()
    with http.stream("POST", "/v1/chat/completions", json=body) as response:
        if response.status_code != 200:
            response.read()
            _checked(response)
        for event in _events(response):
            tokens, text = _read(event)
            timing.tokens = tokens or timing.tokens
            if text:
                timing.note_text(time.monotonic() - began)
                yield text


def _read(event: dict[str, Any]) -> tuple[int | None, str]:
    """How many tokens were written, where it is told, and the text."""
    try:
        text = "".join(choice["delta"].get("content") or "" for choice in event["choices"])
        return event["usage"]["completion_tokens"] if event.get("usage") else None, text
    except (TypeError, KeyError, AttributeError) as error:
        raise _no_stream() from error


def _no_stream() -> VisionChatError:
    return VisionChatError("what the server sends is not a stream of chat completions; is it a VisionChat server?")


def _events(response: httpx.Response) -> Iterator[dict[str, Any]]:
    for line in response.iter_lines():
        if line == "data: [DONE]":
            return
        if line.startswith("data: "):
            yield _event(line[6:])
    raise VisionChatError("the server closed the stream before the answer was complete")


def _event(data: str) -> dict[str, Any]:
    try:
        event = json.loads(data)
    except ValueError as error:
        raise _no_stream() from error
    if not isinstance(event, dict):
        raise _no_stream()
    if isinstance(event.get("error"), dict) and "message" in event["error"]:
        raise _error(event["error"])
    return event


def _checked(response: httpx.Response) -> dict[str, Any]:
    body = _object(response)
    if response.status_code == 200:
        return body
    error = body.get("error")
    if isinstance(error, dict) and "message" in error:
        raise _error(error)
    raise VisionChatError(f"{response.url} {_foreign_answer(response)}; is that the address of a VisionChat server?")


def _foreign_answer(response: httpx.Response) -> str:
    """What another server said, in words: its page is made for browsers."""
    status = f"answered {response.status_code} {response.reason_phrase}".rstrip()
    text = " ".join(response.text.split())
    is_plain = text and "<" not in text and response.headers.get("content-type", "text/plain").startswith("text/plain")
    return f"{status}: {text[:200]}" if is_plain else status


def _object(response: httpx.Response) -> dict[str, Any]:
    """The JSON object in an answer; empty when it holds something else, as other servers' pages do."""
    try:
        body = response.json()
    except ValueError:
        return {}
    return body if isinstance(body, dict) else {}


def _error(form: dict[str, Any]) -> VisionChatError:
    """From OpenAI's form."""
    param = form.get("param")
    return from_code(str(form.get("code")), str(form["message"]), str(param) if param is not None else None)
