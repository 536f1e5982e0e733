"""The HTTP API over the in-memory queue and a scripted engine, without sockets."""

from __future__ import annotations

import asyncio
import base64
import io
import json
from collections.abc import AsyncIterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import httpx
import pytest
from PIL import Image

from support import asgi
from support.house import open_house
from support.scripted_engine import ScriptedEngine, loader
from support.waiting import wait_until
from visionchat_serve import replica
from visionchat_serve.affinity import affinity
from visionchat_serve.api_keys import new_key
from visionchat_serve.broker import BrokerPolicy
from visionchat_serve.config import Settings
from visionchat_serve.errors import ContextTooLong, Unavailable
from visionchat_serve.intake import parse
from visionchat_serve.memory_broker import MemoryBroker
from visionchat_serve.replica import Replica
from visionchat_serve.routes import create_app
from visionchat_serve.schemas import ChatCompletionRequest

MODEL = "visionchat-tiny"


def picture(width: int = 64, height: int = 64) -> str:
    data = io.BytesIO()
    Image.new("RGB", (width, height), "red").save(data, "PNG")
    return "data:image/png;base64," + base64.b64encode(data.getvalue()).decode()


def chat(text: str, *pictures: str, **fields: Any) -> dict[str, Any]:
    content: list[dict[str, Any]] = [{"type": "image_url", "image_url": {"url": url}} for url in pictures]
    content.append({"type": "text", "text": text})
    return {"model": MODEL, "messages": [{"role": "user", "content": content}], **fields}


SCHEMA = "response_format.json_schema.schema"


def schema(content: dict[str, Any]) -> dict[str, Any]:
    return {"type": "json_schema", "json_schema": {"name": "thing", "schema": content}}


class House:
    """A gateway with `replicas` behind it."""

    def __init__(self) -> None:
        self.broker = MemoryBroker(BrokerPolicy(max_waiting=3))
        self.engine = ScriptedEngine()
        self.settings = Settings(max_body_bytes=100_000, max_images=2)
        self.app: Any = None

    async def post(self, body: Any, **more: Any) -> httpx.Response:
        return await self.http.post("/v1/chat/completions", json=body, **more)


@pytest.fixture
async def house() -> AsyncIterator[House]:
    house = House()
    app = house.app = create_app(house.settings, lambda: house.broker)
    replica = Replica(loader(house.engine), house.broker, "r1", (0,), claim_wait=timedelta(milliseconds=20))
    async with app.router.lifespan_context(app):
        await replica.start()
        transport = httpx.ASGITransport(app, raise_app_exceptions=False)
        async with httpx.AsyncClient(transport=transport, base_url="http://gateway") as house.http:
            yield house
        house.engine.release.set()
        await replica.drain(timedelta(seconds=5))


def events(response: httpx.Response) -> list[Any]:
    lines = [line for line in response.text.split("\n\n") if line.startswith("data: ")]
    assert lines[-1] == "data: [DONE]"
    return [json.loads(line[6:]) for line in lines[:-1]]


async def test_a_whole_answer(house: House) -> None:
    response = await house.post(chat("a red square", picture()))
    assert response.status_code == 200
    body = response.json()
    assert body["choices"][0]["message"]["content"] == "a red square"
    assert body["choices"][0]["finish_reason"] == "stop"
    assert body["usage"] == {
        "prompt_tokens": 3,
        "completion_tokens": 3,
        "total_tokens": 6,
        "prompt_tokens_details": {"cached_tokens": 0, "image_tokens": 1},
    }


async def test_a_streamed_answer(house: House) -> None:
    response = await house.post(chat("a red square", stream=True, stream_options={"include_usage": True}))
    assert response.headers["content-type"].startswith("text/event-stream")
    *chunks, usage = events(response)
    assert chunks[0]["choices"][0]["delta"]["role"] == "assistant"
    assert "".join(c["choices"][0]["delta"].get("content", "") for c in chunks) == "a red square"
    assert chunks[-1]["choices"][0]["finish_reason"] == "stop"
    assert (usage["choices"], usage["usage"]["total_tokens"]) == ([], 6)


