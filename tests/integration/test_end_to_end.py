"""The whole product over HTTP: real Redis, real Ray, the real tiny model, the official client."""

from __future__ import annotations

import base64
import concurrent.futures
import io
import json
import os
import signal
import socket
import time
from pathlib import Path
from typing import Any, Literal

import httpx
import openai
import pydantic
import pytest
from PIL import Image, ImageDraw

from support.server import Server, alive, running
from support.waiting import wait_until

MODEL = "visionchat-tiny"
FRESH = {"Cache-Control": "no-cache"}  # by the model, not from the result cache


def draw(colour: str, shape: str) -> str:
    """One shape on white as a data: URL."""
    image = Image.new("RGB", (256, 256), "white")
    pen = ImageDraw.Draw(image)
    box = (60, 60, 196, 196)
    pen.ellipse(box, fill=colour) if shape == "circle" else pen.rectangle(box, fill=colour)
    data = io.BytesIO()
    image.save(data, "PNG")
    return "data:image/png;base64," + base64.b64encode(data.getvalue()).decode()


def messages(question: str, *urls: str) -> Any:
    content: list[dict[str, Any]] = [{"type": "image_url", "image_url": {"url": url}} for url in urls]
    return [{"role": "user", "content": [*content, {"type": "text", "text": question}]}]


def ask(client: openai.OpenAI, question: str, *urls: str, **more: Any) -> str:
    answer = client.chat.completions.create(model=MODEL, messages=messages(question, *urls), **more)
    return answer.choices[0].message.content or ""


def test_true_answers_whole_and_streamed(client: openai.OpenAI) -> None:
    for colour in ("red", "green", "blue"):
        picture = draw(colour, "circle")
        assert colour in ask(client, "What colour is the circle?", picture).lower()
        stream = client.chat.completions.create(
            model=MODEL,
            messages=messages("What colour is the circle?", picture),
            stream=True,
            stream_options={"include_usage": True},
        )
        chunks = list(stream)
        text = "".join(c.choices[0].delta.content or "" for c in chunks if c.choices)
        assert colour in text.lower()
        assert chunks[-1].usage is not None
        assert chunks[-1].usage.completion_tokens > 0


def test_sampling_with_a_seed_repeats_itself(client: openai.OpenAI) -> None:
    picture = draw("red", "square")
    answers = {
        ask(client, "Describe the picture.", picture, temperature=1.5, seed=7, max_tokens=12, extra_headers=FRESH)
        for _ in range(3)
    }
    assert len(answers) == 1


async def test_a_second_question_about_a_picture_finds_it_known(client: openai.OpenAI, server: Server) -> None:
    picture = draw("orange", "square")
    assert "orange" in ask(client, "What colour is the square?", picture).lower()
    assert "square" in ask(client, "Which shape do you see?", picture).lower()
    async with httpx.AsyncClient() as http:

        async def counted() -> bool:
            page = (await http.get(f"{server.url}/metrics")).text
            known = [line for line in page.splitlines() if line.startswith("visionchat_picture_cache_hits_total{")]
            return any(float(line.split()[-1]) >= 1 for line in known)

        await wait_until(counted, "a replica counts it")


def test_limits_and_stop_strings(client: openai.OpenAI) -> None:
    picture = draw("red", "square")
    whole = ask(client, "Describe the picture.", picture, temperature=0)
    short = client.chat.completions.create(
        model=MODEL, messages=messages("Describe the picture.", picture), temperature=0, max_tokens=1
    )
    assert short.choices[0].finish_reason == "length"
    assert short.usage is not None
    assert short.usage.completion_tokens == 1
    word = whole.split()[1]
    assert ask(client, "Describe the picture.", picture, temperature=0, stop=word) == whole[: whole.index(word)]


