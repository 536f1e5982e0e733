"""Bodies that would take far more memory than they are long are refused before they are parsed."""

from __future__ import annotations

import json

import pytest

from visionchat_serve.config import Settings
from visionchat_serve.errors import InvalidRequest
from visionchat_serve.intake import parse, read_request
from visionchat_serve.json_bounds import MAX_VALUES, check_values
from visionchat_serve.schemas import ChatCompletionRequest

MANY = MAX_VALUES + 1


@pytest.mark.parametrize(
    "body",
    [
        b"[" + b"0," * MANY + b"0]",
        b"[" * MANY,
        b'{"a":' * MANY,
        b"{" + b'"k":0,' * MANY + b'"k":0}',
        b'{"a": "\\"' + b"," * 10 + b'",' + b"0," * MANY,
        b'"' + b'\\"",' * MANY,
    ],
)
def test_too_many_values_are_refused(body: bytes) -> None:
    with pytest.raises(InvalidRequest, match="more than 50000 values"):
        check_values(body)
    with pytest.raises(InvalidRequest, match="more than 50000 values"):
        parse(body, Settings(), ChatCompletionRequest)


def test_what_stands_in_texts_does_not_count() -> None:
    text = ',[{"\\' * MANY
    check_values(json.dumps({"a": text, "b": [1, text]}).encode())
    check_values(bytearray(b'"' + b"," * MANY))  # a string without an end
    check_values(b"")


@pytest.mark.parametrize("field", ["max_tokens", "max_completion_tokens", "top_k"])
def test_numbers_that_no_machine_holds_are_refused(field: str) -> None:
    body = {"model": "visionchat-tiny", "messages": [{"role": "user", "content": "hi"}], field: 10**30}
    with pytest.raises(InvalidRequest, match=field) as caught:
        parse(json.dumps(body).encode(), Settings(), ChatCompletionRequest)
    assert caught.value.param == field


def test_the_queue_plans_for_no_longer_answer_than_there_can_be() -> None:
    body = {"model": "visionchat-tiny", "messages": [{"role": "user", "content": "hi"}], "max_tokens": 2**31 - 1}
    settings = Settings(max_context=512)
    request, _ = parse(json.dumps(body).encode(), settings, ChatCompletionRequest)
    job, _ = read_request(request, settings, {}, "")
    assert job.sampling.max_tokens == 512
