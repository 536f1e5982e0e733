"""Answers in OpenAI's chat-completion form: one body, or a stream of server-sent events.

What is the same for all chunks of a stream is encoded once; a chunk costs one small JSON string. Pure: text in,
bytes out.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import Any

from visionchat_serve.answer import Choice, Piece
from visionchat_serve.errors import VisionChatError
from visionchat_serve.messages import ChatJob, Finish, TokenLogprob, Usage

DONE = b"data: [DONE]\n\n"


def usage_body(usage: Usage) -> dict[str, Any]:
    return {
        "prompt_tokens": usage.prompt_tokens,
        "completion_tokens": usage.completion_tokens,
        "total_tokens": usage.prompt_tokens + usage.completion_tokens,
        "prompt_tokens_details": {"cached_tokens": usage.cached_tokens, "image_tokens": usage.image_tokens},
    }


def completion_body(job: ChatJob, choices: Mapping[int, Choice], finish: Finish) -> dict[str, Any]:
    """`chat.completion`."""
    return {
        "id": job.id,
        "object": "chat.completion",
        "created": int(job.created_at),
        "model": job.model,
        "choices": [_choice_body(job, i, choices[i], reason) for i, reason in enumerate(finish.reasons)],
        "usage": usage_body(finish.usage),
    }


def _choice_body(job: ChatJob, index: int, choice: Choice, reason: str) -> dict[str, Any]:
    asked = job.sampling.logprobs is not None
    return {
        "index": index,
        "message": {"role": "assistant", "content": choice.text, "refusal": None},
        "logprobs": _logprobs_body(choice.logprobs) if asked else None,
        "finish_reason": reason,
    }


def _logprobs_body(logprobs: Iterable[TokenLogprob]) -> dict[str, Any]:
    return {"content": [_token(t) | {"top_logprobs": [_token(o) for o in t.top]} for t in logprobs], "refusal": None}


def _token(token: TokenLogprob) -> dict[str, Any]:
    return {"token": token.token, "logprob": token.logprob, "bytes": list(token.data)}


class ChunkEncoder:
    """`chat.completion.chunk` events of one stream."""

    def __init__(self, job: ChatJob, include_usage: bool) -> None:
        head = {
            "id": job.id,
            "object": "chat.completion.chunk",
            "created": int(job.created_at),
            "model": job.model,
        }
        self._choices = range(job.sampling.n)
        self._head = f"data: {json.dumps(head)[:-1]}, "
        # With include_usage OpenAI sends `"usage": null` in all chunks but the last.
        self._tail = ', "usage": null}\n\n' if include_usage else "}\n\n"

    def _choice(self, index: int, delta: str, finish_reason: str = "null", logprobs: str = "null") -> bytes:
        rest = f'"delta": {delta}, "logprobs": {logprobs}, "finish_reason": {finish_reason}'
        return (self._head + f'"choices": [{{"index": {index}, {rest}}}]' + self._tail).encode()

    def start(self) -> bytes:
        return b"".join(self._choice(index, '{"role": "assistant", "content": ""}') for index in self._choices)

    def piece(self, piece: Piece) -> bytes:
        delta = f'{{"content": {json.dumps(piece.text)}}}'
        logprobs = json.dumps(_logprobs_body(piece.logprobs)) if piece.logprobs else "null"
        return self._choice(piece.choice, delta, logprobs=logprobs)

    def end(self, finish: Finish) -> bytes:
        return b"".join(self._choice(i, "{}", json.dumps(reason)) for i, reason in enumerate(finish.reasons))

    def usage(self, finish: Finish) -> bytes:
        return (self._head + f'"choices": [], "usage": {json.dumps(usage_body(finish.usage))}}}\n\n').encode()


def error_event(error: VisionChatError) -> bytes:
    """The end of a stream that failed after it had begun."""
    return f"data: {json.dumps(error.body())}\n\n".encode()
