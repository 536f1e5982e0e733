"""A job's events at byte level, as a browser's EventSource reads them, and as a WebSocket."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import pytest

from support import asgi
from support.house import House, chat, open_house
from support.waiting import wait_until
from visionchat_serve import following
from visionchat_serve.broker import BrokerPolicy
from visionchat_serve.memory_broker import MemoryBroker
from visionchat_serve.messages import Claim, Finish, Usage

NOW = timedelta(0)
LEASE = timedelta(milliseconds=50)


@pytest.fixture
async def house(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[House]:
    monkeypatch.setattr(following, "SOON", timedelta(milliseconds=10))
    monkeypatch.setattr(following, "SIGN_OF_LIFE", timedelta(milliseconds=20))
    async with open_house(MemoryBroker(BrokerPolicy(lease=LEASE))) as house:
        yield house


@dataclass
class Browser:
    """What an EventSource has dispatched after reading bytes, by the rules of the HTML standard."""

    last_id: str = ""

    def read(self, body: bytes) -> list[tuple[str, str, str]]:
        """(type, data, lastEventId) of each event; an event that is not ended by an empty line is dropped."""
        events, kind, data = [], "", list[str]()
        for line in body.decode().split("\n")[:-1]:
            if line == "":
                if data:
                    events.append((kind or "message", "\n".join(data), self.last_id))
                kind, data = "", []
                continue
            name, _, value = line.partition(":")
            value = value.removeprefix(" ")
            if name == "event":
                kind = value
            elif name == "data":
                data.append(value)
            elif name == "id":
                self.last_id = value
            else:
                assert name == "" or (name, value) == ("retry", "1000"), f"an EventSource ignores {line!r}"
        return events


def told(events: list[tuple[str, str, str]]) -> list[tuple[str, Any]]:
    """The durable events: text pieces and the end's name."""
    durable = [(kind, json.loads(data)) for kind, data, _ in events if kind != "status"]
    return [(kind, data["text"] if kind == "text" else None) for kind, data in durable]


async def submit(house: House, text: str = "x") -> str:
    return str((await house.http.post("/v1/jobs", json=chat(text))).json()["id"])


async def claim(house: House) -> Claim:
    [claim] = await house.broker.claim("by hand", 1, timedelta(seconds=5))
    return claim


async def answer(house: House, *pieces: str) -> None:
    claimed = await claim(house)
    for index, piece in enumerate(pieces):
        await house.broker.publish(claimed, index, piece)
    assert await house.broker.finish(claimed, Finish("stop", Usage(3, len(pieces))))


async def test_the_bytes_of_a_whole_job(house: House) -> None:
    job_id = await submit(house)
    await answer(house, "a ", "ré\nd")
    async with asgi.get(house.app, f"/v1/jobs/{job_id}/events") as stream:
        body = await stream.whole()
    assert stream.headers["content-type"].startswith("text/event-stream")
    assert stream.headers["cache-control"] == "no-store"
    ids = [event.id for event in await house.broker.so_far(job_id)]
    end = {"id": job_id, "status": "succeeded", "finish_reason": "stop"}
    usage = {"prompt_tokens": 3, "completion_tokens": 2, "total_tokens": 5}
    usage |= {"prompt_tokens_details": {"cached_tokens": 0, "image_tokens": 0}}  # type: ignore[dict-item]
    expected = (
        "retry: 1000\n\n"
        f'id: {ids[0]}\nevent: text\ndata: {{"text": "a "}}\n\n'
        f'id: {ids[1]}\nevent: text\ndata: {{"text": "r\\u00e9\\nd"}}\n\n'
        f"id: {ids[2]}\nevent: succeeded\ndata: {json.dumps(end | {'usage': usage, 'error': None})}\n\n"
    )
    assert body.decode() == expected


async def test_only_durable_events_move_the_browsers_place(house: House) -> None:
    await submit(house)
    job_id = await submit(house)
    browser = Browser()
    async with asgi.get(house.app, f"/v1/jobs/{job_id}/events") as stream:
        await stream.until(b": position 2\n\n")
        first = await claim(house)
        await stream.until(b": position 1\n\n")
        second = await claim(house)
        await house.broker.publish(second, 0, "a ")
        await stream.until(b'data: {"text": "a "}\n\n')
        await stream.until(b": alive\n\n")
        events = browser.read(stream.body)
    assert await house.broker.finish(first, Finish("stop"))
    statuses = [(json.loads(data)["position"], place) for kind, data, place in events if kind == "status"]
    assert statuses == [(2, ""), (1, "")], "states have no id"
    assert browser.last_id == (await house.broker.so_far(job_id))[0].id


async def test_resuming_after_each_event_neither_loses_nor_repeats(house: House) -> None:
    job_id = await submit(house)
    await answer(house, "a ", "red ", "square")
    whole = [("text", "a "), ("text", "red "), ("text", "square"), ("succeeded", None)]
    ids = ["0", *(event.id for event in await house.broker.so_far(job_id))]
    for seen, event_id in enumerate(ids[:-1]):
        async with asgi.get(house.app, f"/v1/jobs/{job_id}/events", Last_Event_ID=event_id) as stream:
            assert told(Browser().read(await stream.whole())) == whole[seen:]
        async with asgi.get(house.app, f"/v1/jobs/{job_id}/events?after={event_id}") as stream:
            assert told(Browser().read(await stream.whole())) == whole[seen:]
    async with asgi.get(house.app, f"/v1/jobs/{job_id}/events", Last_Event_ID=ids[-1]) as stream:
        assert (stream.status, await stream.whole()) == (204, b""), "a browser comes back after anything else"