def test_an_answer_that_keeps_to_a_schema(client: openai.OpenAI) -> None:
    """Whole, streamed and through the client's own parsing into a pydantic model."""

    class Thing(pydantic.BaseModel):
        model_config = pydantic.ConfigDict(extra="forbid")
        shape: Literal["circle", "square"]
        colour: Literal["red", "green", "blue"]
        count: int = pydantic.Field(ge=0, le=5)

    schema = {"name": "thing", "schema": Thing.model_json_schema(), "strict": True}
    asked: Any = {
        "model": MODEL,
        "messages": messages("Describe the picture.", draw("red", "circle")),
        "response_format": {"type": "json_schema", "json_schema": schema},
        "max_tokens": 100,
    }
    for temperature in (0, 1.5):
        whole = client.chat.completions.create(**asked, temperature=temperature, seed=3)
        assert whole.choices[0].finish_reason == "stop"
        thing = Thing.model_validate_json(whole.choices[0].message.content or "")
        with client.chat.completions.create(**asked, temperature=temperature, seed=3, stream=True) as stream:
            text = "".join(chunk.choices[0].delta.content or "" for chunk in stream)
        assert Thing.model_validate_json(text) == thing
    parsed = client.chat.completions.parse(
        model=MODEL, messages=asked["messages"], response_format=Thing, max_tokens=100
    )
    assert isinstance(parsed.choices[0].message.parsed, Thing)
    bad = {"type": "json_schema", "json_schema": {"name": "x", "schema": {"type": "banana"}}}
    with pytest.raises(openai.BadRequestError, match="cannot be used") as caught:
        client.chat.completions.create(**(asked | {"response_format": bad}))
    assert caught.value.param == "response_format.json_schema.schema"


def test_several_answers_with_log_probabilities(client: openai.OpenAI) -> None:
    asked: Any = {
        "model": MODEL,
        "messages": messages("Describe the picture.", draw("blue", "square")),
        "n": 3,
        "logprobs": True,
        "top_logprobs": 2,
        "max_tokens": 8,
        "temperature": 1.8,
        "seed": 11,
        "presence_penalty": 0.3,
        "frequency_penalty": 0.3,
        "user": "ana",
    }
    whole = client.chat.completions.create(**asked)
    assert [choice.index for choice in whole.choices] == [0, 1, 2]
    said = [choice.message.content for choice in whole.choices]
    assert len(set(said)) > 1, "each has a seed of its own"
    for choice in whole.choices:
        assert choice.logprobs is not None
        tokens = choice.logprobs.content or []
        assert b"".join(bytes(token.bytes or []) for token in tokens).decode(errors="replace") == choice.message.content
        assert all(len(token.top_logprobs) == 2 and token.logprob <= 0 for token in tokens)
    streamed = {0: "", 1: "", 2: ""}
    ends: dict[int, str] = {}
    for chunk in client.chat.completions.create(**asked, stream=True):
        for part in chunk.choices:
            streamed[part.index] += part.delta.content or ""
            ends |= {part.index: part.finish_reason} if part.finish_reason else {}
    assert list(streamed.values()) == said
    assert ends == {choice.index: choice.finish_reason for choice in whole.choices}


def test_what_is_not_supported_is_refused_by_name(client: openai.OpenAI) -> None:
    tool: Any = {"type": "function", "function": {"name": "f", "parameters": {}}}
    for param, value in {"tools": [tool], "logit_bias": {"5": 1}, "audio": {"voice": "x", "format": "wav"}}.items():
        with pytest.raises(openai.BadRequestError, match="not supported") as caught:
            client.chat.completions.create(model=MODEL, messages=messages("hi"), **{param: value})
        assert caught.value.param == param


def test_models_health_and_readiness(server: Server, client: openai.OpenAI) -> None:
    assert [model.id for model in client.models.list()] == [MODEL]
    assert httpx.get(f"{server.url}/healthz").json() == {"status": "ok"}
    assert httpx.get(f"{server.url}/readyz").json() == {"ready": True, "replicas": 1}
    assert "visionchat_time_to_first_token_seconds_bucket" in httpx.get(f"{server.url}/metrics").text


def test_errors_reach_the_official_client_in_its_own_form(client: openai.OpenAI) -> None:
    with pytest.raises(openai.NotFoundError):
        client.chat.completions.create(model="gpt-4o", messages=messages("hi"))
    with pytest.raises(openai.BadRequestError, match="not supported"):
        client.chat.completions.create(model=MODEL, messages=messages("hi"), extra_body={"bananas": 1})
    with pytest.raises(openai.APIStatusError) as caught:
        ask(client, "hi", "data:image/png;base64," + base64.b64encode(b"no picture").decode())
    assert caught.value.status_code == 415
    with pytest.raises(openai.BadRequestError) as long:
        ask(client, "word " * 20_000)
    assert long.value.code == "context_length_exceeded"


