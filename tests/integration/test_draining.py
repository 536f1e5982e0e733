"""A server that is told to stop ends what it has begun: the client gets its whole answer."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import httpx

from support.server import running

# An answer of some seconds, whatever the model would rather say: so many items are not said in so few tokens.
TOKENS = 600
LONG: dict[str, Any] = {"type": "array", "items": {"enum": ["red", "blue", "green"]}, "minItems": TOKENS}
BODY: dict[str, Any] = {
    "model": "visionchat-tiny",
    "stream": True,
    "stream_options": {"include_usage": True},
    "temperature": 0,
    "max_tokens": TOKENS,
    "messages": [{"role": "user", "content": "Which colours are there?"}],
    "response_format": {"type": "json_schema", "json_schema": {"name": "colours", "schema": LONG}},
}


def test_sigterm_lets_the_job_in_hand_end(tmp_path: Path) -> None:
    with running(tmp_path) as server, httpx.Client(timeout=90) as http:
        with http.stream("POST", f"{server.url}/v1/chat/completions", json=BODY) as answer:
            lines = (line for line in answer.iter_lines() if line.startswith("data: "))
            read = [next(lines), next(lines)]
            server.process.terminate()
            read += lines
        assert server.process.wait(60) == 0
    assert read[-1] == "data: [DONE]"
    chunks = [json.loads(line.removeprefix("data: ")) for line in read[:-1]]
    assert chunks[-1]["usage"]["completion_tokens"] == TOKENS
    assert chunks[-2]["choices"][0]["finish_reason"] == "length"
    assert "".join(chunk["choices"][0]["delta"].get("content") or "" for chunk in chunks[:-1]).startswith("[")
