"""Following a job without a key, as browsers must: the ticket in `events_url` opens a job's events and nothing else."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from support import asgi
from support.house import House, chat, open_house
from visionchat_serve.api_keys import new_key
from visionchat_serve.config import Settings
from visionchat_serve.memory_broker import MemoryBroker


@dataclass
class Locked:
    """A house that asks for keys, and those of two owners."""

    house: House
    ana: dict[str, str]
    bob: dict[str, str]

    async def create(self, headers: dict[str, str], text: str = "a red square") -> dict[str, Any]:
        response = await self.house.http.post("/v1/jobs", json=chat(text), headers=headers)
        assert response.status_code == 202
        body: dict[str, Any] = response.json()
        return body


@pytest.fixture
async def locked(tmp_path: Path) -> AsyncIterator[Locked]:
    keys = [new_key(name) for name in ("ana", "bob")]
    (tmp_path / "keys").write_text("\n".join(line for _, line in keys))
    ana, bob = ({"Authorization": f"Bearer {key}"} for key, _ in keys)
    async with open_house(MemoryBroker(), Settings(api_keys_file=tmp_path / "keys")) as house:
        await house.start_replica()
        yield Locked(house, ana, bob)


async def test_the_address_in_the_body_needs_no_key(locked: Locked) -> None:
    url = (await locked.create(locked.ana))["events_url"]
    async with asgi.get(locked.house.app, url) as stream:
        assert stream.status == 200
        body = await stream.whole()
    assert b"event: succeeded" in body
    last = [line for line in body.split(b"\n") if line.startswith(b"id: ")][-1].removeprefix(b"id: ").decode()
    async with asgi.get(locked.house.app, url, Last_Event_ID=last) as stream:
        assert stream.status == 204, "resumed after the end: do not come back"
    async with asgi.websocket(locked.house.app, url) as connection:
        assert (await connection.hear())["type"] == "websocket.accept"
        sent = [await connection.hear()]
        while sent[-1]["type"] == "websocket.send":
            sent.append(await connection.hear())
    assert json.loads(sent[-2]["text"])["event"] == "succeeded"


async def test_it_is_in_every_body_of_the_job_and_stays_the_same(locked: Locked) -> None:
    job = await locked.create(locked.ana)
    shown = (await locked.house.http.get(f"/v1/jobs/{job['id']}", headers=locked.ana)).json()
    [listed] = (await locked.house.http.get("/v1/jobs", headers=locked.ana)).json()["data"]
    assert job["events_url"] == shown["events_url"] == listed["events_url"]
    assert "?ticket=" in job["events_url"]


async def test_no_other_ticket_opens_it(locked: Locked) -> None:
    job, other = await locked.create(locked.ana), await locked.create(locked.bob)
    path, _, ticket = job["events_url"].partition("?ticket=")
    foreign = other["events_url"].partition("?ticket=")[2]
    assert ticket != foreign
    for url in (path, *(f"{path}?ticket={wrong}" for wrong in ("", "x", foreign, ticket[:-1], ticket + "x", "%C3%BC"))):
        refused = await locked.house.http.get(url)
        assert (refused.status_code, refused.json()["error"]["code"]) == (401, "invalid_api_key"), url
        async with asgi.websocket(locked.house.app, url) as connection:
            head = await connection.hear()
            assert (head["type"], head["status"]) == ("websocket.http.response.start", 401)
    unknown = await locked.house.http.get(f"/v1/jobs/nobody/events?ticket={ticket}")
    assert unknown.status_code == 401, "whether there is such a job is nobody's business"


async def test_it_opens_nothing_else(locked: Locked) -> None:
    job = await locked.create(locked.ana)
    ticket = job["events_url"].partition("?")[2]
    for method, path in (("GET", job["id"]), ("DELETE", job["id"]), ("GET", "")):
        refused = await locked.house.http.request(method, f"/v1/jobs/{path}?{ticket}".replace("/?", "?"))
        assert refused.status_code == 401
    stranger = await locked.house.http.get(job["events_url"], headers=locked.bob)
    assert stranger.status_code == 404, "a key that was sent counts, and it is another's"


async def test_where_everybody_may_ask_there_is_none() -> None:
    async with open_house(MemoryBroker()) as house:
        await house.start_replica()
        job = (await house.http.post("/v1/jobs", json=chat("a"))).json()
        assert job["events_url"] == f"/v1/jobs/{job['id']}/events"
        for more in ("", "?ticket=of-earlier"):
            assert (await house.http.get(job["events_url"] + more)).status_code == 200
