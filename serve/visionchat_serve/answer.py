"""Puts one job's events together into its answers, whatever died meanwhile.

Pure: events in, new text out. A job has one answer, or several choices that are kept apart. When it is taken over by
another replica (a higher attempt), the new text is held against what was already given out: as long as it repeats
it, nothing is given twice; past it, the answer goes on; where it differs, the answer cannot be continued and
`ReplicaLost` is raised. Two different answers are never spliced. Who calls: the gateway, for streamed and whole
answers alike.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass

from visionchat_serve.errors import JobCancelled, ReplicaLost, VisionChatError, from_code
from visionchat_serve.messages import Finish, JobEvent, TokenLogprob


@dataclass(frozen=True, slots=True)
class Piece:
    """What is new in one of the choices."""

    text: str
    choice: int = 0
    logprobs: tuple[TokenLogprob, ...] = ()

    def __bool__(self) -> bool:
        return bool(self.text or self.logprobs)


class Choice:
    """One of a job's answers as far as it was given out."""

    def __init__(self) -> None:
        self.logprobs: list[TokenLogprob] = []
        self._given: list[str] = []
        self._replay = ""  # what a taken-over attempt still has to repeat
        self._known_logprobs = 0  # of its tokens, those that still come a second time

    @property
    def text(self) -> str:
        return "".join(self._given)

    @property
    def is_behind(self) -> bool:
        """Whether a new attempt has not yet said all that was given out."""
        return bool(self._replay)

    def start_over(self) -> None:
        """Another replica begins from the start."""
        self._replay, self._known_logprobs = self.text, len(self.logprobs)

    def add(self, text: str, logprobs: tuple[TokenLogprob, ...]) -> tuple[str, tuple[TokenLogprob, ...]]:
        """What of it is new. Raises `ReplicaLost` when it is not what was said before."""
        text = self._skip_repeated(text) if self._replay else text
        known = min(self._known_logprobs, len(logprobs))
        self._known_logprobs -= known
        if text:
            self._given.append(text)
        self.logprobs += logprobs[known:]
        return text, logprobs[known:]

    def _skip_repeated(self, new: str) -> str:
        repeated = min(len(new), len(self._replay))
        if new[:repeated] != self._replay[:repeated]:
            raise ReplicaLost("the replica that was answering died and its answer could not be continued; ask again")
        self._replay = self._replay[repeated:]
        return new[repeated:]


class Answer:
    """The state of a job's answers. `finish` is the end once it came."""

    def __init__(self) -> None:
        self.finish: Finish | None = None
        self.choices: defaultdict[int, Choice] = defaultdict(Choice)
        self._attempt = 0
        self._next_index = 0  # a chunk written twice (its reply was lost) is given once

    @property
    def text(self) -> str:
        """Of the first choice, what was given out."""
        return self.choices[0].text

    def feed(self, event: JobEvent) -> Piece:
        """What to give out for this event, perhaps nothing (false). Raises the error that ended the job."""
        if event.attempt > self._attempt:
            self._attempt, self._next_index = event.attempt, 0
            for choice in self.choices.values():
                choice.start_over()
        if isinstance(event.value, Finish):
            self._end(event.value)
            return Piece("")
        chunk = event.value
        if event.attempt < self._attempt or chunk.index < self._next_index:
            return Piece("")
        self._next_index = chunk.index + 1
        text, logprobs = self.choices[chunk.choice].add(chunk.text, chunk.logprobs)
        return Piece(text, chunk.choice, logprobs)

    def _end(self, finish: Finish) -> None:
        error = failure(finish)
        if error is not None:
            raise error
        if any(choice.is_behind for choice in self.choices.values()):
            raise ReplicaLost("the replica that was answering died and the new answer is shorter; ask again")
        self.finish = finish


def failure(finish: Finish) -> VisionChatError | None:
    """The error that a job ended with, or None."""
    if finish.reason == "error":
        return from_code(finish.error_code or "engine_failure", finish.message or "the job failed", finish.param)
    if finish.reason == "cancelled":
        return JobCancelled(finish.message or "the job was cancelled")
    return None
