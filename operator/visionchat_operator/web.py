"""`/healthz` and `/metrics` of the operator. Healthy means: the process works and no watch is dead."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

from aiohttp import web
from prometheus_client import CONTENT_TYPE_LATEST, generate_latest

from visionchat_operator.metrics import OperatorMetrics


@asynccontextmanager
async def serving(
    host: str, port: int, fault: Callable[[], str | None], metrics: OperatorMetrics
) -> AsyncIterator[int]:
    """Answer while the block runs; yields the port. `fault` says what is wrong, if anything."""

    async def healthz(_: web.Request) -> web.Response:
        wrong = fault()
        return web.Response(text=f"{wrong or 'ok'}\n", status=503 if wrong else 200)

    async def metrics_page(_: web.Request) -> web.Response:
        return web.Response(body=generate_latest(metrics.registry), headers={"Content-Type": CONTENT_TYPE_LATEST})

    app = web.Application()
    app.add_routes([web.get("/healthz", healthz), web.get("/metrics", metrics_page)])
    runner = web.AppRunner(app, access_log=None)
    await runner.setup()
    try:
        site = web.TCPSite(runner, host, port)
        await site.start()
        bound: int = runner.addresses[0][1]
        yield bound
    finally:
        await runner.cleanup()
