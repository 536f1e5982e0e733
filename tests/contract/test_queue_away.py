"""Gateway and replica while Redis is away: new requests are told when to come back, nothing accepted is lost."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import httpx

from contract.queues import Queue
from support.scripted_engine import ScriptedEngine, loader
from support.waiting import wait_until
from visionchat_serve.config import Settings
from visionchat_serve.redis_server import EmbeddedRedis
from visionchat_serve.replica import Replica
from visionchat_serve.routes import create_app


def chat(text: str) -> dict[str, Any]:
    return {"model": "visionchat-tiny", "messages": [{"role": "user", "content": text}]}


async def test_redis_goes_away_and_comes_back(own_server: EmbeddedRedis) -> None:
    queue, engine = Queue(own_server.url), ScriptedEngine()
    app = create_app(Settings(), lambda: queue.open(lease=timedelta(seconds=30)))
    replica = Replica(loader(engine), queue.open(lease=timedelta(seconds=30)), "r1", (0,))
    async with app.router.lifespan_context(app):
        await replica.start()
        transport = httpx.ASGITransport(app, raise_app_exceptions=False)
        async with httpx.AsyncClient(transport=transport, base_url="http://gateway") as http:

            def ask(text: str) -> asyncio.Task[httpx.Response]:
                return asyncio.create_task(http.post("/v1/chat/completions", json=chat(text)))

            running = ask("a !hold b")
            await wait_until(lambda: bool(engine.seen), "the first is being answered")
            waiting = ask("c d")
            await wait_until(status(http, 200), "the gateway is ready")
            await wait_until(depth(http, "waiting", 1), "the second waits")

            own_server.stop()
            refused = await ask("e f")
            assert refused.status_code == 503
            assert int(refused.headers["Retry-After"]) >= 1
            assert refused.json()["error"]["code"] == "service_unavailable"
            not_ready = await http.get("/readyz")
            assert (not_ready.status_code, not_ready.json()["ready"]) == (503, False)
            assert (await http.get("/healthz")).status_code == 200
            engine.release.set()  # the answer is written while there is nowhere to send it
            await wait_until(lambda: not engine.has_work, "the engine is done")
            replica.check()
            own_server.start()

            for task, text in ((running, "a !hold b"), (waiting, "c d"), (ask("g h"), "g h")):
                answer = await asyncio.wait_for(task, 10)
                assert answer.status_code == 200
                assert answer.json()["choices"][0]["message"]["content"] == text
            await wait_until(status(http, 200), "the gateway is ready again")
            assert [request.id.rpartition("#")[0] for request in engine.seen].count(engine.seen[0].id[:-2]) == 1
        await replica.drain(timedelta(seconds=5))
    await queue.close()


def status(http: httpx.AsyncClient, code: int) -> Callable[[], Any]:
    async def is_so() -> bool:
        return (await http.get("/readyz")).status_code == code

    return is_so


def depth(http: httpx.AsyncClient, state: str, count: int) -> Callable[[], Any]:
    async def is_so() -> bool:
        return f'visionchat_queue_depth{{state="{state}"}} {count}.0' in (await http.get("/metrics")).text

    return is_so
