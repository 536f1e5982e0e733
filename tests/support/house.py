"""A gateway over a queue and a scripted engine, asked without sockets."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import timedelta
from typing import Any

import httpx

from support.scripted_engine import ScriptedEngine, loader
from visionchat_serve.broker import Broker
from visionchat_serve.config import Settings
from visionchat_serve.replica import Replica
from visionchat_serve.routes import create_app

MODEL = "visionchat-tiny"


def chat(text: str, **fields: Any) -> dict[str, Any]:
    """The body of a chat about `text`."""
    return {"model": MODEL, "messages": [{"role": "user", "content": text}], **fields}


class House:
    """`http` asks the gateway `app`; with `start_replica` there is one that answers."""

    def __init__(self, broker: Broker, settings: Settings) -> None:
        self.broker = broker
        self.engine = ScriptedEngine()
        self.app = create_app(settings, lambda: broker)
        self.http: httpx.AsyncClient
        self._replicas: list[Replica] = []

    async def start_replica(self) -> Replica:
        name = f"r{len(self._replicas) + 1}"
        replica = Replica(loader(self.engine), self.broker, name, (0,), claim_wait=timedelta(milliseconds=20))
        self._replicas.append(replica)
        await replica.start()
        return replica

    async def close(self) -> None:
        self.engine.release.set()
        for replica in self._replicas:
            await replica.drain(timedelta(seconds=5))


@asynccontextmanager
async def open_house(broker: Broker, settings: Settings | None = None) -> AsyncIterator[House]:
    """A running gateway; it closes the broker in the end."""
    house = House(broker, settings or Settings())
    async with house.app.router.lifespan_context(house.app):
        transport = httpx.ASGITransport(house.app, raise_app_exceptions=False)
        async with httpx.AsyncClient(transport=transport, base_url="http://gateway") as house.http:
            try:
                yield house
            finally:
                await house.close()
