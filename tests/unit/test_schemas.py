"""What a chat request may say, and how a wrong one is answered."""

from __future__ import annotations

import json
from typing import Any

import pytest

from visionchat_serve.errors import InvalidRequest
from visionchat_serve.schemas import parse_request


def body(**fields: Any) -> bytes:
    return json.dumps({"model": "m", "messages": [{"role": "user", "content": "hello"}], **fields}).encode()


def content(*parts: Any) -> dict[str, Any]:
    return {"messages": [{"role": "user", "content": list(parts)}]}


def test_text_and_pictures_keep_their_order() -> None:
    picture = {"type": "image_url", "image_url": {"url": "data:x", "detail": "low"}}
    request = parse_request(body(**content(picture, {"type": "text", "text": "what?"})))
    assert [part.type for part in request.messages[0].content] == ["image_url", "text"]


def test_an_image_url_may_be_a_bare_string() -> None:
    request = parse_request(body(**content({"type": "image_url", "image_url": "data:x"})))
    assert request.messages[0].content[0].image_url.url == "data:x"  # type: ignore[union-attr]


def test_what_clients_send_by_default_is_accepted() -> None:
    parse_request(body(n=1, presence_penalty=0, frequency_penalty=0.0, logprobs=False, tools=[], store=False, user="u"))
    parse_request(body(response_format={"type": "text"}, logit_bias={}, stop=None, metadata={}))


@pytest.mark.parametrize(
    ("request_body", "param", "says"),
    [
        (b"", None, "not valid JSON"),
        (b"{", None, "not valid JSON"),
        (b"[]", None, "body"),
        (body(messages=[]), "messages", "at least 1"),
        (body(messages=[{"role": "assistant", "content": "x"}]), "messages", "role 'user'"),
        (body(messages=[{"role": "robot", "content": "x"}]), "messages.0.role", "user"),
        (body(messages=[{"role": "user", "content": 5}]), "messages.0.content", "array"),
        (body(**content({"type": "audio"})), "messages.0.content.0", "image_url"),
        (body(**content({"type": "text", "text": 5})), "messages.0.content.0.text", "string"),
        (
            body(**content({"type": "image_url", "image_url": {"url": 4}})),
            "messages.0.content.0.image_url.url",
            "string",
        ),
        (
            body(**content({"type": "image_url", "image_url": {"url": "x", "detail": "ultra"}})),
            "messages.0.content.0.image_url.detail",
            "'low', 'auto' or 'high'",
        ),
        (body(temperature=3), "temperature", "less than or equal to 2"),
        (body(temperature="warm"), "temperature", "number"),
        (body(top_p=0), "top_p", "greater than 0"),
        (body(max_tokens=0), "max_tokens", "greater than or equal to 1"),
        (body(seed=2**70), "seed", ""),
        (body(n=2), "n", "1 answer"),
        (body(logprobs=True), "logprobs", "only false"),
        (body(presence_penalty=1), "presence_penalty", "repetition_penalty"),
        (body(response_format={"type": "json_object"}), "response_format.type", "'text'"),
        (body(tools=[{"type": "function"}]), "tools", "at most 0"),
        (body(stop=["a"] * 5), "stop", "at most 4"),
        (body(bananas=1), "bananas", "not supported"),
    ],
)
def test_a_wrong_request_names_the_field(request_body: bytes, param: str | None, says: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        parse_request(request_body)
    assert caught.value.status == 400
    assert caught.value.param == param
    assert says in caught.value.message
