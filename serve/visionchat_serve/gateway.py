"""The HTTP ingress: OpenAI's chat completions in front of the queue.

    POST /v1/chat/completions   GET /v1/models   GET /healthz   GET /readyz   GET /metrics   GET /docs

A plain FastAPI app that knows the broker and nothing of Ray, engines or torch; `app` puts it behind Ray Serve,
tests run it under any ASGI server.
"""

from __future__ import annotations

import asyncio
import logging
import re
import uuid
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import aclosing, asynccontextmanager
from datetime import timedelta
from typing import Any

from fastapi import FastAPI, Request, Response
from fastapi.responses import JSONResponse, RedirectResponse, StreamingResponse
from starlette.datastructures import MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from visionchat_serve import __version__, metrics
from visionchat_serve.broker import Broker
from visionchat_serve.completions import DONE, KEEP_ALIVE, ChunkEncoder, completion_body, error_event
from visionchat_serve.config import Settings
from visionchat_serve.errors import EngineFailure, InvalidRequest, NotFound, RequestTooLarge, VisionChatError
from visionchat_serve.exchange import Exchange
from visionchat_serve.intake import read_request
from visionchat_serve.schemas import ChatCompletionRequest

log = logging.getLogger(__name__)

KEEP_ALIVE_EVERY = timedelta(seconds=10)
QUICK = timedelta(seconds=1)  # a job refused this soon gets its real HTTP status, even when streamed
DECODERS = 2  # threads that parse requests and decode pictures


class Gateway:
    """What the routes share. `connect` makes the broker inside the serving event loop."""

    def __init__(self, settings: Settings, connect: Callable[[], Broker]) -> None:
        self.settings = settings
        self.metrics = metrics.Metrics()
        self._connect = connect
        self._decoders = ThreadPoolExecutor(DECODERS, thread_name_prefix="decode")

    @asynccontextmanager
    async def lifespan(self, _: FastAPI) -> AsyncIterator[None]:
        self.broker = self._connect()
        try:
            yield
        finally:
            await self.broker.close()
            self._decoders.shutdown(wait=False, cancel_futures=True)

    async def chat(self, request: Request) -> Response:
        """Read, check, submit, then answer in the form that was asked for."""
        body = await read_body(request, self.settings.max_body_bytes)
        loop = asyncio.get_running_loop()
        asked, job, images = await loop.run_in_executor(self._decoders, read_request, body, self.settings)
        exchange = Exchange(self.broker, job)
        await exchange.submit(images)
        return await (self._stream(exchange, asked) if asked.stream else self._whole(exchange))

    async def _whole(self, exchange: Exchange) -> Response:
        async with aclosing(exchange.deltas(KEEP_ALIVE_EVERY)) as deltas:
            async for _ in deltas:
                pass
        self.metrics.observe(exchange)
        return JSONResponse(completion_body(exchange.job, exchange.text, exchange.finish))

    async def _stream(self, exchange: Exchange, asked: ChatCompletionRequest) -> Response:
        deltas = exchange.deltas(QUICK)
        try:
            first = await anext(deltas, "")
        except BaseException:
            await deltas.aclose()
            raise
        include_usage = asked.stream_options is not None and asked.stream_options.include_usage
        events = self._events(exchange, first, deltas, ChunkEncoder(exchange.job, include_usage), include_usage)
        return StreamingResponse(events, media_type="text/event-stream", headers={"Cache-Control": "no-store"})

    async def _events(
        self,
        exchange: Exchange,
        first: str | None,
        deltas: AsyncGenerator[str | None, None],
        chunks: ChunkEncoder,
        include_usage: bool,
    ) -> AsyncIterator[bytes]:
        async with aclosing(deltas):
            try:
                yield chunks.start() + (chunks.text(first) if first else b"")
                async for delta in deltas:
                    yield chunks.text(delta) if delta else KEEP_ALIVE
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


def create_app(settings: Settings, connect: Callable[[], Broker]) -> FastAPI:
    """The ASGI app. `connect` is called once, in the event loop that serves."""
    gateway = Gateway(settings, connect)
    app = FastAPI(title="VisionChat", version=__version__, lifespan=gateway.lifespan, redoc_url=None)
    _add_routes(app, gateway)
    _add_error_handlers(app, gateway)
    app.add_middleware(RequestId)
    return app


