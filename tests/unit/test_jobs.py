"""The jobs API over the in-memory queue: accept, look, list, cancel."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from support.house import House, chat, open_house
from support.waiting import wait_until
from visionchat_serve.api_keys import new_key
from visionchat_serve.broker import BrokerPolicy
from visionchat_serve.config import Settings
from visionchat_serve.memory_broker import MemoryBroker


@pytest.fixture
async def house() -> AsyncIterator[House]:
    async with open_house(MemoryBroker(BrokerPolicy(max_waiting=5))) as house:
        yield house


async def create(house: House, text: str, **fields: Any) -> dict[str, Any]:
    response = await house.http.post("/v1/jobs", json=chat(text, **fields))
    assert response.status_code == 202
    body: dict[str, Any] = response.json()
    assert response.headers["location"] == f"/v1/jobs/{body['id']}"
    return body


async def show(house: House, job_id: str) -> dict[str, Any]:
    body: dict[str, Any] = (await house.http.get(f"/v1/jobs/{job_id}")).json()
    return body


async def until(house: House, job_id: str, status: str) -> dict[str, Any]:
    async def reached() -> bool:
        return bool((await show(house, job_id))["status"] == status)

    await wait_until(reached, f"the job is {status}")
    return await show(house, job_id)


async def test_a_job_from_queued_to_succeeded(house: House) -> None:
    first = await create(house, "one", metadata={"for": "ana"})
    job = await create(house, "a red !hold square", priority="batch")
    assert (first["status"], first["position"], first["eta_seconds"]) == ("queued", 1, None)
    assert (first["priority"], first["metadata"]) == ("interactive", {"for": "ana"})
    assert (job["position"], job["priority"], job["text"], job["completion"]) == (2, "batch", "", None)

    await house.start_replica()

    async def half_way() -> bool:
        return bool((await show(house, job["id"]))["text"] == "a red ")

    await wait_until(half_way, "the text so far")
    assert (await show(house, job["id"]))["status"] == "processing"
    house.engine.release.set()
    done = await until(house, job["id"], "succeeded")
    assert done["completion"]["choices"][0]["message"]["content"] == done["text"] == "a red !hold square"
    assert done["completion"]["object"] == "chat.completion"
    assert done["completion"]["usage"]["completion_tokens"] == 4
    assert done["position"] is done["error"] is None
    assert done["ended_at"] >= done["created_at"]


async def test_the_estimate_follows_the_measured_pace(house: House, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(house.broker._speed, "pace", lambda todo: 2.5)
    assert [(await create(house, "x"))["eta_seconds"] for _ in range(3)] == [3, 5, 8]


async def test_a_failed_job_says_why(house: House) -> None:
    await house.start_replica()
    failed = await until(house, (await create(house, "word " * 101))["id"], "failed")
    assert (failed["error"]["code"], failed["error"]["param"]) == ("context_length_exceeded", "messages")
    assert failed["completion"] is None


async def test_an_expired_job() -> None:
    async with open_house(MemoryBroker(), Settings(request_timeout_seconds=0.05)) as house:
        expired = await until(house, (await create(house, "x"))["id"], "expired")
        assert expired["error"]["code"] == "timeout"


async def test_cancelling(house: House) -> None:
    waiting = await create(house, "x")
    response = await house.http.delete(f"/v1/jobs/{waiting['id']}")
    assert (response.status_code, response.json()["status"]) == (200, "cancelled")
    assert response.json()["error"]["code"] == "cancelled"

    await house.start_replica()
    running = await create(house, "a !hold b")
    await wait_until(lambda: len(house.engine.seen) == 1, "it runs")
    assert (await house.http.delete(f"/v1/jobs/{running['id']}")).status_code == 200
    house.engine.release.set()
    await until(house, running["id"], "cancelled")
    await wait_until(lambda: house.engine.aborted == [house.engine.seen[0].id], "the engine is told")

    done = await create(house, "y")
    await until(house, done["id"], "succeeded")
    assert (await house.http.delete(f"/v1/jobs/{done['id']}")).json()["status"] == "succeeded"


async def test_pages_of_ones_own_jobs(house: House) -> None:
    ids = [(await create(house, f"job {n}"))["id"] for n in range(5)]
    first = (await house.http.get("/v1/jobs", params={"limit": 2})).json()
    second = (await house.http.get("/v1/jobs", params={"limit": 3, "after": first["last_id"]})).json()
    assert [job["id"] for job in first["data"] + second["data"]] == ids[::-1]
    assert (first["has_more"], second["has_more"]) == (True, False)
    assert (first["first_id"], second["last_id"]) == (ids[4], ids[0])
    assert "completion" not in first["data"][0]
    empty = (await house.http.get("/v1/jobs", params={"after": ids[0]})).json()
    assert (empty["data"], empty["last_id"], empty["has_more"]) == ([], None, False)


@pytest.mark.parametrize(
    ("method", "path", "status", "param"),
    [
        ("GET", "/v1/jobs?limit=0", 400, "limit"),
        ("GET", "/v1/jobs?limit=many", 400, "limit"),
        ("GET", "/v1/jobs?after=nobody", 404, None),
        ("GET", "/v1/jobs/nobody", 404, None),
        ("GET", "/v1/jobs/nobody/events", 404, None),
        ("DELETE", "/v1/jobs/nobody", 404, None),
        ("PUT", "/v1/jobs/nobody", 405, None),
    ],
)
async def test_what_is_wrong_is_said_in_the_form(
    house: House, method: str, path: str, status: int, param: str | None
) -> None:
    response = await house.http.request(method, path)
    error = response.json()["error"]
    assert (response.status_code, error["param"]) == (status, param)
    assert error["message"]


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"priority": "urgent"}, "priority"),
        ({"metadata": {"k": "v" * 513}}, "metadata.k"),
        ({"metadata": {str(n): "v" for n in range(17)}}, "metadata"),
        ({"bananas": 1}, "bananas"),
    ],
)
async def test_a_bad_job_is_refused(house: House, fields: dict[str, Any], param: str) -> None:
    response = await house.http.post("/v1/jobs", json=chat("x", **fields))
    assert (response.status_code, response.json()["error"]["param"]) == (400, param)
    assert (await house.http.post("/v1/chat/completions", json=chat("x", priority="batch"))).status_code == 400


async def test_a_full_queue_refuses_jobs_too(house: House) -> None:
    for _ in range(5):
        await create(house, "x")
    response = await house.http.post("/v1/jobs", json=chat("x"))
    assert (response.status_code, response.json()["error"]["code"]) == (429, "queue_full")


async def test_jobs_of_others_are_not_there(tmp_path: Path) -> None:
    ana, bob = new_key("ana"), new_key("bob")
    (tmp_path / "keys").write_text(f"{ana[1]}\n{bob[1]}\n")
    async with open_house(MemoryBroker(), Settings(api_keys_file=tmp_path / "keys")) as house:
        asks, other = ({"Authorization": f"Bearer {key}"} for key in (ana[0], bob[0]))
        job = (await house.http.post("/v1/jobs", json=chat("x"), headers=asks)).json()
        place = f"/v1/jobs/{job['id']}"
        for method, path in (("GET", place), ("DELETE", place), ("GET", f"{place}/events")):
            response = await house.http.request(method, path, headers=other)
            assert (response.status_code, response.json()["error"]["code"]) == (404, "not_found")
            assert (await house.http.request(method, path)).status_code == 401
        assert (await house.http.get("/v1/jobs", headers=other)).json()["data"] == []
        assert (await house.http.get("/v1/jobs", headers=asks)).json()["data"][0]["status"] == "queued"


async def test_chats_are_jobs_too(house: House) -> None:
    await house.start_replica()
    answer = (await house.http.post("/v1/chat/completions", json=chat("hi"))).json()
    assert (await show(house, answer["id"]))["completion"] == answer
