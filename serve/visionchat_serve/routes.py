"""Which address does what: the routes, their description for /docs, and OpenAI's form for every error.

POST /v1/chat/completions   GET /v1/models   GET /healthz   GET /readyz   GET /metrics   GET /docs   GET /
What is below /v1/jobs stands in `job_routes`.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

from fastapi import APIRouter, Depends, FastAPI, Request, Response, WebSocket
from fastapi.exceptions import RequestValidationError
from fastapi.middleware.cors import CORSMiddleware
from fastapi.responses import HTMLResponse, JSONResponse, PlainTextResponse
from starlette.requests import ClientDisconnect

from visionchat_serve import __version__, docs_page
from visionchat_serve.broker import Broker
from visionchat_serve.cache_key import HEADER as CACHE
from visionchat_serve.config import Settings
from visionchat_serve.errors import EngineFailure, InvalidRequest, NotFound, VisionChatError
from visionchat_serve.gateway import Gateway
from visionchat_serve.http_edge import (
    ERROR_SCHEMA,
    BearerKey,
    CommonHeaders,
    body_schema,
    check_site,
    error_responses,
    headers_of,
)
from visionchat_serve.idempotency import HEADER as IDEMPOTENCY_KEY
from visionchat_serve.idempotency import REPLAYED
from visionchat_serve.image_download import ImageDownloads
from visionchat_serve.job_routes import add_jobs, job_events
from visionchat_serve.page import load_page
from visionchat_serve.schemas import ChatCompletionRequest

log = logging.getLogger(__name__)

ALLOWED_HEADERS = "Authorization", "Content-Type", "X-Request-Id", IDEMPOTENCY_KEY, "Last-Event-ID", "Cache-Control"
EXPOSED_HEADERS = "X-Request-Id", "Retry-After", "Location", REPLAYED, CACHE


def create_app(settings: Settings, connect: Callable[[], Broker], downloads: ImageDownloads | None = None) -> FastAPI:
    """The ASGI app. `connect` is called once, in the event loop that serves; `downloads` as `Gateway` takes it."""
    gateway = Gateway(settings, connect, downloads)
    app = FastAPI(title="VisionChat", version=__version__, lifespan=gateway.lifespan, docs_url=None, redoc_url=None)
    app.state.gateway = gateway
    _add_api(app, gateway)
    _add_pages(app, gateway)
    _add_error_handlers(app, gateway)
    if settings.cors_origins:
        app.add_middleware(
            CORSMiddleware,
            allow_origins=settings.cors_origins,
            allow_methods=["GET", "POST", "DELETE"],
            allow_headers=[*ALLOWED_HEADERS],
            expose_headers=[*EXPOSED_HEADERS],
        )
    app.add_middleware(CommonHeaders)
    return app


def _add_api(app: FastAPI, gateway: Gateway) -> None:
    """What needs a key where keys are used."""
    body, definitions = body_schema(ChatCompletionRequest)
    errors = error_responses(400, 401, 403, 404, 408, 410, 413, 415, 422, 429, 502, 503, 504)
    answers: dict[int | str, dict[str, Any]] = {
        200: {"description": "`chat.completion`, or its chunks", "content": {"text/event-stream": {}}}
    }

    def authorise(request: Request, given: BearerKey) -> None:
        if request.method == "POST" and not gateway.asks_for_keys:
            check_site(request.headers, gateway.settings.cors_origins)
        request.state.owner = gateway.owner_of(given.credentials if given is not None else None)

    v1 = APIRouter(prefix="/v1", dependencies=[Depends(authorise)])

    @v1.post("/chat/completions", openapi_extra=body, responses=errors | answers)
    async def chat_completions(request: Request) -> Response:
        """Answer a chat about pictures; with `"stream": true` as server-sent events."""
        return await gateway.chat(request)

    @v1.get("/models", responses=error_responses(401, 503))
    async def models() -> dict[str, Any]:
        """The one model that is served."""
        return await gateway.models()

    @v1.get("/models/{name:path}", responses=error_responses(401, 404, 503))
    async def model(name: str) -> dict[str, Any]:
        """The served model, by name."""
        return await gateway.model(name)

    add_jobs(v1, gateway, errors)
    app.include_router(v1)
    app.include_router(job_events(gateway, errors))
    _describe(app, definitions)


def _describe(app: FastAPI, definitions: dict[str, Any]) -> None:
    """Add what FastAPI does not know to the page that it makes, and take out its own form of errors."""
    plain_openapi = app.openapi

    def openapi() -> dict[str, Any]:
        page = plain_openapi()
        schemas = page.setdefault("components", {}).setdefault("schemas", {})
        schemas.update(definitions | {"Error": ERROR_SCHEMA})
        for name in ("HTTPValidationError", "ValidationError"):
            schemas.pop(name, None)
        for operation in (operation for path in page["paths"].values() for operation in path.values()):
            if "HTTPValidationError" in str(operation["responses"].get("422")):
                del operation["responses"]["422"]
        return page

    app.openapi = openapi  # type: ignore[method-assign]


def _add_pages(app: FastAPI, gateway: Gateway) -> None:
    """What is open to all: the page, health, metrics."""

    @app.head("/healthz", include_in_schema=False)
    @app.get("/healthz")
    async def healthz() -> dict[str, str]:
        """The gateway's process answers."""
        return {"status": "ok"}

    @app.head("/readyz", include_in_schema=False)
    @app.get("/readyz", responses={503: {"description": "not ready, with the reason"}})
    async def readyz() -> Response:
        """The queue answers and a warm replica is there."""
        return await gateway.ready()

    @app.get("/metrics", response_class=PlainTextResponse, responses=error_responses(503))
    async def metrics_page() -> Response:
        """Prometheus' text form."""
        return await gateway.metrics_page()

    _add_docs(app)
    page = load_page()

    @app.head("/", include_in_schema=False)
    @app.get("/", include_in_schema=False)
    async def root() -> Response:
        return HTMLResponse(page.body, headers=page.headers)

    @app.websocket("/{path:path}")
    async def no_socket(websocket: WebSocket, path: str) -> None:
        error = NotFound(f"there is no WebSocket at /{path}; see /docs")
        await websocket.send_denial_response(JSONResponse(error.body(), error.status))


