"""Where a job stands in the queue, as it is told to people: its position, and about how long until its turn."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass
from typing import Any

from visionchat_serve.broker import Broker
from visionchat_serve.errors import Unavailable
from visionchat_serve.messages import JobView, QueueLoad


@dataclass(frozen=True, slots=True)
class Place:
    """`position` 1 is the next job; `eta_seconds` is None until a speed was measured."""

    position: int
    eta_seconds: int | None

    def body(self) -> dict[str, Any]:
        return asdict(self)

    def __str__(self) -> str:
        about = f", about {self.eta_seconds} s" if self.eta_seconds is not None else ""
        return f"position {self.position}{about}"


def place_of(view: JobView, pace: float) -> Place | None:
    """A queued job's place. `pace`: seconds between two answers, 0 when not measured."""
    return _place(view.position + 1, pace) if view.position is not None else None


def place_at_the_end(load: QueueLoad) -> Place:
    """The place that a request would have if it were accepted."""
    return _place(load.backlog + 1, load.pace)


async def look_up(broker: Broker, job_id: str) -> Place | None:
    """A job's place now, None when it does not wait. Also while the queue is away: for how long a reader bears that
    is for the queue to say."""
    try:
        view = await broker.describe(job_id)
        return place_of(view, (await broker.load()).pace) if view.position is not None else None
    except Unavailable:
        return None


def _place(position: int, pace: float) -> Place:
    return Place(position, math.ceil(position * pace) if pace > 0 else None)
