"""Puts one job's events together into one answer, whatever died meanwhile.

Pure: events in, new text out. When a job is taken over by another replica (a higher attempt), the new text is held
against what was already given out: as long as it repeats it, nothing is given twice; past it, the answer goes on;
where it differs, the answer cannot be continued and `ReplicaLost` is raised. Two different answers are never
spliced. Who calls: the gateway, for streamed and whole answers alike.
"""

from __future__ import annotations

from visionchat_serve.errors import JobCancelled, ReplicaLost, VisionChatError, from_code
from visionchat_serve.messages import Finish, JobEvent


class Answer:
    """The state of one answer. `text` is what was given out, `finish` the end once it came."""

    def __init__(self) -> None:
        self.finish: Finish | None = None
        self._given: list[str] = []
        self._attempt = 0
        self._next_index = 0  # a chunk written twice (its reply was lost) is given once
        self._replay: str | None = None  # what a taken-over attempt still has to repeat

    @property
    def text(self) -> str:
        return "".join(self._given)

    def feed(self, event: JobEvent) -> str:
        """The text to give out for this event, perhaps none. Raises the error that ended the job."""
        if event.attempt > self._attempt:
            self._attempt, self._next_index, self._replay = event.attempt, 0, self.text or None
        if isinstance(event.value, Finish):
            return self._end(event.value)
        if event.attempt < self._attempt or event.value.index < self._next_index:
            return ""
        self._next_index = event.value.index + 1
        new = event.value.text
        if self._replay is not None:
            new = self._skip_repeated(new)
        if new:
            self._given.append(new)
        return new

    def _skip_repeated(self, new: str) -> str:
        assert self._replay is not None
        repeated = min(len(new), len(self._replay))
        if new[:repeated] != self._replay[:repeated]:
            raise ReplicaLost("the replica that was answering died and its answer could not be continued; ask again")
        self._replay = self._replay[repeated:] or None
        return new[repeated:]

    def _end(self, finish: Finish) -> str:
        error = failure(finish)
        if error is not None:
            raise error
        if self._replay is not None:
            raise ReplicaLost("the replica that was answering died and the new answer is shorter; ask again")
        self.finish = finish
        return ""


def failure(finish: Finish) -> VisionChatError | None:
    """The error that a job ended with, or None."""
    if finish.reason == "error":
        return from_code(finish.error_code or "engine_failure", finish.message or "the job failed")
    if finish.reason == "cancelled":
        return JobCancelled(finish.message or "the job was cancelled")
    return None