async def test_the_engine_sees_messages_and_pictures_in_their_order(house: House) -> None:
    body = chat("what?", picture(), picture(32, 48))
    body["messages"].insert(0, {"role": "developer", "content": "Be brief."})
    await house.post(body)
    (seen,) = house.engine.seen
    assert [m.role for m in seen.messages] == ["system", "user"]
    assert [p.kind for p in seen.messages[1].parts] == ["image", "image", "text"]
    assert [Image.open(io.BytesIO(i)).size for i in seen.images] == [(64, 64), (32, 48)]


async def test_every_job_has_a_seed_so_that_its_answer_can_be_repeated(house: House) -> None:
    await house.post(chat("hi", seed=7))
    await house.post(chat("hi"))
    await house.post(chat("hi"))
    given, first, second = (request.sampling.seed for request in house.engine.seen)
    assert given == 7
    assert None not in (first, second)
    assert first != second


async def test_several_answers_each_with_a_seed_of_its_own(house: House) -> None:
    body = (await house.post(chat("say !seed", n=3, seed=40))).json()
    assert [(c["index"], c["message"]["content"]) for c in body["choices"]] == [
        (0, "say 40"),
        (1, "say 41"),
        (2, "say 42"),
    ]
    assert body["usage"]["completion_tokens"] == 6
    assert body["usage"]["prompt_tokens"] == 2
    assert body["usage"]["prompt_tokens_details"]["image_tokens"] == 0


async def test_several_answers_in_one_stream(house: House) -> None:
    options = {"stream": True, "stream_options": {"include_usage": True}}
    *chunks, usage = events(await house.post(chat("say !seed", picture(), n=2, seed=7, **options)))
    choices = [chunk["choices"][0] for chunk in chunks]
    for index, text in enumerate(("say 7", "say 8")):
        own = [c for c in choices if c["index"] == index]
        assert own[0]["delta"]["role"] == "assistant"
        assert "".join(c["delta"].get("content", "") for c in own) == text
        assert [c["finish_reason"] for c in own if c["finish_reason"]] == ["stop"]
    assert usage["usage"]["completion_tokens"] == 4
    assert usage["usage"]["prompt_tokens_details"]["image_tokens"] == 1


async def test_when_one_of_several_answers_fails_the_request_fails(house: House) -> None:
    response = await house.post(chat("word " * 101, n=4))
    assert (response.status_code, response.json()["error"]["code"]) == (400, "context_length_exceeded")
    assert (await house.post(chat("next"))).status_code == 200


@pytest.mark.parametrize("stream", [False, True])
async def test_log_probabilities(house: House, stream: bool) -> None:
    response = await house.post(chat("a red square", logprobs=True, stream=stream))
    chunks = events(response) if stream else [response.json()]
    told = [t for c in chunks for t in ((c["choices"][0]["logprobs"] or {}).get("content") or [])]
    assert [(t["token"], t["logprob"], bytes(t["bytes"])) for t in told] == [
        ("a ", -2.0, b"a "),
        ("red ", -4.0, b"red "),
        ("square", -6.0, b"square"),
    ]


async def test_what_was_asked_for_reaches_the_engine(house: House) -> None:
    schema = {"type": "object", "properties": {"colour": {"enum": ["red", "blue"]}}, "required": ["colour"]}
    wanted = {"type": "json_schema", "json_schema": {"name": "thing", "schema": schema}}
    asked = {"presence_penalty": 0.5, "frequency_penalty": -1, "logprobs": True, "top_logprobs": 3, "user": "ana"}
    await house.post(chat("hi", max_tokens=9, max_completion_tokens=5, stop="x", response_format=wanted, **asked))
    await house.post(chat("hi", response_format={"type": "json_object"}))
    first, second = (request.sampling for request in house.engine.seen)
    assert (first.presence_penalty, first.frequency_penalty, first.logprobs) == (0.5, -1, 3)
    assert (first.max_tokens, first.stop) == (5, ("x",))
    assert json.loads(first.json_schema or "") == schema
    assert (json.loads(second.json_schema or ""), second.logprobs) == ({"type": "object"}, None)


