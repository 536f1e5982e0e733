"""The contract between a replica and an engine, made for continuous batching.

A replica `add`s requests while others run, calls `step` in its one engine thread as long as `has_work`, and may
`abort` any of them between two steps. Each step gives every request at most a few tokens, so that a cancel takes
effect within one token. Engines know neither queue nor HTTP nor asyncio; they are not thread-safe.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from visionchat_serve.errors import VisionChatError
from visionchat_serve.messages import FinishReason, Message, SamplingParams, TokenLogprob, Usage


@dataclass(frozen=True, slots=True)
class EngineRequest:
    """A chat to answer once (`sampling.n` is the replica's affair). `images` are normalised PNG or JPEG bytes, as
    `ImagePart.index` counts them. What an engine keeps of a request serves only others of the same `owner`."""

    id: str
    messages: tuple[Message, ...]
    images: tuple[bytes, ...]
    sampling: SamplingParams
    owner: str = ""


@dataclass(frozen=True, slots=True)
class EngineOutput:
    """What one step gave one request.

    `text` is whole characters only and may be empty (a character or a possible stop string is still open).
    `logprobs` of the tokens chosen in this step, if asked for; the end-of-turn token has none.
    `usage` counts from the beginning of the request. `finish` is set exactly once, on the last output;
    when it is "error", `error` says why.
    """

    request_id: str
    text: str
    usage: Usage
    finish: FinishReason | None = None
    logprobs: tuple[TokenLogprob, ...] = ()
    error: VisionChatError | None = None


@dataclass(frozen=True, slots=True)
class EngineInfo:
    """What is loaded, for /v1/models, logs and metrics. `revision` identifies weights and numerics."""

    engine: str
    model: str
    dtype: str
    threads: int
    max_context: int
    revision: str


class Engine(Protocol):
    """See the module docstring."""

    @property
    def info(self) -> EngineInfo: ...

    @property
    def max_running(self) -> int:
        """How many requests this engine can run at once; a replica claims no more jobs than that."""

    @property
    def has_work(self) -> bool: ...

    def warm_up(self) -> None:
        """Answer a made-up request about a made-up picture, so that the first real one is not slow."""

    def add(self, request: EngineRequest) -> None:
        """Accept a request. Raises `errors.InvalidRequest` (`ContextTooLong`, `ImageError`) when it cannot run."""

    def step(self) -> list[EngineOutput]:
        """Run one prefill or one decode step for the running requests."""

    def abort(self, request_id: str) -> None:
        """Forget a request; unknown ids are ignored. No further output for it."""

    def forget(self) -> None:
        """Give back the memory of what was kept of earlier requests."""

    def close(self) -> None:
        """Free the model's memory."""
