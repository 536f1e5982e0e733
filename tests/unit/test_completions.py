"""The bytes of answers in OpenAI's form."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from visionchat_serve.answer import Choice, Piece
from visionchat_serve.completions import DONE, ChunkEncoder, completion_body, error_event
from visionchat_serve.errors import QueueFull
from visionchat_serve.messages import ChatJob, Finish, SamplingParams, TokenLogprob, Usage

JOB = ChatJob("chatcmpl-1", (), SamplingParams(), 'the "model"', 0, 1000.5, 2000)
FINISH = Finish("stop", Usage(prompt_tokens=7, completion_tokens=2, image_tokens=4))


RED = TokenLogprob("red", -0.5, (114, 101, 100), top=(TokenLogprob("blue", -1.5, (98,)),))


def said(text: str, *logprobs: TokenLogprob) -> Choice:
    choice = Choice()
    choice.add(text, logprobs)
    return choice


def payload(event: bytes) -> Any:
    assert event.startswith(b"data: ")
    assert event.endswith(b"\n\n")
    return json.loads(event[6:])


@given(st.text())
def test_any_text_survives_a_chunk(text: str) -> None:
    event = ChunkEncoder(JOB, include_usage=False).piece(Piece(text))
    assert event.count(b"\n") == 2
    chunk = payload(event)
    assert chunk["choices"][0]["delta"] == {"content": text}
    assert (chunk["id"], chunk["model"], chunk["created"]) == ("chatcmpl-1", 'the "model"', 1000)
    assert "usage" not in chunk


def test_usage_is_null_in_all_chunks_but_the_last() -> None:
    chunks = ChunkEncoder(JOB, include_usage=True)
    assert [payload(c)["usage"] for c in (chunks.start(), chunks.piece(Piece("x")), chunks.end(FINISH))] == [None] * 3
    last = payload(chunks.usage(FINISH))
    assert last["choices"] == []
    assert last["usage"]["total_tokens"] == 9
    assert last["usage"]["prompt_tokens_details"]["image_tokens"] == 4


def test_the_stream_ends_with_a_reason_and_a_mark() -> None:
    assert payload(ChunkEncoder(JOB, include_usage=False).end(FINISH))["choices"][0]["finish_reason"] == "stop"
    assert DONE == b"data: [DONE]\n\n"


def test_a_whole_answer() -> None:
    body = completion_body(JOB, {0: said("a red circle")}, FINISH)
    assert body["choices"][0]["message"]["content"] == "a red circle"
    assert body["object"] == "chat.completion"


def test_an_error_in_mid_stream_keeps_its_form() -> None:
    assert payload(error_event(QueueFull("full")))["error"] == {
        "message": "full",
        "type": "rate_limit_error",
        "param": None,
        "code": "queue_full",
    }


def test_several_choices_whole_and_in_a_stream() -> None:
    job = replace(JOB, sampling=SamplingParams(n=2))
    finish = Finish("stop", Usage(7, 4), others=("length",))
    body = completion_body(job, {0: said("a"), 1: said("b")}, finish)
    told = [(c["index"], c["message"]["content"], c["finish_reason"]) for c in body["choices"]]
    assert told == [(0, "a", "stop"), (1, "b", "length")]
    chunks = ChunkEncoder(job, include_usage=False)
    stream = chunks.start() + chunks.piece(Piece("b", choice=1)) + chunks.end(finish)
    events = [payload(event + b"\n\n")["choices"][0] for event in stream.split(b"\n\n")[:-1]]
    assert [e["index"] for e in events] == [0, 1, 1, 0, 1]
    assert [e["finish_reason"] for e in events] == [None, None, None, "stop", "length"]
    assert events[2]["delta"] == {"content": "b"}


def test_log_probabilities_are_told_only_to_those_who_asked() -> None:
    told = {
        "content": [
            {
                "token": "red",
                "logprob": -0.5,
                "bytes": [114, 101, 100],
                "top_logprobs": [{"token": "blue", "logprob": -1.5, "bytes": [98]}],
            }
        ],
        "refusal": None,
    }
    job = replace(JOB, sampling=SamplingParams(logprobs=1))
    assert completion_body(job, {0: said("red", RED)}, FINISH)["choices"][0]["logprobs"] == told
    assert completion_body(JOB, {0: said("red")}, FINISH)["choices"][0]["logprobs"] is None
    chunk = payload(ChunkEncoder(job, include_usage=False).piece(Piece("red", logprobs=(RED,))))
    assert chunk["choices"][0]["logprobs"] == told
