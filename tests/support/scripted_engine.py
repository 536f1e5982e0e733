"""An engine that says what a test tells it to, for tests of what stands around engines.

A double, used only where a model's own words do not matter; the integration tier runs the real one.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import replace

from visionchat_serve.engines.protocol import EngineInfo, EngineOutput, EngineRequest
from visionchat_serve.errors import ContextTooLong
from visionchat_serve.messages import SamplingParams, TextPart, TokenLogprob, Usage


class ScriptedEngine:
    """Answers with the words of the last message, one a step. A word of its own kind does something:

    `!hold` waits until `release` is set, `!crash` raises in step, `!seed` is said as the request's seed, and a message
    over 100 words does not fit. Each word is one token, as likely as its length says; a picture is one, too, and known
    from the second time on.
    """

    def __init__(self, max_running: int = 1) -> None:
        self.info = EngineInfo("scripted", "script", "float32", 1, 100, "r1")
        self.max_running = max_running
        self.release = threading.Event()
        self.warm = False
        self.closed = False
        self.forgot = 0
        self.aborted: list[str] = []
        self.seen: list[EngineRequest] = []
        self._left: dict[str, list[str]] = {}
        self._usage: dict[str, Usage] = {}
        self._sampling: dict[str, SamplingParams] = {}

    @property
    def has_work(self) -> bool:
        return bool(self._left)

    def warm_up(self) -> None:
        self.warm = True

    def add(self, request: EngineRequest) -> None:
        words = " ".join(p.text for p in request.messages[-1].parts if isinstance(p, TextPart)).split()
        if len(words) > 100:
            raise ContextTooLong(f"{len(words)} words do not fit into 100", param="messages")
        known = {image for before in self.seen for image in before.images}
        cached = sum(image in known for image in request.images)
        self.seen.append(request)
        self._left[request.id] = words
        self._sampling[request.id] = request.sampling
        self._usage[request.id] = Usage(len(words), 0, len(request.images), cached_tokens=cached, cached_images=cached)

    def step(self) -> list[EngineOutput]:
        return [self._one(request_id) for request_id in list(self._left)]

    def _one(self, request_id: str) -> EngineOutput:
        words = self._left[request_id]
        word = words.pop(0) if words else ""
        if word == "!crash":
            raise RuntimeError("told to crash")
        if word == "!hold":
            self.release.wait(30)
        if word == "!seed":
            word = str(self._sampling[request_id].seed)
        usage = self._usage[request_id]
        self._usage[request_id] = usage = replace(usage, completion_tokens=usage.completion_tokens + 1)
        if not words:
            del self._left[request_id]
        text = word + (" " if words else "")
        logprobs = () if self._sampling[request_id].logprobs is None else (_logprob(text),)
        return EngineOutput(request_id, text, usage, None if words else "stop", logprobs)

    def abort(self, request_id: str) -> None:
        self.aborted.append(request_id)
        self._left.pop(request_id, None)

    def forget(self) -> None:
        self.forgot += 1

    def close(self) -> None:
        self.closed = True


def _logprob(text: str) -> TokenLogprob:
    return TokenLogprob(text, -float(len(text)), tuple(text.encode()))


def loader(engine: ScriptedEngine) -> Callable[[], ScriptedEngine]:
    return lambda: engine
