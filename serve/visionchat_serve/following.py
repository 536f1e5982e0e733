"""A job's events as its owner follows them: from the start, or after the last event that was seen.

Text and the end are durable: they have the id of the queue's event that brought them, and following after that id
goes on without loss or repeat, on any gateway. What an event brings depends on all events before it (a taken-over
job repeats itself), so these are read again, and only what is new is given. States of waiting are not durable and
have no id. Used by `job_routes`, for server-sent events and WebSockets alike.
"""

from __future__ import annotations

import itertools
from collections.abc import AsyncGenerator
from contextlib import aclosing
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any

from visionchat_serve.answer import Answer, Piece, failure
from visionchat_serve.broker import Broker, resume_point
from visionchat_serve.errors import InvalidRequest, VisionChatError
from visionchat_serve.exchange import with_pauses
from visionchat_serve.job_bodies import end_body
from visionchat_serve.messages import Finish, JobEvent, status_after
from visionchat_serve.place import Place, look_up

START = "0"
SOON = timedelta(milliseconds=100)  # a job that waits longer says so
SIGN_OF_LIFE = timedelta(seconds=5)  # from then on a stream says something at least this often


@dataclass(frozen=True, slots=True)
class Update:
    """`name` is `text`, `status` (while waiting), `alive` (nothing new), or how the job ended; `comment` is for people
    who look at the stream."""

    name: str
    data: dict[str, Any] = field(default_factory=dict)
    id: str | None = None
    comment: str | None = None

    @property
    def is_last(self) -> bool:
        return self.name not in ("text", "status", "alive")


class Telling:
    """What a reader is told of a job's events, read from their start. Pure."""

    def __init__(self, job_id: str) -> None:
        self._job_id = job_id
        self._answer = Answer()

    def tell(self, event: JobEvent) -> Update | None:
        """None for an event that brings nothing, as one that repeats what was told."""
        try:
            piece = self._answer.feed(event)
        except VisionChatError as error:
            return self._failed(event, error)
        if isinstance(event.value, Finish):
            return self._end(event.id, event.value)
        return Update("text", _text_body(piece), event.id) if piece.text else None

    def _end(self, event_id: str, finish: Finish) -> Update:
        return Update(status_after(finish), end_body(self._job_id, finish), event_id)

    def _failed(self, event: JobEvent, error: VisionChatError) -> Update:
        if isinstance(event.value, Finish) and failure(event.value) is not None:
            return self._end(event.id, event.value)
        # The job may end well, but with another answer than was told so far: this stream cannot go on.
        return Update("failed", {"id": self._job_id, "status": "failed", **error.body()}, event.id)


def _text_body(piece: Piece) -> dict[str, Any]:
    """Of the second answer of a job and later ones also which it is."""
    return {"text": piece.text, **({"choice": piece.choice} if piece.choice else {})}


class Following:
    """One reader of one job."""

    def __init__(self, broker: Broker, job_id: str, after: str) -> None:
        self._broker = broker
        self._job_id = job_id
        self._after = resume_point(after)
        self._place: Place | None = None  # as it was last told

    async def is_over(self) -> bool:
        """Whether nothing comes after the last event that was seen. Raises `InvalidRequest` if it is none of this
        job's."""
        past = [e for e in await self._broker.so_far(self._job_id) if not self._is_new(e)]
        if self._after > (0, 0) and (not past or resume_point(past[-1].id) != self._after):
            raise InvalidRequest("this job has no event with that id; use the `id` of its last event, or 0 for all")
        telling = Telling(self._job_id)
        updates = [telling.tell(event) for event in past]
        return any(update is not None and update.is_last for update in updates)

    async def updates(self) -> AsyncGenerator[Update, None]:
        """All that is new, until the job's end; meanwhile something at least every `SIGN_OF_LIFE`."""
        telling = Telling(self._job_id)
        pauses = itertools.chain([SOON], itertools.repeat(SIGN_OF_LIFE))
        async with aclosing(with_pauses(self._broker.events(self._job_id), pauses)) as events:
            async for event in events:
                update = telling.tell(event) if event is not None else await self._waiting()
                if update is None or (event is not None and not self._is_new(event)):
                    continue
                yield update
                if update.is_last:
                    return

    def _is_new(self, event: JobEvent) -> bool:
        return resume_point(event.id) > self._after

    async def _waiting(self) -> Update:
        told, self._place = self._place, await look_up(self._broker, self._job_id)
        if self._place is None or self._place == told:
            return Update("alive")
        return Update("status", {"status": "queued", **self._place.body()}, comment=str(self._place))