def _add_routes(app: FastAPI, gateway: Gateway) -> None:
    schema = ChatCompletionRequest.model_json_schema(ref_template="#/components/schemas/{model}")
    definitions = schema.pop("$defs", {})
    body = {"requestBody": {"required": True, "content": {"application/json": {"schema": schema}}}}
    errors: dict[int | str, dict[str, Any]] = {
        status: {"description": "OpenAI's error form"} for status in (400, 404, 413, 415, 422, 429, 502, 503, 504)
    }

    @app.post("/v1/chat/completions", openapi_extra=body, responses=errors)
    async def chat_completions(request: Request) -> Response:
        """Answer a chat about pictures; with `"stream": true` as server-sent events."""
        return await gateway.chat(request)

    @app.get("/v1/models")
    async def models() -> dict[str, Any]:
        """The one model that is served."""
        return await gateway.models()

    @app.get("/v1/models/{name:path}")
    async def model(name: str) -> dict[str, Any]:
        """The served model, by name."""
        found: dict[str, Any] = (await gateway.models())["data"][0]
        if name != found["id"]:
            raise NotFound(f"the model {name!r} does not exist here; use {found['id']!r}", param="model")
        return found

    @app.get("/healthz")
    async def healthz() -> dict[str, str]:
        """The gateway's process answers."""
        return {"status": "ok"}

    @app.get("/readyz", responses={503: {"description": "not ready, with the reason"}})
    async def readyz() -> Response:
        """The queue answers and a warm replica is there."""
        return await gateway.ready()

    @app.get("/metrics")
    async def metrics_page() -> Response:
        """Prometheus' text form."""
        return await gateway.metrics_page()

    @app.get("/", include_in_schema=False)
    async def root() -> Response:
        return RedirectResponse("/docs")

    plain_openapi = app.openapi

    def openapi() -> dict[str, Any]:
        page = plain_openapi()
        page.setdefault("components", {}).setdefault("schemas", {}).update(definitions)
        return page

    app.openapi = openapi  # type: ignore[method-assign]


def _add_error_handlers(app: FastAPI, gateway: Gateway) -> None:
    def answer(error: VisionChatError) -> Response:
        gateway.metrics.requests.labels(error.code).inc()
        retry = {"Retry-After": str(max(1, round(error.retry_after.total_seconds())))} if error.retry_after else {}
        return JSONResponse(error.body(), error.status, retry)

    @app.exception_handler(VisionChatError)
    async def ours(_: Request, error: VisionChatError) -> Response:
        return answer(error)

    @app.exception_handler(404)
    async def no_page(request: Request, _: Exception) -> Response:
        return answer(NotFound(f"there is no {request.method} {request.url.path} here; see /docs"))

    @app.exception_handler(405)
    async def no_method(request: Request, _: Exception) -> Response:
        error = InvalidRequest(f"{request.url.path} does not take {request.method}; see /docs")
        error.status = 405
        return answer(error)

    @app.exception_handler(Exception)
    async def ours_to_mend(_: Request, error: Exception) -> Response:
        log.error("unexpected error", exc_info=error)
        return answer(EngineFailure("an unexpected error on the server's side; its log says more"))


async def read_body(request: Request, limit: int) -> bytes:
    """The whole body, refused as soon as it is known to be longer than `limit` bytes."""
    too_large = RequestTooLarge(f"the request body is over {limit} bytes; send fewer or smaller pictures")
    if int(request.headers.get("content-length") or 0) > limit:
        raise too_large
    parts, length = [], 0
    async for part in request.stream():
        parts.append(part)
        length += len(part)
        if length > limit:
            raise too_large
    return b"".join(parts)


class RequestId:
    """Every answer carries `X-Request-Id`: the client's own if it is a plain one, else a new one."""

    _PLAIN = re.compile(rb"[A-Za-z0-9._:-]{1,128}")

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        given = dict(scope["headers"]).get(b"x-request-id", b"")
        request_id = given.decode() if self._PLAIN.fullmatch(given) else f"req-{uuid.uuid4().hex}"

        async def send_with_id(message: Message) -> None:
            if message["type"] == "http.response.start":
                MutableHeaders(scope=message)["X-Request-Id"] = request_id
            await send(message)

        await self._app(scope, receive, send_with_id)
