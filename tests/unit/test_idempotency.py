"""A request that is sent again: what its key may be, and that it is answered by the first one's job."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator
from datetime import timedelta

import httpx
import pytest
from hypothesis import given
from hypothesis import strategies as st

from support.house import House, chat, open_house
from support.waiting import wait_until
from visionchat_serve import exchange
from visionchat_serve.config import Settings
from visionchat_serve.errors import InvalidRequest
from visionchat_serve.idempotency import fingerprint, read_key
from visionchat_serve.memory_broker import MemoryBroker

KEY = {"Idempotency-Key": '"8e03978e-40d5-43dd-bc93"'}


@pytest.fixture
async def house() -> AsyncIterator[House]:
    async with open_house(MemoryBroker()) as house:
        yield house


@pytest.mark.parametrize(
    ("values", "key"),
    [
        ([], None),
        (['"abc"'], "abc"),
        ([' "a b" '], "a b"),
        ([r'"a\"b\\"'], 'a"b\\'),
        (["stainless-python-retry-1f0a"], "stainless-python-retry-1f0a"),
        (["x" * 255], "x" * 255),
    ],
)
def test_keys(values: list[str], key: str | None) -> None:
    assert read_key(values) == key


@pytest.mark.parametrize(
    "values", [[""], ['""'], ['"a'], ['a"b'], ["a b"], ["a,b"], ["é"], ["x" * 256], ['"a\\b"'], ["a;b"], ["a", "a"]]
)
def test_malformed_keys(values: list[str]) -> None:
    with pytest.raises(InvalidRequest, match="Idempotency-Key"):
        read_key(values)


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
)


@given(st.dictionaries(st.text(), json_values, max_size=4))
def test_a_fingerprint_is_of_what_a_body_says(body: dict[str, object]) -> None:
    turned = dict(reversed(body.items()))
    same = fingerprint("/p", json.dumps(turned, indent=2, ensure_ascii=False).encode("utf-8", "surrogatepass"))
    assert same == fingerprint("/p", json.dumps(body).encode())
    assert same != fingerprint("/p", json.dumps(body | {"more": 1, "body": body}).encode())
    assert same != fingerprint("/q", json.dumps(body).encode())


async def test_a_job_that_is_sent_again_is_the_same(house: House) -> None:
    first = await house.http.post("/v1/jobs", json=chat("x", seed=1), headers=KEY)
    again = await house.http.post("/v1/jobs", content=json.dumps(chat("x", seed=1), indent=1), headers=KEY)
    assert (first.status_code, again.status_code) == (202, 202)
    assert first.headers["location"] == again.headers["location"]
    assert ("idempotency-replayed" in first.headers, again.headers["idempotency-replayed"]) == (False, "true")
    assert (await house.broker.load()).backlog == 1


async def test_a_key_with_another_body_is_422_and_a_malformed_one_400(house: House) -> None:
    assert (await house.http.post("/v1/jobs", json=chat("x"), headers=KEY)).status_code == 202
    for path, text in (("/v1/jobs", "y"), ("/v1/chat/completions", "x")):
        response = await house.http.post(path, json=chat(text), headers=KEY)
        assert (response.status_code, response.json()["error"]["code"]) == (422, "idempotency_key_reused")
    for path in ("/v1/jobs", "/v1/chat/completions"):
        response = await house.http.post(path, json=chat("x"), headers={"Idempotency-Key": '"'})
        assert (response.status_code, response.json()["error"]["param"]) == (400, "Idempotency-Key")
    assert (await house.broker.load()).backlog == 1


@pytest.mark.parametrize("stream", [False, True])
async def test_a_chat_that_is_sent_again_gets_the_same_bytes(house: House, stream: bool) -> None:
    await house.start_replica()
    ask = chat("a red square", stream=stream)
    first = await house.http.post("/v1/chat/completions", json=ask, headers=KEY)
    again = await house.http.post("/v1/chat/completions", json=ask, headers=KEY)
    other = await house.http.post("/v1/chat/completions", json=ask)
    assert len(house.engine.seen) == 2
    assert again.headers["idempotency-replayed"] == "true"
    assert said(first.text) == said(again.text) != said(other.text)


def said(body: str) -> str:
    """What a client is told, without the comments of a stream."""
    return "\n\n".join(part for part in body.split("\n\n") if not part.startswith(":"))


async def test_a_keyed_chat_goes_on_when_its_client_leaves(house: House) -> None:
    await house.start_replica()
    asked = asyncio.create_task(house.http.post("/v1/chat/completions", json=chat("a !hold b"), headers=KEY))
    await wait_until(lambda: bool(house.engine.seen), "it runs")
    asked.cancel()
    await asyncio.gather(asked, return_exceptions=True)
    house.engine.release.set()
    answer = await house.http.post("/v1/chat/completions", json=chat("a !hold b"), headers=KEY)
    assert answer.json()["choices"][0]["message"]["content"] == "a !hold b"
    assert len(house.engine.seen) == 1
    assert house.engine.aborted == []


async def test_an_answer_is_given_again_also_past_its_deadline(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(exchange, "GRACE", timedelta(0))
    async with open_house(MemoryBroker(), Settings(request_timeout_seconds=1)) as house:
        await house.start_replica()

        async def ask(stream: bool) -> httpx.Response:
            key = {"Idempotency-Key": f"stream-{stream}"}
            body = chat("one two three", stream=stream)
            return await house.http.post("/v1/chat/completions", json=body, headers=key)

        first = [await ask(stream) for stream in (False, True)]
        answered_at = time.time()
        await wait_until(lambda: time.time() > answered_at + 1, "the deadline has passed")
        again = [await ask(stream) for stream in (False, True)]
        assert [answer.status_code for answer in (*first, *again)] == [200] * 4
        assert [answer.content for answer in again] == [answer.content for answer in first]
