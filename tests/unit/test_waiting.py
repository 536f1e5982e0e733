"""What a client is told while it waits, and when it is not let in."""

from __future__ import annotations

from collections.abc import AsyncIterator
from datetime import timedelta
from pathlib import Path

import pytest

from support import asgi
from support.house import House, chat, open_house
from visionchat_serve import gateway
from visionchat_serve.api_keys import new_key
from visionchat_serve.broker import BrokerPolicy
from visionchat_serve.config import Settings
from visionchat_serve.memory_broker import MemoryBroker
from visionchat_serve.messages import Finish

CHAT, JOBS = "/v1/chat/completions", "/v1/jobs"


@pytest.fixture
async def house(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[House]:
    monkeypatch.setattr(gateway, "QUICK", timedelta(milliseconds=10))
    monkeypatch.setattr(gateway, "SIGN_OF_LIFE", timedelta(milliseconds=20))
    async with open_house(MemoryBroker(BrokerPolicy(max_waiting=2, max_wait=timedelta(seconds=8)))) as house:
        yield house


def test_an_open_stream_says_something_every_fifteen_seconds() -> None:
    assert gateway.QUICK < gateway.SIGN_OF_LIFE < timedelta(seconds=15)


async def test_a_streamed_chat_is_told_its_place(house: House, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(house.broker._speed, "pace", lambda todo: 2.5)
    assert (await house.http.post(JOBS, json=chat("before"))).status_code == 202
    async with asgi.post(house.app, CHAT, chat("x", stream=True)) as stream:
        await stream.until(b": position 2, about 5 s\n\n")
        [first] = await house.broker.claim("by hand", 1, timedelta(0))
        await stream.until(b": position 1, about 3 s\n\n")
        [second] = await house.broker.claim("by hand", 1, timedelta(0))
        await stream.until(b": alive\n\n")
        for claim in (first, second):
            await house.broker.publish(claim, 0, "red")
            await house.broker.finish(claim, Finish("stop"))
        body = await stream.whole()
    assert body.count(b'"content": "red"') == 1
    assert body.endswith(b"data: [DONE]\n\n")


@pytest.mark.parametrize("path", [CHAT, JOBS])
async def test_a_full_queue_says_where_one_would_stand(
    house: House, monkeypatch: pytest.MonkeyPatch, path: str
) -> None:
    monkeypatch.setattr(house.broker._speed, "pace", lambda todo: 2.5)
    for _ in range(2):
        await house.http.post(JOBS, json=chat("x"))
    response = await house.http.post(path, json=chat("x"))
    error = response.json()["error"]
    assert (response.status_code, error["code"], error["type"]) == (429, "queue_full", "rate_limit_error")
    assert (error["position"], error["eta_seconds"], response.headers["retry-after"]) == (3, 8, "2")
    monkeypatch.setattr(house.broker._speed, "pace", lambda todo: 9.0)
    await house.broker.cancel((await house.broker.jobs("", 1))[0].id)
    response = await house.http.post(path, json=chat("x"))
    error = response.json()["error"]
    assert (error["position"], error["eta_seconds"]) == (2, 18)
    assert response.headers["retry-after"] == "10", "after one answer what is ahead takes less than 8 s"


async def test_each_key_has_its_own_allowance(tmp_path: Path) -> None:
    ana, bob = new_key("ana"), new_key("bob")
    (tmp_path / "keys").write_text(f"{ana[1]}\n{bob[1]}\n")
    settings = Settings(api_keys_file=tmp_path / "keys")
    async with open_house(MemoryBroker(BrokerPolicy(owner_rate=2)), settings) as house:
        statuses = {}
        for name, key in (("ana", ana[0]), ("bob", bob[0])):
            asks = [
                await house.http.post(JOBS, json=chat("x"), headers={"Authorization": f"Bearer {key}"})
                for _ in range(3)
            ]
            statuses[name] = [response.status_code for response in asks]
            assert asks[-1].json()["error"]["code"] == "rate_limit_exceeded"
            assert 20 <= int(asks[-1].headers["retry-after"]) <= 30
        assert statuses == {"ana": [202, 202, 429], "bob": [202, 202, 429]}
