"""The HTTP API over every queue there is: what it promises must not depend on where the queue is kept."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from typing import Any

import pytest

from contract.queues import Queue
from support import asgi
from support.house import House, chat, open_house
from support.waiting import wait_until
from visionchat_serve.broker import Broker
from visionchat_serve.messages import Claim, Finish, Usage

STOP = Finish("stop", Usage(3, 2))


async def create(house: House, text: str, **fields: Any) -> str:
    response = await house.http.post("/v1/jobs", json=chat(text, **fields))
    assert response.status_code == 202, response.text
    return str(response.json()["id"])


async def claim(broker: Broker) -> Claim:
    [claimed] = await broker.claim("by hand", 1, timedelta(seconds=5))
    return claimed


async def show(house: House, job_id: str) -> dict[str, Any]:
    body: dict[str, Any] = (await house.http.get(f"/v1/jobs/{job_id}")).json()
    return body


async def test_a_job_seen_from_another_gateway(queue: Queue) -> None:
    broker = queue.open()
    async with open_house(queue.open()) as house, open_house(queue.open()) as other:
        job_id = await create(house, "x", metadata={"k": "é"}, priority="batch")
        seen = await show(other, job_id)
        assert (seen["status"], seen["position"], seen["metadata"]) == ("queued", 1, {"k": "é"})
        claimed = await claim(broker)
        await broker.publish(claimed, 0, "a ")
        assert ((seen := await show(other, job_id))["status"], seen["text"]) == ("processing", "a ")
        await broker.publish(claimed, 1, "b")
        await broker.finish(claimed, STOP)
        seen = await show(other, job_id)
        assert (seen["status"], seen["text"], seen["priority"]) == ("succeeded", "a b", "batch")
        assert seen["completion"]["choices"][0]["message"]["content"] == "a b"
        page = (await other.http.get("/v1/jobs")).json()
        assert [job["id"] for job in page["data"]] == [job_id]


async def test_a_stream_resumed_at_another_gateway(queue: Queue) -> None:
    broker = queue.open()
    async with open_house(queue.open()) as house, open_house(queue.open()) as other:
        job_id = await create(house, "x")
        claimed = await claim(broker)
        await broker.publish(claimed, 0, "a ")
        async with asgi.get(house.app, f"/v1/jobs/{job_id}/events") as stream:
            await stream.until(b'{"text": "a "}\n\n')
        [seen] = await broker.so_far(job_id)
        await broker.publish(claimed, 1, "b")
        await broker.finish(claimed, STOP)
        async with asgi.get(other.app, f"/v1/jobs/{job_id}/events", Last_Event_ID=seen.id) as stream:
            body = await stream.whole()
        assert b'"a "' not in body
        assert body.count(b"event: text") == body.count(b"event: succeeded") == 1


async def test_what_was_asked_and_answered_so_far(broker: Broker, make_job: Any) -> None:
    job = make_job(images=1, owner="ann", metadata={"k": "v"})
    await broker.submit(job, [b"p"])
    assert await broker.asked([job.id, "nobody"]) == [job, None]
    assert await broker.asked([]) == []
    assert await broker.so_far(job.id) == await broker.so_far("nobody") == []
    claimed = await claim(broker)
    await broker.publish(claimed, 0, "a")
    await broker.finish(claimed, STOP)
    assert await broker.so_far(job.id) == [event async for event in broker.events(job.id)]


async def test_a_cancelled_job_stops(queue: Queue) -> None:
    async with open_house(queue.open()) as house:
        await house.start_replica()
        job_id = await create(house, "a !hold b")
        await wait_until(lambda: bool(house.engine.seen), "it runs")
        assert (await house.http.delete(f"/v1/jobs/{job_id}")).status_code == 200
        house.engine.release.set()

        async def stopped() -> bool:
            return bool((await show(house, job_id))["status"] == "cancelled")

        await wait_until(stopped, "the replica has stopped")


async def test_of_many_same_requests_at_many_gateways_one_is_accepted(queue: Queue) -> None:
    async with open_house(queue.open()) as house, open_house(queue.open()) as other:
        asks = [
            gateway.http.post("/v1/jobs", json=chat("x"), headers={"Idempotency-Key": "key-1"})
            for gateway in (house, other) * 5
        ]
        responses = await asyncio.gather(*asks)
        assert {response.status_code for response in responses} == {202}
        assert len({response.json()["id"] for response in responses}) == 1
        assert sum("idempotency-replayed" not in response.headers for response in responses) == 1
        response = await other.http.post("/v1/jobs", json=chat("y"), headers={"Idempotency-Key": "key-1"})
        assert response.status_code == 422


@pytest.mark.parametrize("more", [":events", ":images", ":clients", ":", "*", "é", "{x}", "%00", "%0a"])
async def test_what_is_nearly_a_jobs_id_is_nobodys(queue: Queue, more: str) -> None:
    """Also where the queue has something of the job by a name like that."""
    async with open_house(queue.open()) as house:
        await house.start_replica()
        job_id = await create(house, "a !hold b")
        await wait_until(lambda: bool(house.engine.seen), "it runs")
        for method, path in (("GET", ""), ("GET", "/events"), ("DELETE", "")):
            response = await house.http.request(method, f"/v1/jobs/{job_id}{more}{path}")
            assert response.status_code == 404, response.text
        listed = await house.http.get("/v1/jobs", params={"after": f"{job_id}{more}"})
        assert listed.status_code == 404
        house.engine.release.set()