async def test_a_job_that_does_not_fit_gets_its_status_also_when_streamed(house: House) -> None:
    for stream in (False, True):
        response = await house.post(chat("word " * 101, stream=stream))
        assert response.status_code == 400
        assert response.json()["error"]["code"] == "context_length_exceeded"
        assert response.json()["error"]["param"] == "messages", "what the engine found at fault is named here as well"


@pytest.mark.parametrize(
    ("body", "status", "code", "param"),
    [
        (chat("hi", model="gpt-4o"), 404, "not_found", "model"),
        (chat("hi", "data:image/png;base64,AAAA"), 415, "unsupported_image_type", "messages.0.content.0.image_url"),
        (chat("hi", picture()[:-40]), 422, "image_unreadable", "messages.0.content.0.image_url"),
        (chat("hi", "https://example.org/cat.jpg"), 400, "invalid_image", "messages.0.content.0.image_url"),
        (chat("hi", *[picture()] * 3), 400, "invalid_request", "messages.0"),
        (chat("hi", bananas=1), 400, "invalid_request", "bananas"),
        (chat("hi", response_format=schema({"type": "banana"})), 400, "invalid_request", SCHEMA),
        (chat("hi", response_format=schema({"not": {"type": "string"}})), 400, "invalid_request", SCHEMA),
        (chat("hi", response_format=schema({"$ref": "http://127.0.0.1/s"})), 400, "invalid_request", SCHEMA),
        (chat("hi", response_format=schema({"$ref": "#/nowhere"})), 400, "invalid_request", SCHEMA),
        (chat("hi", response_format=schema({"pattern": "(", "type": "string"})), 400, "invalid_request", SCHEMA),
        (chat("hi", response_format=schema({"enum": ["x" * 70_000]})), 400, "invalid_request", SCHEMA),
        (chat("hi", tools=[{"type": "function"}]), 400, "invalid_request", "tools"),
        (chat("x" * 200_000), 413, "request_too_large", None),
        ("not an object", 400, "invalid_request", None),
    ],
)
async def test_a_bad_request_is_refused_before_the_queue(
    house: House, body: Any, status: int, code: str, param: str | None
) -> None:
    response = await house.post(body)
    error = response.json()["error"]
    assert (response.status_code, error["code"], error["param"]) == (status, code, param)
    assert error["message"]
    assert (await house.broker.load()).backlog == 0
    assert house.engine.seen == []


async def test_pictures_belong_to_users(house: House) -> None:
    body = chat("hi", picture())
    body["messages"].append({"role": "assistant", "content": body["messages"][0]["content"]})
    response = await house.post(body)
    assert response.status_code == 400
    assert response.json()["error"]["param"] == "messages.1"


async def test_a_full_queue_is_429(house: House) -> None:
    asked = [asyncio.create_task(house.post(chat("!hold"))) for _ in range(3)]

    async def three_asked() -> bool:
        return (await house.broker.load()).backlog == 3

    await wait_until(three_asked, "three wait")
    response = await house.post(chat("one too many"))
    assert response.status_code == 429
    assert int(response.headers["Retry-After"]) >= 1
    assert response.json()["error"]["code"] == "queue_full"
    house.engine.release.set()
    assert [(await one).status_code for one in asked] == [200] * 3


async def test_a_client_that_leaves_cancels_its_job(house: House) -> None:
    asked = asyncio.create_task(house.post(chat("a !hold b")))
    await wait_until(lambda: bool(house.engine.seen), "it runs")
    asked.cancel()
    with pytest.raises(asyncio.CancelledError):
        await asked
    house.engine.release.set()
    response = await house.post(chat("next"))
    assert response.json()["choices"][0]["message"]["content"] == "next"
    assert house.engine.aborted == [house.engine.seen[0].id]


