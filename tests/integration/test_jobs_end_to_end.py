"""The jobs API of the whole product: real Redis, real Ray, the real tiny model, over real sockets."""

from __future__ import annotations

import json
from typing import Any

import httpx
import openai
import pytest
from websockets.exceptions import InvalidStatus
from websockets.sync.client import connect

from support.server import Server

MODEL = "visionchat-tiny"
LONG: Any = {"response_format": {"type": "json_object"}}  # the tiny model does not know how to end one


def chat(text: str, **fields: Any) -> dict[str, Any]:
    return {"model": MODEL, "messages": [{"role": "user", "content": text}], "max_tokens": 12, **fields}


@pytest.fixture
def http(server: Server) -> Any:
    with httpx.Client(base_url=server.url, timeout=60) as http:
        yield http


def follow(http: httpx.Client, job_id: str, after: str = "0") -> list[dict[str, str]]:
    """The durable events."""
    with http.stream("GET", f"/v1/jobs/{job_id}/events", headers={"Last-Event-ID": after}) as response:
        assert response.headers["content-type"].startswith("text/event-stream")
        blocks = response.read().decode().split("\n\n")
    return [dict(line.split(": ", 1) for line in b.split("\n")) for b in blocks if b.startswith("id: ")]


def test_a_job_over_http_and_websocket(server: Server, http: httpx.Client) -> None:
    response = http.post("/v1/jobs", json=chat("What can you see?", seed=1), headers={"Cache-Control": "no-cache"})
    assert response.status_code == 202
    assert response.headers["x-visionchat-cache"] == "bypass"
    job_id = response.json()["id"]
    events = follow(http, job_id)
    text = "".join(json.loads(e["data"])["text"] for e in events if e["event"] == "text")
    job = http.get(response.headers["location"]).json()
    assert (job["status"], job["text"]) == ("succeeded", text)
    assert job["completion"]["choices"][0]["message"]["content"] == text
    assert follow(http, job_id, events[0]["id"]) == events[1:]
    done = http.get(f"/v1/jobs/{job_id}/events", headers={"Last-Event-ID": events[-1]["id"]})
    assert done.status_code == 204

    url = f"{server.url.replace('http', 'ws', 1)}/v1/jobs/{job_id}/events"
    with connect(url) as socket:
        messages = [json.loads(message) for message in socket]
    assert [(m["event"], m["id"]) for m in messages] == [(e["event"], e["id"]) for e in events]
    with pytest.raises(InvalidStatus) as refused, connect(url.replace(job_id, "nobody")):
        pass
    assert refused.value.response.status_code == 404


def test_a_repeated_question_is_a_hit(http: httpx.Client) -> None:
    ask = chat("What colour is grass?", temperature=0)
    first, again = (http.post("/v1/chat/completions", json=ask) for _ in range(2))
    assert (first.headers["x-visionchat-cache"], again.headers["x-visionchat-cache"]) == ("miss", "hit")
    assert first.json()["choices"] == again.json()["choices"]


def test_a_job_can_be_cancelled(http: httpx.Client) -> None:
    before = [
        http.post("/v1/jobs", json=chat("Tell me a story.", max_tokens=200, **LONG)).json()["id"] for _ in range(20)
    ]
    last = http.post("/v1/jobs", json=chat("Tell me another.")).json()["id"]
    for job_id in reversed([*before, last]):
        assert http.delete(f"/v1/jobs/{job_id}").status_code == 200
    assert follow(http, last)[-1]["event"] == "cancelled"


def test_the_official_client_sends_a_key_again(client: openai.OpenAI) -> None:
    ask: dict[str, Any] = {"model": MODEL, "messages": [{"role": "user", "content": "Hello"}], "max_tokens": 8}
    first, again = (
        client.chat.completions.create(**ask, extra_headers={"Idempotency-Key": "client-1"}) for _ in range(2)
    )
    assert first == again
    with pytest.raises(openai.UnprocessableEntityError):
        client.chat.completions.create(**ask | {"max_tokens": 9}, extra_headers={"Idempotency-Key": "client-1"})
