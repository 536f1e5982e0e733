"""The result cache over HTTP: which requests have the same answer, and what the client is told."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import httpx
import pytest

from support import asgi
from support.house import House, chat, open_house
from support.waiting import wait_until
from visionchat_serve.api_keys import new_key
from visionchat_serve.cache_key import CacheUse, cache_key, read_cache_control
from visionchat_serve.config import Settings
from visionchat_serve.memory_broker import MemoryBroker
from visionchat_serve.messages import ChatJob, Message, SamplingParams, TextPart

CHAT, JOBS, HEADER = "/v1/chat/completions", "/v1/jobs", "x-visionchat-cache"


@pytest.fixture
async def house() -> AsyncIterator[House]:
    async with open_house(MemoryBroker()) as house:
        await start(house)
        yield house


async def start(house: House) -> None:
    await house.start_replica()

    async def reported() -> bool:
        return bool(await house.broker.reports())

    await wait_until(reported, "the replica reports itself")


async def ask(house: House, text: str = "red", headers: dict[str, str] | None = None, **fields: Any) -> httpx.Response:
    response = await house.http.post(CHAT, json=chat(text, **fields), headers=headers)
    assert response.status_code == 200
    return response


def text_of(response: httpx.Response) -> str:
    return str(response.json()["choices"][0]["message"]["content"])


async def test_a_hit_is_answered_without_the_model(house: House) -> None:
    first, again = await ask(house, "a red square", seed=1), await ask(house, "a red square", seed=1)
    assert (first.headers[HEADER], again.headers[HEADER]) == ("miss", "hit")
    assert text_of(first) == text_of(again) == "a red square"
    assert first.json()["usage"] == again.json()["usage"]
    assert first.json()["id"] != again.json()["id"]
    streamed = await ask(house, "a red square", seed=1, stream=True)
    assert streamed.headers[HEADER] == "hit"
    assert streamed.text.endswith("data: [DONE]\n\n")
    assert len(house.engine.seen) == 1
    page = (await house.http.get("/metrics")).text
    for line in ('visionchat_cache_total{result="hit"} 2.0', 'visionchat_cache_total{result="miss"} 1.0'):
        assert line in page


@pytest.mark.parametrize(
    ("one", "other", "same"),
    [
        ({"temperature": 0}, {"temperature": 0}, True),
        ({"temperature": 0, "seed": 1}, {"temperature": 0, "seed": 2}, True),
        ({"temperature": 0}, {"temperature": 0, "user": "someone"}, True),
        ({"seed": 1}, {"seed": 2}, False),
        ({"seed": 1}, {"seed": 1, "temperature": 0.5}, False),
        ({"seed": 1}, {"seed": 1, "stop": "x"}, False),
        ({"seed": 1}, {"seed": 1, "max_tokens": 7}, False),
        ({"temperature": 0.7}, {"temperature": 0.7}, False),
        ({}, {}, False),
    ],
)
async def test_which_requests_have_the_same_answer(
    house: House, one: dict[str, Any], other: dict[str, Any], same: bool
) -> None:
    await ask(house, **one)
    assert ((await ask(house, **other)).headers[HEADER] == "hit") == same


async def test_chance_is_not_cacheable(house: House) -> None:
    assert (await ask(house)).headers[HEADER] == "uncacheable"


@pytest.mark.parametrize(
    ("header", "use"),
    [
        ("", CacheUse()),
        ("max-age=60", CacheUse()),
        ("no-cache", CacheUse(reads=False)),
        ("foo, No-Cache", CacheUse(reads=False)),
        ("max-age=0", CacheUse(reads=False)),
        ("no-store", CacheUse(reads=False, stores=False)),
    ],
)
def test_cache_control(header: str, use: CacheUse) -> None:
    assert read_cache_control(header) == use


async def test_no_cache_asks_anew_and_no_store_leaves_nothing(house: House) -> None:
    results = []
    for control in ("no-store", "no-cache", "no-cache", "max-age=60", "no-store"):
        results.append((await ask(house, seed=1, headers={"Cache-Control": control})).headers[HEADER])
    assert results == ["uncacheable", "bypass", "bypass", "hit", "uncacheable"]
    assert len(house.engine.seen) == 4


async def test_jobs_use_the_cache_too(house: House) -> None:
    created = (await house.http.post(JOBS, json=chat("red", seed=1, metadata={"n": "1"}))).json()

    async def done() -> bool:
        return bool((await house.http.get(f"{JOBS}/{created['id']}")).json()["status"] == "succeeded")

    await wait_until(done, "it is answered")
    assert (await ask(house, seed=1)).headers[HEADER] == "hit"
    response = await house.http.post(JOBS, json=chat("red", seed=1, metadata={"n": "2"}))
    job = response.json()
    assert (response.headers[HEADER], response.status_code, job["status"]) == ("hit", 202, "succeeded")
    assert (job["text"], job["metadata"]) == ("red", {"n": "2"})
    assert job["id"] != created["id"]
    async with asgi.get(house.app, f"{JOBS}/{job['id']}/events") as stream:
        assert b'{"text": "red"}' in await stream.whole()


async def test_same_requests_in_flight_share_a_job_and_one_may_leave(house: House) -> None:
    first = asyncio.create_task(ask(house, "a !hold b", seed=1))
    await wait_until(lambda: bool(house.engine.seen), "it runs")
    second = asyncio.create_task(ask(house, "a !hold b", seed=1))
    async with asgi.post(house.app, CHAT, chat("a !hold b", seed=1, stream=True)) as third:
        assert third.headers[HEADER] == "joined"
        await third.until(b'"content": "a "')

    async def joined() -> bool:
        return 'visionchat_cache_total{result="joined"} 2.0' in (await house.http.get("/metrics")).text

    await wait_until(joined, "the second has joined too")
    first.cancel()
    await asyncio.gather(first, return_exceptions=True)
    house.engine.release.set()
    answer = await second
    assert (answer.headers[HEADER], text_of(answer)) == ("joined", "a !hold b")
    assert len(house.engine.seen) == 1
    assert house.engine.aborted == []


async def test_when_all_have_left_the_model_stops(house: House) -> None:
    asked = [asyncio.create_task(ask(house, "a !hold b", seed=1)) for _ in range(3)]
    await wait_until(lambda: bool(house.engine.seen), "it runs")
    for task in asked:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
    house.engine.release.set()
    await wait_until(lambda: bool(house.engine.aborted), "it is stopped")
    assert (await ask(house, "next", seed=1)).status_code == 200


async def test_nobody_learns_what_others_asked(tmp_path: Path) -> None:
    ana, bob = new_key("ana"), new_key("bob")
    (tmp_path / "keys").write_text(f"{ana[1]}\n{bob[1]}\n")
    async with open_house(MemoryBroker(), Settings(api_keys_file=tmp_path / "keys")) as house:
        await start(house)
        results = [
            (await ask(house, seed=1, headers={"Authorization": f"Bearer {key}"})).headers[HEADER]
            for key in (ana[0], bob[0], ana[0])
        ]
        assert results == ["miss", "miss", "hit"]


async def test_the_cache_can_be_off() -> None:
    async with open_house(MemoryBroker(), Settings(cache_ttl_seconds=0)) as house:
        await start(house)
        assert [(await ask(house, seed=1)).headers[HEADER] for _ in range(2)] == ["uncacheable"] * 2


async def test_a_key_of_ones_own_is_replayed_not_shared(house: House) -> None:
    key = {"Idempotency-Key": "k1"}
    first, again = await ask(house, seed=1, headers=key), await ask(house, seed=1, headers=key)
    assert first.headers[HEADER] == "miss"
    assert (again.headers["idempotency-replayed"], again.json()) == ("true", first.json())
    assert (await ask(house, seed=1, headers={"Idempotency-Key": "k2"})).headers[HEADER] == "hit"


def test_a_cache_key_is_of_all_that_matters() -> None:
    job = ChatJob("1", (Message("user", (TextPart("a"),)),), SamplingParams(seed=1), "m", 2, 1.0, 2.0, "ann")
    key = cache_key(job, (b"p", b"q"), {"m r1"})
    later = replace(job, id="2", created_at=5.0, deadline_at=9.0, priority="batch", metadata={"k": "v"}, cache_key="x")
    assert cache_key(later, (b"p", b"q"), {"m r1"}) == key
    others = [
        cache_key(job, (b"q", b"p"), {"m r1"}),
        cache_key(job, (b"pq", b""), {"m r1"}),
        cache_key(job, (b"p", b"q"), {"m r2"}),
        cache_key(job, (b"p", b"q"), {"m r1", "m r2"}),
        cache_key(replace(job, owner="bob"), (b"p", b"q"), {"m r1"}),
        cache_key(replace(job, messages=(Message("system", (TextPart("a"),)),)), (b"p", b"q"), {"m r1"}),
    ]
    assert len({key, *others}) == len(others) + 1


def test_durations_are_what_settings_say() -> None:
    from visionchat_serve.connection import policy_of

    policy = policy_of(Settings(cache_ttl_seconds=5, max_wait_seconds=7, rate_per_minute=3, max_open_requests=2))
    assert (policy.cache_ttl, policy.max_wait) == (timedelta(seconds=5), timedelta(seconds=7))
    assert (policy.owner_rate, policy.owner_open) == (3, 2)