async def test_health_readiness_models_and_metrics(house: House) -> None:
    assert (await house.http.get("/healthz")).json() == {"status": "ok"}
    await wait_until(lambda: bool(house.broker._reports), "the replica reports itself")
    assert (await house.http.get("/readyz")).json() == {"ready": True, "replicas": 1}
    models = (await house.http.get("/v1/models")).json()
    assert [m["id"] for m in models["data"]] == [MODEL]
    assert (await house.http.get(f"/v1/models/{MODEL}")).json()["engine"] == "scripted"
    assert (await house.http.get("/v1/models/other")).status_code == 404
    await house.post(chat("hi"))
    page = (await house.http.get("/metrics")).text
    for line in ('visionchat_requests_total{outcome="ok"} 1.0', 'visionchat_queue_depth{state="waiting"} 0.0'):
        assert line in page


@pytest.fixture
def quick_reports(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(replica, "REPORT", timedelta(milliseconds=50))


@pytest.mark.usefixtures("quick_reports")
async def test_a_known_picture_is_told_and_counted(house: House) -> None:
    questions = [chat("one", picture()), chat("two", picture(), picture(65)), chat("three", picture(66))]
    usages = [(await house.post(question)).json()["usage"] for question in questions]
    assert [usage["prompt_tokens_details"]["cached_tokens"] for usage in usages] == [0, 1, 0]

    async def counted() -> bool:
        page = (await house.http.get("/metrics")).text
        return all(
            f'visionchat_{name}_total{{replica="r1"}} {count}.0' in page
            for name, count in (("picture_cache_hits", 1), ("picture_cache_misses", 3), ("cached_prompt_tokens", 1))
        )

    await wait_until(counted, "the replica reports it")


async def test_questions_about_one_picture_go_together(house: House) -> None:
    """To the replica that has it in memory; without a picture anywhere."""
    for question in (chat("1", picture()), chat("2", picture(), picture(65)), chat("3", picture(65)), chat("4")):
        await house.post(question)
    jobs = [entry.job for entry in house.broker._jobs.known.values()]
    assert jobs[0].affinity == jobs[1].affinity != ""
    assert jobs[2].affinity not in ("", jobs[0].affinity)
    assert jobs[3].affinity == ""
    [image] = house.engine.seen[0].images
    assert affinity("ana", [image]) not in (affinity("bob", [image]), affinity("", [image]))


async def test_not_ready_without_a_queue_or_a_replica(house: House, monkeypatch: pytest.MonkeyPatch) -> None:
    async def nobody() -> list[Any]:
        return []

    monkeypatch.setattr(house.broker, "reports", nobody)
    response = await house.http.get("/readyz")
    assert (response.status_code, response.json()["reason"]) == (503, "no_replica")

    async def away() -> None:
        raise Unavailable("the queue is away")

    monkeypatch.setattr(house.broker, "ping", away)
    response = await house.http.get("/readyz")
    assert (response.status_code, response.json()["reason"]) == (503, "service_unavailable")


async def test_request_ids(house: House) -> None:
    given = await house.http.get("/healthz", headers={"X-Request-Id": "my-id.1"})
    made = await house.http.get("/healthz", headers={"X-Request-Id": "bad id\twith spaces"})
    assert given.headers["x-request-id"] == "my-id.1"
    assert made.headers["x-request-id"].startswith("req-")
    assert made.headers["x-content-type-options"] == "nosniff"


async def test_api_keys_guard_the_api_and_nothing_else(tmp_path: Path) -> None:
    key, line = new_key("ana")
    (tmp_path / "keys").write_text(line)
    app = create_app(Settings(api_keys_file=tmp_path / "keys"), MemoryBroker)
    transport = httpx.ASGITransport(app, raise_app_exceptions=False)
    async with (
        app.router.lifespan_context(app),
        httpx.AsyncClient(transport=transport, base_url="http://gateway") as http,
    ):
        assert (await http.get("/healthz")).status_code == 200
        assert (await http.get("/v1/models", headers={"Authorization": f"Bearer {key}"})).status_code == 200
        for headers in ({}, {"Authorization": "Bearer vc-wrong"}, {"Authorization": f"Basic {key}"}):
            response = await http.post("/v1/chat/completions", json=chat("hi"), headers=headers)
            assert response.status_code == 401
            assert response.headers["www-authenticate"] == "Bearer"
            assert response.json()["error"]["code"] == "invalid_api_key"


async def test_pages_of_allowed_origins_may_ask() -> None:
    app = create_app(Settings(cors_origins=("https://team.example",)), MemoryBroker)
    ask = {"Access-Control-Request-Method": "POST", "Access-Control-Request-Headers": "authorization"}
    async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://gateway") as http:
        for origin, allowed in (("https://team.example", "https://team.example"), ("https://evil.example", None)):
            response = await http.options("/v1/chat/completions", headers={"Origin": origin, **ask})
            assert response.headers.get("access-control-allow-origin") == allowed


async def test_unknown_pages_and_methods_keep_the_form(house: House) -> None:
    assert (await house.http.get("/v1/nothing")).json()["error"]["code"] == "not_found"
    response = await house.http.get("/v1/chat/completions")
    assert (response.status_code, response.json()["error"]["type"]) == (405, "invalid_request_error")


async def test_a_refusal_does_not_repeat_a_long_field(house: House) -> None:
    for body in (chat("hi", **{"x" * 50_000: 1}), chat("hi", model="x" * 50_000)):
        error = (await house.post(body)).json()["error"]
        assert len(error["message"]) < 1100
        assert len(error["param"]) < 300
        assert error["message"].endswith(("leave it out", "use 'visionchat-tiny'"))


async def test_text_that_cannot_fit_is_refused_before_the_queue() -> None:
    settings = Settings(max_context=64)
    fits = json.dumps(chat("x" * 64 * 128)).encode()
    parse(fits, settings, ChatCompletionRequest)
    with pytest.raises(ContextTooLong):
        parse(fits.replace(b'"x', b'"xx'), settings, ChatCompletionRequest)


async def test_a_client_that_leaves_while_sending_is_no_fault_of_ours(house: House) -> None:
    connection = asgi.Connection(house.app, asgi.scope("http", "/v1/chat/completions", {}) | {"method": "POST"})
    connection.say(type="http.request", body=b"{", more_body=True)
    await connection.close(type="http.disconnect")
    assert "engine_failure" not in (await house.http.get("/metrics")).text


async def test_a_fault_of_ours_is_a_500_in_the_form(house: House, monkeypatch: pytest.MonkeyPatch) -> None:
    async def broken(*_: Any) -> None:
        raise ZeroDivisionError

    monkeypatch.setattr(house.broker, "ask", broken)
    response = await house.post(chat("hi"))
    assert (response.status_code, response.json()["error"]["code"]) == (500, "engine_failure")


async def test_the_api_description_holds_the_request(house: House) -> None:
    page = (await house.http.get("/openapi.json")).json()
    schema = page["paths"]["/v1/chat/completions"]["post"]["requestBody"]["content"]["application/json"]["schema"]
    assert "messages" in schema["properties"]
    assert "ChatMessage" in page["components"]["schemas"]
    assert (await house.http.get("/docs")).status_code == 200


@pytest.mark.parametrize(
    ("site", "origin", "allowed", "status"),
    [
        ("cross-site", "https://evil.example", (), 403),
        ("same-site", "https://other.example", (), 403),
        ("cross-site", "https://evil.example", ("https://good.example",), 403),
        ("cross-site", "https://good.example", ("https://good.example",), 200),
        ("cross-site", "https://any.example", ("*",), 200),
        ("same-origin", "http://gateway", (), 200),
        ("none", None, (), 200),
    ],
)
async def test_pages_of_other_sites_do_not_ask_in_ones_own_name(
    site: str, origin: str | None, allowed: tuple[str, ...], status: int
) -> None:
    async with open_house(MemoryBroker(), Settings(cors_origins=allowed)) as house:
        await house.start_replica()
        headers = {"Sec-Fetch-Site": site, "Content-Type": "text/plain", **({"Origin": origin} if origin else {})}
        response = await house.http.post("/v1/chat/completions", json=chat("a"), headers=headers)
        assert response.status_code == status
        assert status == 200 or response.json()["error"]["code"] == "cross_site"