def test_eight_clients_at_once_in_order_and_a_quick_health_check(server: Server, client: openai.OpenAI) -> None:
    """All are answered rightly, the first to come is the first to be answered, and /healthz stays quick."""
    colours = ["red", "green", "blue", "yellow"] * 2
    order: list[int] = []

    def one(number: int) -> str:
        text = ask(client, "What colour is the circle?", draw(colours[number], "circle"))
        order.append(number)
        return text

    with concurrent.futures.ThreadPoolExecutor(8) as pool, httpx.Client(base_url=server.url) as health:
        asked = []
        for number in range(8):
            asked.append(pool.submit(one, number))
            waited_for = number
            deadline = time.monotonic() + 10
            while _accepted(health) < waited_for + 1 - len(order) and time.monotonic() < deadline:
                time.sleep(0.002)
        slowest = 0.0
        while not all(future.done() for future in asked):
            began = time.monotonic()
            assert health.get("/healthz").status_code == 200
            slowest = max(slowest, time.monotonic() - began)
        answers = [future.result() for future in asked]
    assert all(colour in text.lower() for colour, text in zip(colours, answers, strict=True)), answers
    assert order == sorted(order)
    assert slowest < 0.05


def _accepted(http: httpx.Client) -> int:
    """Jobs that the queue holds now."""
    page = http.get("/metrics").text
    depth = [line for line in page.splitlines() if line.startswith("visionchat_queue_depth{")]
    return int(sum(float(line.split()[-1]) for line in depth))


def test_a_client_that_hangs_up_frees_the_replica(server: Server, client: openai.OpenAI) -> None:
    stream = client.chat.completions.create(
        model=MODEL, messages=messages("Describe the picture.", draw("red", "circle")), stream=True, max_tokens=4000,
        extra_body={"repetition_penalty": 1.9}, temperature=2,
    )  # fmt: skip
    next(iter(stream))
    stream.close()
    assert "blue" in ask(client, "What colour is the square?", draw("blue", "square")).lower()


def test_a_slow_sender_holds_up_nobody(server: Server, client: openai.OpenAI) -> None:
    host, port = server.url.removeprefix("http://").split(":")
    with socket.create_connection((host, int(port))) as slow:
        slow.sendall(b"POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nContent-Length: 1000000\r\n\r\n{")
        assert "red" in ask(client, "What colour is the circle?", draw("red", "circle")).lower()


def test_kill_minus_9_of_the_replica_loses_no_answer(tmp_path: Path) -> None:
    """Jobs in flight and in the queue are taken over by the next replica; the open stream goes on or says why not."""
    flags = {"VISIONCHAT_LEASE_SECONDS": "2"}
    with running(tmp_path, environ=flags) as server, concurrent.futures.ThreadPoolExecutor(6) as pool:
        client = openai.OpenAI(base_url=f"{server.url}/v1", api_key="unused", max_retries=0, timeout=120)
        (replica,) = server.children_named("ray::ServeReplica:visionchat:Model")
        picture = draw("green", "circle")
        asked = [pool.submit(ask, client, "What colour is the circle?", picture) for _ in range(5)]
        streamed = pool.submit(_read_stream, server.url, picture)
        with httpx.Client(base_url=server.url) as http:
            deadline = time.monotonic() + 10
            while _accepted(http) == 0 and time.monotonic() < deadline:
                time.sleep(0.001)
        os.kill(replica, signal.SIGKILL)
        assert all("green" in future.result(timeout=110).lower() for future in asked)
        text, error, done = streamed.result(timeout=110)
        assert (done and "green" in text.lower()) or error
        client.close()


def _read_stream(url: str, picture: str) -> tuple[str, Any, bool]:
    """Text, error event and whether `[DONE]` came."""
    body = {"model": MODEL, "messages": messages("What colour is the circle?", picture), "stream": True}
    text, error, done = "", None, False
    with httpx.stream("POST", f"{url}/v1/chat/completions", json=body, timeout=110) as response:
        for line in response.iter_lines():
            if line == "data: [DONE]":
                done = True
            elif line.startswith("data: "):
                event = json.loads(line[6:])
                error = event.get("error") or error
                for choice in event.get("choices", []):
                    text += choice["delta"].get("content") or ""
    return text, error, done


def test_sigterm_ends_everything_and_leaves_nothing_running(tmp_path: Path) -> None:
    with running(tmp_path) as server:
        family = [server.process.pid, *server.children()]
        assert len(family) > 3
        assert server.stop() == 0
        left = [pid for pid in family if alive(pid)]
        deadline = time.monotonic() + 10
        while left and time.monotonic() < deadline:
            left = [pid for pid in left if alive(pid)]
        assert left == []
        with pytest.raises(httpx.ConnectError):
            httpx.get(f"{server.url}/healthz")
