"""Other people's clients work unchanged: a LangChain chat model, and curl."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal

import pydantic
import pytest
from langchain_core.messages import AIMessage, HumanMessage
from langchain_core.prompts import ChatPromptTemplate
from langchain_openai import ChatOpenAI

from integration.test_end_to_end import FRESH, MODEL, draw, messages
from support.server import Server


class Thing(pydantic.BaseModel):
    """What is in the picture."""

    shape: Literal["circle", "square"]
    colour: Literal["red", "green", "blue"]


@pytest.fixture
def chat_model(server: Server) -> ChatOpenAI:
    key = pydantic.SecretStr("unused")
    return ChatOpenAI(
        model=MODEL, base_url=f"{server.url}/v1", api_key=key, max_retries=0, timeout=60, stream_usage=True
    )


def question(text: str, picture: str) -> HumanMessage:
    return HumanMessage([{"type": "text", "text": text}, {"type": "image_url", "image_url": {"url": picture}}])


def test_langchain_asks_about_a_picture(chat_model: ChatOpenAI) -> None:
    asked = question("What colour is the circle?", draw("red", "circle"))
    answer = chat_model.invoke([asked])
    assert isinstance(answer, AIMessage)
    assert "red" in answer.text.lower()
    assert answer.usage_metadata is not None
    assert answer.usage_metadata["input_tokens"] > 0
    assert answer.response_metadata["finish_reason"] == "stop"
    again = chat_model.invoke([asked, answer, HumanMessage("What shape is red?")])
    assert again.text


def test_langchain_streams(chat_model: ChatOpenAI) -> None:
    asked = [question("What colour is the square?", draw("blue", "square"))]
    whole = chat_model.bind(temperature=0).invoke(asked)
    chunks = list(chat_model.bind(temperature=0, extra_headers=FRESH).stream(asked))
    assert "".join(chunk.text for chunk in chunks) == whole.text
    assert sum((chunk.usage_metadata or {}).get("output_tokens", 0) for chunk in chunks) > 0


async def test_langchain_asks_at_once_what_is_asked_in_a_batch(chat_model: ChatOpenAI) -> None:
    colours = ["red", "green", "blue"]
    prompt = ChatPromptTemplate.from_messages(
        [
            ("system", "You are a helpful assistant."),
            ("human", [{"type": "image_url", "image_url": {"url": "{picture}"}}, {"text": "{asked}", "type": "text"}]),
        ]
    )
    asks = [{"picture": draw(colour, "circle"), "asked": "What colour is the circle?"} for colour in colours]
    answers = await (prompt | chat_model).abatch(asks)
    assert all(colour in answer.text.lower() for colour, answer in zip(colours, answers, strict=True))


@pytest.mark.filterwarnings("ignore:Pydantic serializer warnings")  # LangChain's own
@pytest.mark.parametrize("strict", [True, None])
def test_langchain_gets_structured_output(chat_model: ChatOpenAI, strict: bool | None) -> None:
    asked = [question("Describe the picture.", draw("red", "circle"))]
    structured = chat_model.with_structured_output(Thing, method="json_schema", strict=strict)
    assert isinstance(structured.invoke(asked), Thing)
    *_, last = structured.stream(asked)
    assert isinstance(last, Thing)


# --- curl ---


@pytest.fixture
def curl(server: Server) -> Callable[..., str]:
    if shutil.which("curl") is None:
        pytest.skip("no curl here")

    def run(path: str, *options: str, body: Path | None = None) -> str:
        data = ["--data-binary", f"@{body}", "-H", "Content-Type: application/json"] if body is not None else []
        command = ["curl", "--silent", "--show-error", "--max-time", "60", *options, *data, f"{server.url}{path}"]
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout

    return run


def ask_file(folder: Path, **more: Any) -> Path:
    file = folder / "ask.json"
    asked = {"model": MODEL, "messages": messages("What colour is the circle?", draw("green", "circle")), **more}
    file.write_text(json.dumps(asked))
    return file


def test_curl_streams(curl: Callable[..., str], tmp_path: Path) -> None:
    told = curl("/v1/chat/completions", "-N", "-i", body=ask_file(tmp_path, stream=True))
    head, _, body = told.replace("\r\n", "\n").partition("\n\n")
    assert head.startswith("HTTP/1.1 200")
    events = [block.removeprefix("data: ") for block in body.split("\n\n") if block.startswith("data: ")]
    assert events[-1] == "[DONE]"
    pieces = [json.loads(event)["choices"][0]["delta"].get("content") or "" for event in events[:-1]]
    assert "green" in "".join(pieces).lower()


def test_curl_follows_a_job(curl: Callable[..., str], tmp_path: Path) -> None:
    job = json.loads(curl("/v1/jobs", body=ask_file(tmp_path)))
    events = curl(job["events_url"], "-N")
    assert "event: succeeded" in events
    assert json.loads(curl(f"/v1/jobs/{job['id']}"))["status"] == "succeeded"


def test_curl_asks_before_it_sends_a_big_body(curl: Callable[..., str], tmp_path: Path) -> None:
    """`Expect: 100-continue`: sent when it is wanted, and not when it is too long."""
    body = ask_file(tmp_path)
    body.write_text(body.read_text() + " " * (5 << 20))
    told = curl("/v1/chat/completions", "-i", "-H", "Expect: 100-continue", body=body)
    assert told.startswith("HTTP/1.1 100 Continue")
    assert "HTTP/1.1 200" in told
    os.truncate(body, 65 << 20)
    told = curl("/v1/chat/completions", "-i", "-H", "Expect: 100-continue", "-w", "\n%{size_upload}", body=body)
    assert told.startswith("HTTP/1.1 413")
    assert int(told.splitlines()[-1]) == 0, "not a byte of it was sent"