async def test_resuming_across_a_taken_over_job(house: House) -> None:
    """The second replica repeats what the first said, in other pieces; wherever the reader left, it reads on."""
    job_id = await submit(house)
    first = await claim(house)
    await house.broker.publish(first, 0, "a re")
    second = await claim(house)
    assert second.attempt == 2
    for index, piece in enumerate(("a ", "red ", "square")):
        await house.broker.publish(second, index, piece)
    await house.broker.finish(second, Finish("stop"))
    browser = Browser()
    async with asgi.get(house.app, f"/v1/jobs/{job_id}/events") as stream:
        whole = browser.read(await stream.whole())
    assert told(whole) == [("text", "a re"), ("text", "d "), ("text", "square"), ("succeeded", None)]
    for at, (_, _, place) in enumerate(whole[:-1], start=1):
        async with asgi.get(house.app, f"/v1/jobs/{job_id}/events", Last_Event_ID=place) as stream:
            assert told(Browser().read(await stream.whole())) == told(whole)[at:]


async def test_another_answer_is_never_spliced_on(house: House) -> None:
    job_id = await submit(house)
    await house.broker.publish(await claim(house), 0, "a red")
    second = await claim(house)
    await house.broker.publish(second, 0, "blue")
    await house.broker.finish(second, Finish("stop"))
    async with asgi.get(house.app, f"/v1/jobs/{job_id}/events") as stream:
        events = Browser().read(await stream.whole())
    assert told(events) == [("text", "a red"), ("failed", None)]
    assert json.loads(events[-1][1])["error"]["code"] == "replica_lost"
    async with asgi.get(house.app, f"/v1/jobs/{job_id}/events", Last_Event_ID=events[-1][2]) as stream:
        assert stream.status == 204
    assert (await house.http.get(f"/v1/jobs/{job_id}")).json()["text"] == "blue", "the job itself is whole"


@pytest.mark.parametrize("place", ["yesterday", "-1", "99999999999999-0", "1-1"])
async def test_a_place_that_is_none_of_the_jobs_is_refused(house: House, place: str) -> None:
    job_id = await submit(house)
    response = await house.http.get(f"/v1/jobs/{job_id}/events", headers={"Last-Event-ID": place})
    assert (response.status_code, response.json()["error"]["code"]) == (400, "invalid_request")


async def test_a_reader_that_leaves_does_not_stop_the_job(house: House) -> None:
    job_id = await submit(house)
    claimed = await claim(house)
    async with asgi.get(house.app, f"/v1/jobs/{job_id}/events") as stream:
        await stream.until(b": alive")
    assert await house.broker.finish(claimed, Finish("stop"))
    assert (await house.http.get(f"/v1/jobs/{job_id}")).json()["status"] == "succeeded"


async def test_the_ends_have_their_names(house: House) -> None:
    cancelled, failed = await submit(house), await submit(house)
    await house.broker.cancel(cancelled)
    claimed = await claim(house)
    await house.broker.finish(claimed, Finish("error", error_code="engine_failure", message="boom"))
    for job_id, name, code in ((cancelled, "cancelled", "cancelled"), (failed, "failed", "engine_failure")):
        async with asgi.get(house.app, f"/v1/jobs/{job_id}/events") as stream:
            [(kind, data, _)] = Browser().read(await stream.whole())
        assert (kind, json.loads(data)["error"]["code"]) == (name, code)


async def test_the_same_as_a_websocket(house: House) -> None:
    job_id = await submit(house)
    async with asgi.websocket(house.app, f"/v1/jobs/{job_id}/events") as socket:
        sent = [await socket.hear(), await socket.hear()]
        assert sent[0]["type"] == "websocket.accept"
        await answer(house, "a ", "b")
        while sent[-1]["type"] != "websocket.close":
            sent.append(await socket.hear())
    ids = [event.id for event in await house.broker.so_far(job_id)]
    got = [(message["event"], message["id"]) for message in asgi.messages(sent)]
    assert got == [("status", None), ("text", ids[0]), ("text", ids[1]), ("succeeded", ids[2])]
    async with asgi.websocket(house.app, f"/v1/jobs/{job_id}/events?after={ids[0]}") as socket:
        sent = [await socket.hear() for _ in range(3)]
    assert [message["id"] for message in asgi.messages(sent)] == ids[1:]


async def test_a_websocket_that_leaves_is_noticed(house: House) -> None:
    job_id = await submit(house)
    async with asgi.websocket(house.app, f"/v1/jobs/{job_id}/events") as socket:
        assert (await socket.hear())["type"] == "websocket.accept"
    assert (await house.http.get(f"/v1/jobs/{job_id}")).json()["status"] == "queued"


async def test_a_websocket_to_nobody_is_refused_with_the_error(house: House) -> None:
    async with asgi.websocket(house.app, "/v1/jobs/nobody/events") as socket:
        head, body = await socket.hear(), await socket.hear()
    assert (head["type"], head["status"]) == ("websocket.http.response.start", 404)
    assert json.loads(body["body"])["error"]["code"] == "not_found"


async def test_readers_leave_nothing_behind(house: House) -> None:
    job_id = await submit(house)
    async with asgi.get(house.app, f"/v1/jobs/{job_id}/events") as one:
        async with asgi.get(house.app, f"/v1/jobs/{job_id}/events") as two:
            await two.until(b": position 1")
        await answer(house, "a")
        assert told(Browser().read(await one.whole())) == [("text", "a"), ("succeeded", None)]
    await wait_until(lambda: one.ended, "it ended")
