"""The HTTP ingress: OpenAI's chat completions in front of the queue.

What each address answers; which address that is stands in `routes`. Knows the broker and nothing of Ray, engines or
torch; `app` puts it behind Ray Serve, tests run it under any ASGI server.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
import uuid
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import aclosing, asynccontextmanager
from dataclasses import dataclass, replace
from datetime import timedelta
from functools import partial
from itertools import chain, repeat
from typing import Any, ParamSpec, TypeVar

from fastapi import FastAPI, Request, Response
from fastapi.responses import JSONResponse, StreamingResponse

from visionchat_serve import metrics
from visionchat_serve.acceptance import Acceptance
from visionchat_serve.acceptance import Request as Checked
from visionchat_serve.answer import Piece
from visionchat_serve.api_keys import ApiKeys
from visionchat_serve.broker import Broker, Reuse
from visionchat_serve.cache_key import HEADER as CACHE
from visionchat_serve.cache_key import cache_key, model_names, read_cache_control
from visionchat_serve.completions import DONE, ChunkEncoder, completion_body, error_event
from visionchat_serve.config import Settings
from visionchat_serve.errors import NotFound, Unauthorised, VisionChatError
from visionchat_serve.exchange import Exchange
from visionchat_serve.idempotency import HEADER, REPLAYED, fingerprint, read_key
from visionchat_serve.image_download import ImageDownloads
from visionchat_serve.intake import parse, read_request
from visionchat_serve.job_bodies import JobRequest
from visionchat_serve.messages import ChatJob, Idempotency
from visionchat_serve.place import look_up
from visionchat_serve.request_body import BodyLimits, Room, Share, read_body
from visionchat_serve.schemas import ChatCompletionRequest
from visionchat_serve.server_events import ALIVE, comment

Body = TypeVar("Body", bound=ChatCompletionRequest)

log = logging.getLogger(__name__)

P = ParamSpec("P")
T = TypeVar("T")

SIGN_OF_LIFE = timedelta(seconds=5)  # a stream says something at least this often
QUICK = timedelta(seconds=1)  # a job refused this soon gets its real HTTP status, even when streamed
DECODERS = 2  # threads that parse requests and decode pictures


@dataclass(frozen=True, slots=True)
class Form:
    """In which form a chat's answer is wanted."""

    stream: bool
    include_usage: bool


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
        self._room = Room(max(settings.max_bodies_bytes, settings.max_body_bytes))
        self._limits = BodyLimits(settings.max_body_bytes, timedelta(seconds=settings.body_seconds))

    @asynccontextmanager
    async def lifespan(self, _: FastAPI) -> AsyncIterator[None]:
        self.broker = self._connect()
        self._acceptance = Acceptance(self.broker)
        try:
            yield
        finally:
            await self.broker.close()
            if self._downloads is not None:
                self._downloads.close()
            self._decoders.shutdown(wait=False, cancel_futures=True)

    @property
    def asks_for_keys(self) -> bool:
        return self._keys is not None

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
        exchange, form, told = await self._submit(request)
        response = await (self._stream(exchange, form) if form.stream else self._whole(exchange))
        response.headers.update(told)
        return response

    async def _submit(self, request: Request) -> tuple[Exchange, Form, dict[str, str]]:
        """Nothing that is kept while the answer comes holds the request's pictures."""
        with self._room.share() as share:
            asked, checked = await self._read(request, ChatCompletionRequest, Reuse.SHARE, share)
            accepted = await self._acceptance.chat(checked)
        include_usage = asked.stream_options is not None and asked.stream_options.include_usage
        form = Form(asked.stream, include_usage)
        return Exchange(accepted.job, accepted.source), form, self._told(checked, accepted.how)

    async def create_job(self, request: Request) -> tuple[str, dict[str, str]]:
        """Read, check, submit; the id of the job that stands for the request, and headers that say how it came."""
        with self._room.share() as share:
            asked, checked = await self._read(request, JobRequest, Reuse.ANSWER, share)
            job_id, metadata = f"job-{uuid.uuid4().hex}", asked.metadata or {}
            job = replace(checked.job, id=job_id, priority=asked.priority, metadata=metadata)
            submitted = await self._acceptance.submit(replace(checked, job=job))
        return submitted.job_id, self._told(checked, submitted.how)

    async def _read(self, request: Request, form: type[Body], reuse: Reuse, share: Share) -> tuple[Body, Checked]:
        """The request as it was asked and as it goes on; `reuse` is what it may be answered by at most, `share` the
        room that it takes."""
        key = read_key(request.headers.getlist(HEADER))
        body = await read_body(request, self._limits, share)
        asked, urls = await self._apart(parse, body, self.settings, form)
        fetched = await self._downloads.fetch(urls, share.take) if self._downloads is not None else {}
        job, images = await self._apart(read_request, asked, self.settings, fetched, request.state.owner)
        once = None
        if key is not None:
            once = Idempotency(key, await self._apart(fingerprint, request.url.path, body))
            reuse = Reuse.ANSWER  # a job of one's own, which goes on when its client leaves
        use = read_cache_control(request.headers.get("cache-control", ""))
        if use.stores and asked.is_deterministic:
            job = replace(job, cache_key=await self._cache_key(job, images))
        job = replace(job, ticket=secrets.token_urlsafe(24))
        return asked, Checked(job, images, once, reuse if job.cache_key and use.reads else Reuse.NOTHING)

    async def _cache_key(self, job: ChatJob, images: tuple[bytes, ...]) -> str:
        """Empty when nothing is kept, or nobody is there whose answer it would be."""
        models = model_names(await self.broker.reports()) if self.settings.cache_ttl_seconds > 0 else ()
        return await self._apart(cache_key, job, images, models) if models else ""

    def _told(self, checked: Checked, how: str) -> dict[str, str]:
        """Headers that say where the answer comes from."""
        if how == "known":
            return {REPLAYED: "true"}
        if not checked.job.cache_key:
            cache = "uncacheable"
        else:
            cache = {"accepted": "miss" if checked.reuse is not Reuse.NOTHING else "bypass"}.get(how, how)
        self.metrics.cache.labels(cache).inc()
        return {CACHE: cache}

    async def _apart(self, work: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """What computes for long would block everybody else in the event loop."""
        return await asyncio.get_running_loop().run_in_executor(self._decoders, partial(work, *args, **kwargs))

    async def _whole(self, exchange: Exchange) -> Response:
        async with aclosing(exchange.deltas(repeat(SIGN_OF_LIFE))) as deltas:
            async for _ in deltas:
                pass
        self.metrics.observe(exchange)
        return JSONResponse(completion_body(exchange.job, exchange.choices, exchange.finish))

    async def _stream(self, exchange: Exchange, form: Form) -> Response:
        deltas = exchange.deltas(chain([QUICK], repeat(SIGN_OF_LIFE)))
        try:
            first = await anext(deltas, Piece(""))
        except BaseException:
            await deltas.aclose()
            raise
        chunks = ChunkEncoder(exchange.job, form.include_usage)
        events = self._events(exchange, first, deltas, chunks, form.include_usage)
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
                yield chunks.start() + await self._said(exchange, chunks, first)
                async for piece in deltas:
                    yield await self._said(exchange, chunks, piece)
                yield (chunks.end(exchange.finish) + (chunks.usage(exchange.finish) if include_usage else b"") + DONE)
                self.metrics.observe(exchange)
            except VisionChatError as error:
                self.metrics.requests.labels(error.code).inc()
                yield error_event(error)

    async def _said(self, exchange: Exchange, chunks: ChunkEncoder, piece: Piece | None) -> bytes:
        if piece is None:
            return await self._waiting(exchange)
        return chunks.piece(piece) if piece else b""

    async def _waiting(self, exchange: Exchange) -> bytes:
        """A comment for a stream that has nothing else to say: the job's place, as long as it has one."""
        if exchange.first_text_at is not None:
            return ALIVE
        place = await look_up(self.broker, exchange.job.id)
        return comment(str(place)) if place is not None else ALIVE

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
        return Response(self.metrics.page(load, reports), media_type=metrics.CONTENT_TYPE)
