"""Answers in OpenAI's chat-completion form: one body, or a stream of server-sent events.

What is the same for all chunks of a stream is encoded once; a chunk costs one small JSON string. Pure: text in,
bytes out.
"""

from __future__ import annotations

import json
from typing import Any

from visionchat_serve.errors import VisionChatError
from visionchat_serve.messages import ChatJob, Finish, Usage

DONE = b"data: [DONE]\n\n"


def usage_body(usage: Usage) -> dict[str, Any]:
    return {
        "prompt_tokens": usage.prompt_tokens,
        "completion_tokens": usage.completion_tokens,
        "total_tokens": usage.prompt_tokens + usage.completion_tokens,
        "prompt_tokens_details": {"cached_tokens": 0, "image_tokens": usage.image_tokens},
    }


def completion_body(job: ChatJob, text: str, finish: Finish) -> dict[str, Any]:
    """`chat.completion`."""
    choice = {
        "index": 0,
        "message": {"role": "assistant", "content": text, "refusal": None},
        "logprobs": None,
        "finish_reason": finish.reason,
    }
    return {
        "id": job.id,
        "object": "chat.completion",
        "created": int(job.created_at),
        "model": job.model,
        "choices": [choice],
        "usage": usage_body(finish.usage),
    }


class ChunkEncoder:
    """`chat.completion.chunk` events of one stream."""

    def __init__(self, job: ChatJob, include_usage: bool) -> None:
        head = {
            "id": job.id,
            "object": "chat.completion.chunk",
            "created": int(job.created_at),
            "model": job.model,
        }
        self._head = f"data: {json.dumps(head)[:-1]}, "
        # With include_usage OpenAI sends `"usage": null` in all chunks but the last.
        self._tail = ', "usage": null}\n\n' if include_usage else "}\n\n"

    def _choice(self, delta: str, finish_reason: str = "null") -> bytes:
        choice = f'"choices": [{{"index": 0, "delta": {delta}, "logprobs": null, "finish_reason": {finish_reason}}}]'
        return (self._head + choice + self._tail).encode()

    def start(self) -> bytes:
        return self._choice('{"role": "assistant", "content": ""}')

    def text(self, text: str) -> bytes:
        return self._choice(f'{{"content": {json.dumps(text)}}}')

    def end(self, finish: Finish) -> bytes:
        return self._choice("{}", json.dumps(finish.reason))

    def usage(self, finish: Finish) -> bytes:
        return (self._head + f'"choices": [], "usage": {json.dumps(usage_body(finish.usage))}}}\n\n').encode()


def error_event(error: VisionChatError) -> bytes:
    """The end of a stream that failed after it had begun."""
    return f"data: {json.dumps(error.body())}\n\n".encode()
