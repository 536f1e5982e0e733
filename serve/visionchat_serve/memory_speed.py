"""How fast replicas were, and how long what waits will take them, in memory.

Means over the last ten or so good answers: seconds until the first text and tokens of the prompt, seconds from then
on and tokens written. What `finish.lua` and `pace_ms` do in Redis. Used by `memory_broker`.
"""

from __future__ import annotations

import math
from collections.abc import Collection

from visionchat_serve.broker import Work
from visionchat_serve.messages import ChatJob


class Speed:
    """Knows nothing before the first `learn`: the pace is 0."""

    def __init__(self) -> None:
        self._seen = 0
        self._prompt = self._reading = self._written = self._writing = 0.0

    def learn(self, prompt: int, reading: float, written: int, writing: float) -> None:
        """An answer: tokens and seconds of its two phases."""
        self._seen += 1
        weight = max(1 / self._seen, 0.1)
        self._prompt += weight * (prompt - self._prompt)
        self._reading += weight * (reading - self._reading)
        self._written += weight * (written - self._written)
        self._writing += weight * (writing - self._writing)

    def work_of(self, job: ChatJob) -> Work:
        """What there is to do, as far as it is known now."""
        work = Work.of(job)
        return Work(work.prompt, min(work.written, math.floor(self._written + 0.5))) if self._seen else work

    def pace(self, todo: Collection[Work]) -> float:
        """Seconds that one replica takes for each of `todo`, or for an answer like the last ones if there is none."""
        if not self._seen or not todo:
            return self._reading + self._writing
        reading = sum(work.prompt for work in todo) * self._reading / self._prompt
        writing = sum(work.written for work in todo) * self._writing / self._written if self._written else 0.0
        return (reading + writing) / len(todo)
