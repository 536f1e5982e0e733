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
    parse_request(body(response_format={"type": "text"}, logit_bias={}, stop=None, metadata={}, modalities=["text"]))
    parse_request(body(stream=None, audio=None, tool_choice="none", functions=[], n=None, temperature=None))


def test_what_a_vision_chat_uses_of_openais_api() -> None:
    request = parse_request(body(n=3, logprobs=True, top_logprobs=5, presence_penalty=-1, frequency_penalty=0.5))
    assert (request.n, request.top_logprobs, request.presence_penalty) == (3, 5, -1)
    assert parse_request(body(stop=["a", "", "b"])).stops == ("a", "b")
    assert parse_request(body(stop="a")).stops == ("a",)
    parse_request(body(response_format={"type": "json_object"}))
    wanted = {"name": "thing", "schema": {"type": "object"}, "strict": True}
    parsed = parse_request(body(response_format={"type": "json_schema", "json_schema": wanted})).response_format
    assert parsed.json_schema.schema_ == {"type": "object"}  # type: ignore[union-attr]


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
        (body(n=0), "n", "greater than or equal to 1"),
        (body(n=5), "n", "less than or equal to 4"),
        (body(top_logprobs=3), "top_logprobs", "together with"),
        (body(logprobs=True, top_logprobs=21), "top_logprobs", "less than or equal to 20"),
        (body(presence_penalty=2.5), "presence_penalty", "less than or equal to 2"),
        (body(frequency_penalty="much"), "frequency_penalty", "number"),
        (body(response_format={"type": "xml"}), "response_format", "json_schema"),
        (body(response_format={"type": "json_schema"}), "response_format.json_schema", "required"),
        (
            body(response_format={"type": "json_schema", "json_schema": {"name": "a b", "schema": {}}}),
            "response_format.json_schema.name",
            "pattern",
        ),
        (
            body(response_format={"type": "json_schema", "json_schema": {"name": "a", "schema": []}}),
            "response_format.json_schema.schema",
            "object",
        ),
        (body(tools=[{"type": "function"}]), "tools", "not supported"),
        (body(functions=[{"name": "f"}]), "functions", "not supported"),
        (body(tool_choice="required"), "tool_choice", "not supported"),
        (body(logit_bias={"5": 1}), "logit_bias", "not supported"),
        (body(modalities=["text", "audio"]), "modalities.1", "only text"),
        (body(audio={"voice": "x"}), "audio", "not supported"),
        (body(prediction={"type": "content"}), "prediction", "not supported"),
        (body(web_search_options={}), "web_search_options", "not supported"),
        (body(store=True), "store", "not stored"),
        (body(messages=[{"role": "tool", "content": "x"}]), "messages.0.role", "user"),
        (body(**content({"type": "input_audio", "input_audio": {}})), "messages.0.content.0", "image_url"),
        (body(stop=["a"] * 5), "stop", "at most 4"),
        (body(stop="a" * 1025), "stop", "at most 1024"),
        (body(**content(*[{"type": "text", "text": ""}] * 1025)), "messages.0.content", "at most 1024"),
        (body(bananas=1), "bananas", "not supported"),
    ],
)
def test_a_wrong_request_names_the_field(request_body: bytes, param: str | None, says: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        parse_request(request_body)
    assert caught.value.status == 400
    assert caught.value.param == param
    assert says in caught.value.message
