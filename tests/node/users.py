"""People who ask one question after another, until they are told to stop; what became of each question is kept."""

from __future__ import annotations

import asyncio
import itertools
import threading
from typing import Self

import httpx

from load.asking import KINDS, Outcome, ask
from load.chaos import questions

PATIENCE = 240.0  # seconds for one answer


class Users:
    """`number` of them, each always with one question open: that is the queue's depth."""

    def __init__(self, url: str, number: int) -> None:
        self.outcomes: list[Outcome] = []
        self._url, self._number = url, number
        self._over = threading.Event()
        self._thread = threading.Thread(target=lambda: asyncio.run(self._ask()), daemon=True)

    @property
    def problems(self) -> list[str]:
        return [f"{one.kind}: {one.problem}" for one in self.outcomes if one.problem]

    def answered(self) -> int:
        return len(self.outcomes)

    def stall(self, since: float) -> float:
        """The longest time without an answer, in seconds; `since` is a time of `time.monotonic`."""
        ends = sorted(at for one in self.outcomes if (at := one.began + one.seconds) >= since)
        return max((later - earlier for earlier, later in itertools.pairwise([since, *ends])), default=0.0)

    async def _ask(self) -> None:
        limits = httpx.Limits(max_connections=None)
        async with httpx.AsyncClient(base_url=self._url, timeout=60, limits=limits, trust_env=False) as http:
            bodies = questions((await http.get("/v1/models")).json()["data"][0]["id"])
            expected = [await KINDS["whole"](http, body, {}, Outcome("", 0)) for body in bodies]
            numbers, kinds = itertools.count(), itertools.cycle(KINDS)

            async def one() -> None:
                while not self._over.is_set():
                    at = next(numbers) % len(bodies)
                    self.outcomes.append(await ask(http, next(kinds), bodies[at], expected[at], PATIENCE))

            await asyncio.gather(*(one() for _ in range(self._number)))

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join(PATIENCE + 60)
        assert not self._thread.is_alive(), "questions are still open"
