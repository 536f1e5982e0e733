"""The HTTP ingress: OpenAI's chat completions in front of the queue.

What each address answers; which address that is stands in `routes`. Knows the broker and nothing of Ray, engines or
torch; `app` puts it behind Ray Serve, tests run it under any ASGI server.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import aclosing, asynccontextmanager
from datetime import timedelta
from functools import partial
from typing import Any, ParamSpec, TypeVar

from fastapi import FastAPI, Request, Response
from fastapi.responses import JSONResponse, StreamingResponse

from visionchat_serve import metrics
from visionchat_serve.answer import Piece
from visionchat_serve.api_keys import ApiKeys
from visionchat_serve.broker import Broker
from visionchat_serve.completions import DONE, KEEP_ALIVE, ChunkEncoder, completion_body, error_event
from visionchat_serve.config import Settings
from visionchat_serve.errors import NotFound, Unauthorised, VisionChatError
from visionchat_serve.exchange import Exchange
from visionchat_serve.http_edge import read_body
from visionchat_serve.image_download import ImageDownloads
from visionchat_serve.intake import parse, read_request
from visionchat_serve.schemas import ChatCompletionRequest

log = logging.getLogger(__name__)

P = ParamSpec("P")
T = TypeVar("T")

KEEP_ALIVE_EVERY = timedelta(seconds=10)
QUICK = timedelta(seconds=1)  # a job refused this soon gets its real HTTP status, even when streamed
DECODERS = 2  # threads that parse requests and decode pictures


class Gateway:
    """What the routes share. `connect` makes the broker inside the serving event loop; `downloads` fetches pictures
    named by URL, by default as the settings allow."""

    def __init__(
        self, settings: Settings, connect: Callable[[], Broker], downloads: ImageDownloads | None = None
    ) -> None:
        self.settings = settings
        self.metrics = metrics.Metrics()
        self._keys = ApiKeys(settings.api_keys_file) if settings.api_keys_file is not None else None
        self._connect = connect
        self._downloads = downloads or ImageDownloads.of(settings)
        self._decoders = ThreadPoolExecutor(DECODERS, thread_name_prefix="decode")

    @asynccontextmanager
    async def lifespan(self, _: FastAPI) -> AsyncIterator[None]:
        self.broker = self._connect()
        try:
            yield
        finally:
            await self.broker.close()
            if self._downloads is not None:
                self._downloads.close()
            self._decoders.shutdown(wait=False, cancel_futures=True)

    def owner_of(self, key: str | None) -> str:
        """The name of who asks; "" where everybody may. Raises `Unauthorised`."""
        if self._keys is None:
            return ""
        owner = self._keys.owner(key) if key is not None else None
        if owner is None:
            raise Unauthorised("a valid API key is needed: send the header `Authorization: Bearer <key>`")
        return owner

    async def chat(self, request: Request) -> Response:
        """Read, check, submit, then answer in the form that was asked for."""
        body = await read_body(request, self.settings.max_body_bytes)
        asked, urls = await self._apart(parse, body, self.settings)
        fetched = await self._downloads.fetch(urls) if self._downloads is not None else {}
        job, images = await self._apart(read_request, asked, self.settings, fetched)
        exchange = Exchange(self.broker, job)
        await exchange.submit(images)
        return await (self._stream(exchange, asked) if asked.stream else self._whole(exchange))

    async def _apart(self, work: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """What computes for long would block everybody else in the event loop."""
        return await asyncio.get_running_loop().run_in_executor(self._decoders, partial(work, *args, **kwargs))

    async def _whole(self, exchange: Exchange) -> Response:
        async with aclosing(exchange.deltas(KEEP_ALIVE_EVERY)) as deltas:
            async for _ in deltas:
                pass
        self.metrics.observe(exchange)
        return JSONResponse(completion_body(exchange.job, exchange.choices, exchange.finish))

    async def _stream(self, exchange: Exchange, asked: ChatCompletionRequest) -> Response:
        deltas = exchange.deltas(QUICK)
        try:
            first = await anext(deltas, None)
        except BaseException:
            await deltas.aclose()
            raise
        include_usage = asked.stream_options is not None and asked.stream_options.include_usage
        events = self._events(exchange, first, deltas, ChunkEncoder(exchange.job, include_usage), include_usage)
        return StreamingResponse(events, media_type="text/event-stream", headers={"Cache-Control": "no-store"})

    async def _events(
        self,
        exchange: Exchange,
        first: Piece | None,
        deltas: AsyncGenerator[Piece | None, None],
        chunks: ChunkEncoder,
        include_usage: bool,
    ) -> AsyncIterator[bytes]:
        async with aclosing(deltas):
            try:
                yield chunks.start() + (chunks.piece(first) if first else b"")
                async for delta in deltas:
                    yield chunks.piece(delta) if delta else KEEP_ALIVE
                yield (chunks.end(exchange.finish) + (chunks.usage(exchange.finish) if include_usage else b"") + DONE)
                self.metrics.observe(exchange)
            except VisionChatError as error:
                self.metrics.requests.labels(error.code).inc()
                yield error_event(error)

    async def models(self) -> dict[str, Any]:
        reports = await self.broker.reports()
        model: dict[str, Any] = {
            "id": self.settings.served_name,
            "object": "model",
            "created": int(min((r.loaded_at for r in reports), default=0)),
            "owned_by": "visionchat",
        }
        if reports:
            newest = max(reports, key=lambda r: r.loaded_at)
            model |= {"max_context": newest.max_context, "engine": newest.engine, "revision": newest.revision}
        return {"object": "list", "data": [model]}

    async def model(self, name: str) -> dict[str, Any]:
        found: dict[str, Any] = (await self.models())["data"][0]
        if name != found["id"]:
            raise NotFound(f"the model {name!r} does not exist here; use {found['id']!r}", param="model")
        return found

    async def ready(self) -> Response:
        """200 when the queue answers and at least one warm replica reports itself, else 503 with the reason."""
        try:
            await self.broker.ping()
            replicas = len(await self.broker.reports())
        except VisionChatError as error:
            return JSONResponse({"ready": False, "reason": error.code, "message": error.message}, 503)
        if not replicas:
            message = "no replica is ready yet: the model is loading, or none is running"
            return JSONResponse({"ready": False, "reason": "no_replica", "message": message}, 503)
        return JSONResponse({"ready": True, "replicas": replicas})

    async def metrics_page(self) -> Response:
        load, reports = await self.broker.load(), await self.broker.reports()
        return Response(self.metrics.page(load, len(reports)), media_type=metrics.CONTENT_TYPE)
