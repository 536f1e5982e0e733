"""A watch that is dead is noticed, and a listing mends what it has missed."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import timedelta
from typing import Any

import httpx

from support.cluster_fixtures import Chats
from support.control_plane import ControlPlane
from support.waiting import wait_until
from visionchat_operator.api import KIND
from visionchat_operator.handlers import Watches
from visionchat_operator.kube import Kube, connected
from visionchat_operator.metrics import OperatorMetrics
from visionchat_operator.resync import Resync
from visionchat_operator.store import Store
from visionchat_operator.web import serving
from visionchat_operator.world import Key

SOON = timedelta(milliseconds=100)


@asynccontextmanager
async def resyncing(plane: ControlPlane, namespace: str) -> AsyncIterator[tuple[Resync, Store, Watches, list[Key]]]:
    store, metrics, woken = Store(), OperatorMetrics(), list[Key]()
    watches = Watches(store, woken.append, lambda: None)
    async with connected(plane.kubeconfig) as api:
        kube = Kube(api, store, metrics)
        resync = Resync(kube, store, watches, metrics, woken.append, (KIND,), namespace, SOON, SOON)
        running = asyncio.create_task(resync.run())
        try:
            yield resync, store, watches, woken
        finally:
            running.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await running


async def test_a_dead_watch_makes_the_operator_unhealthy_until_it_is_back(plane: ControlPlane, chats: Chats) -> None:
    created: dict[str, Any] = await asyncio.to_thread(chats.create)
    async with resyncing(plane, chats.namespace) as (resync, store, watches, woken):
        await wait_until(lambda: resync.dead == KIND, "the watch that brings nothing is found dead")
        assert store.visionchat(Key(chats.namespace, "demo")) is not None
        assert Key(chats.namespace, "demo") in woken
        watches.event(KIND, "ADDED", created)
        await wait_until(lambda: resync.dead is None, "it is alive again")


async def test_healthz_says_what_is_wrong() -> None:
    fault: list[str] = []
    page = httpx.AsyncClient(trust_env=False)
    async with serving("127.0.0.1", 0, lambda: fault[0] if fault else None, OperatorMetrics()) as port, page as http:
        url = f"http://127.0.0.1:{port}"
        assert (await http.get(f"{url}/healthz")).status_code == 200
        assert "visionchat_operator_reconcile_seconds" in (await http.get(f"{url}/metrics")).text
        fault.append("the watch of Pod is dead")
        answer = await http.get(f"{url}/healthz")
    assert (answer.status_code, answer.text.strip()) == (503, "the watch of Pod is dead")
