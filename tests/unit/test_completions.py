"""The bytes of answers in OpenAI's form."""

from __future__ import annotations

import json
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from visionchat_serve.completions import DONE, ChunkEncoder, completion_body, error_event
from visionchat_serve.errors import QueueFull
from visionchat_serve.messages import ChatJob, Finish, SamplingParams, Usage

JOB = ChatJob("chatcmpl-1", (), SamplingParams(), 'the "model"', 0, 1000.5, 2000)
FINISH = Finish("stop", Usage(prompt_tokens=7, completion_tokens=2, image_tokens=4))


def payload(event: bytes) -> Any:
    assert event.startswith(b"data: ")
    assert event.endswith(b"\n\n")
    return json.loads(event[6:])


@given(st.text())
def test_any_text_survives_a_chunk(text: str) -> None:
    event = ChunkEncoder(JOB, include_usage=False).text(text)
    assert event.count(b"\n") == 2
    chunk = payload(event)
    assert chunk["choices"][0]["delta"] == {"content": text}
    assert (chunk["id"], chunk["model"], chunk["created"]) == ("chatcmpl-1", 'the "model"', 1000)
    assert "usage" not in chunk


def test_usage_is_null_in_all_chunks_but_the_last() -> None:
    chunks = ChunkEncoder(JOB, include_usage=True)
    assert [payload(c)["usage"] for c in (chunks.start(), chunks.text("x"), chunks.end(FINISH))] == [None] * 3
    last = payload(chunks.usage(FINISH))
    assert last["choices"] == []
    assert last["usage"]["total_tokens"] == 9
    assert last["usage"]["prompt_tokens_details"]["image_tokens"] == 4


def test_the_stream_ends_with_a_reason_and_a_mark() -> None:
    assert payload(ChunkEncoder(JOB, include_usage=False).end(FINISH))["choices"][0]["finish_reason"] == "stop"
    assert DONE == b"data: [DONE]\n\n"


def test_a_whole_answer() -> None:
    body = completion_body(JOB, "a red circle", FINISH)
    assert body["choices"][0]["message"]["content"] == "a red circle"
    assert body["object"] == "chat.completion"


def test_an_error_in_mid_stream_keeps_its_form() -> None:
    assert payload(error_event(QueueFull("full")))["error"] == {
        "message": "full",
        "type": "rate_limit_error",
        "param": None,
        "code": "queue_full",
    }