def _add_docs(app: FastAPI) -> None:
    files = docs_page.load_files()

    @app.head("/docs", include_in_schema=False)
    @app.get("/docs", include_in_schema=False)
    async def docs() -> Response:
        return HTMLResponse(docs_page.HTML, headers=docs_page.HEADERS)

    @app.get("/docs/{name}", include_in_schema=False)
    async def file_of_docs(name: str) -> Response:
        if name not in files:
            raise NotFound(f"there is no file {name!r} here; see /docs")
        return Response(files[name].body, media_type=files[name].media_type, headers=docs_page.KEPT)


def _add_error_handlers(app: FastAPI, gateway: Gateway) -> None:
    def answer(error: VisionChatError) -> Response:
        gateway.metrics.requests.labels(error.code).inc()
        return JSONResponse(error.body(), error.status, headers_of(error))

    @app.exception_handler(VisionChatError)
    async def ours(_: Request, error: VisionChatError) -> Response:
        return answer(error)

    @app.exception_handler(RequestValidationError)
    async def bad_parameter(_: Request, error: RequestValidationError) -> Response:
        first = error.errors()[0]
        param = str(first["loc"][-1])
        return answer(InvalidRequest(f"{param}: {first['msg']}", param=param))

    @app.exception_handler(404)
    async def no_page(request: Request, _: Exception) -> Response:
        return answer(NotFound(f"there is no {request.method} {request.url.path} here; see /docs"))

    @app.exception_handler(405)
    async def no_method(request: Request, _: Exception) -> Response:
        error = InvalidRequest(f"{request.url.path} does not take {request.method}; see /docs")
        error.status = 405
        return answer(error)

    @app.exception_handler(ClientDisconnect)
    async def left(_: Request, error: ClientDisconnect) -> Response:
        """Whoever left while sending hears nothing any more, and nothing here is at fault."""
        return Response(status_code=400)

    @app.exception_handler(Exception)
    async def ours_to_mend(_: Request, error: Exception) -> Response:
        log.error("unexpected error", exc_info=error)
        response = answer(EngineFailure("an unexpected error on the server's side; its log says more"))
        response.headers["Connection"] = "close"  # as the server does
        return response
