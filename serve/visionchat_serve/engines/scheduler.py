"""Which request runs next: pure data and rules, no torch, no time.

First come, first served; a prefill goes before decoding while there is a free place, so that a new request's first
token is not held back by long answers. Any engine that can run several requests at once uses it as it is.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Prefill:
    """Read this request's prompt and pictures."""

    request_id: str


@dataclass(frozen=True, slots=True)
class Decode:
    """Write one more token for each of these, oldest first."""

    request_ids: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Idle:
    """Nothing to do."""


Plan = Prefill | Decode | Idle


class Scheduler:
    """Waiting and running requests, by id."""

    def __init__(self, max_running: int) -> None:
        if max_running < 1:
            raise ValueError("max_running must be at least 1")
        self.max_running = max_running
        self._waiting: deque[str] = deque()
        self._running: list[str] = []

    @property
    def has_work(self) -> bool:
        return bool(self._waiting or self._running)

    def add(self, request_id: str) -> None:
        self._waiting.append(request_id)

    def remove(self, request_id: str) -> None:
        """Ended or aborted; unknown ids are ignored."""
        if request_id in self._running:
            self._running.remove(request_id)
        elif request_id in self._waiting:
            self._waiting.remove(request_id)

    def plan(self) -> Plan:
        """The next step. A planned prefill counts as running from here on."""
        if self._waiting and len(self._running) < self.max_running:
            request_id = self._waiting.popleft()
            self._running.append(request_id)
            return Prefill(request_id)
        return Decode(tuple(self._running)) if self._running else Idle()
