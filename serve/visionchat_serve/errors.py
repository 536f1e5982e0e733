"""Every error a caller can meet, as one tree.

    VisionChatError
    ├── InvalidRequest            400  the request cannot be understood or is not supported
    │   ├── ContextTooLong        400  prompt and answer do not fit the model's context
    │   ├── IdempotencyConflict   422  the `Idempotency-Key` stands for another request
    │   ├── RequestTooLarge       413  the body is over the limit
    │   ├── EncodingRefused       415  it is compressed
    │   ├── AddressTooLong        414  so is the address
    │   ├── HeadersTooLarge       431  or are the headers
    │   ├── RequestTimedOut       408  the request did not arrive in time
    │   └── ImageError            400  the picture cannot be used
    │       ├── ImageTooLarge     413  too many bytes or pixels
    │       ├── ImageTypeRefused  415  not a picture, or of a type that is not accepted
    │       ├── ImageUnreadable   422  a picture, but truncated, empty or damaged
    │       ├── ImageUrlRefused   400  its URL is malformed, or leads where this server does not go
    │       ├── ImageDownloadFailed    400  its host could not be reached, or answered with something else
    │       └── ImageDownloadTimedOut  504  its host took too long
    ├── Unauthorised              401  no API key, or one that is not valid
    ├── Forbidden                 403  a page of another site asks
    ├── NotFound                  404  no such model, job or page
    ├── JobCancelled              410  the job was cancelled before it was answered
    ├── QueueFull                 429  come back after `retry_after`
    ├── RateLimited               429  one's own limit; come back after `retry_after`
    ├── Unavailable               503  the queue or the model cannot be reached just now
    │   ├── Overloaded            503  too many large requests at once
    │   └── QueueCannotWrite      503  the queue is there, but takes nothing: its disk or memory is full, …
    ├── ReplicaLost               502  the replica died and the answer could not be continued
    ├── JobTimedOut               504  the job's deadline passed
    ├── EngineFailure             500  the model failed; the fault is ours
    └── ConfigError                    a setting is wrong (raised at start, never over HTTP)

Each class carries what OpenAI's error form needs (`status`, `type`, `code`), so that the gateway has one
handler for all of them. This module knows nothing of HTTP frameworks, queues or engines.
"""

from __future__ import annotations

from datetime import timedelta
from typing import Any

MAX_MESSAGE, MAX_PARAM = 1000, 200  # characters: whoever sends a megabyte as a field's name need not get it back


class VisionChatError(Exception):
    """Base of the tree. `message` says what is wrong and what to do about it; it may be read by anybody. `inside` is
    for those who run the server, and never sent to clients."""

    status = 500
    type = "server_error"
    code = "internal_error"
    pause: timedelta | None = None  # when to try again, if nothing better is known

    def __init__(
        self,
        message: str,
        *,
        param: str | None = None,
        retry_after: timedelta | None = None,
        inside: str | None = None,
    ) -> None:
        super().__init__(message)
        self.message = _shortened(message, MAX_MESSAGE)
        self.param = _shortened(param, MAX_PARAM) if param is not None else None
        self.retry_after = retry_after or self.pause
        self.inside = inside
        self.details: dict[str, Any] = {}

    def body(self) -> dict[str, Any]:
        """OpenAI's error form, `{"error": {"message", "type", "param", "code"}}`, and `details` beside them."""
        error = {"message": self.message, "type": self.type, "param": self.param, "code": self.code}
        return {"error": error | self.details}


def _shortened(text: str, most: int) -> str:
    """The beginning and the end, where the advice stands."""
    half = most // 2
    return text if len(text) <= most else f"{text[:half]} … {text[-half:]}"


class InvalidRequest(VisionChatError):
    status, type, code = 400, "invalid_request_error", "invalid_request"


class ContextTooLong(InvalidRequest):
    code = "context_length_exceeded"


class IdempotencyConflict(InvalidRequest):
    status, code = 422, "idempotency_key_reused"


class RequestTooLarge(InvalidRequest):
    status, code = 413, "request_too_large"


class EncodingRefused(InvalidRequest):
    status, code = 415, "unsupported_encoding"


class AddressTooLong(InvalidRequest):
    status, code = 414, "address_too_long"


class HeadersTooLarge(InvalidRequest):
    status, code = 431, "headers_too_large"


class RequestTimedOut(InvalidRequest):
    status, code = 408, "request_timeout"


class ImageError(InvalidRequest):
    code = "invalid_image"


class ImageTooLarge(ImageError):
    status, code = 413, "image_too_large"


class ImageTypeRefused(ImageError):
    status, code = 415, "unsupported_image_type"


class ImageUnreadable(ImageError):
    status, code = 422, "image_unreadable"


class ImageUrlRefused(ImageError):
    code = "image_url_refused"


class ImageDownloadFailed(ImageError):
    code = "image_download_failed"


class ImageDownloadTimedOut(ImageError):
    status, code = 504, "image_download_timeout"


class Unauthorised(VisionChatError):
    status, type, code = 401, "invalid_request_error", "invalid_api_key"


class Forbidden(VisionChatError):
    status, type, code = 403, "invalid_request_error", "cross_site"


class NotFound(VisionChatError):
    status, type, code = 404, "invalid_request_error", "not_found"


class JobCancelled(VisionChatError):
    status, type, code = 410, "invalid_request_error", "cancelled"


class QueueFull(VisionChatError):
    status, type, code = 429, "rate_limit_error", "queue_full"


class RateLimited(VisionChatError):
    status, type, code = 429, "rate_limit_error", "rate_limit_exceeded"


class Unavailable(VisionChatError):
    status, type, code = 503, "server_error", "service_unavailable"
    pause = timedelta(seconds=5)


class Overloaded(Unavailable):
    code = "overloaded"


class QueueCannotWrite(Unavailable):
    code = "queue_cannot_write"


class ReplicaLost(VisionChatError):
    status, type, code = 502, "server_error", "replica_lost"


class JobTimedOut(VisionChatError):
    status, type, code = 504, "server_error", "timeout"


class EngineFailure(VisionChatError):
    status, type, code = 500, "server_error", "engine_failure"


class ConfigError(VisionChatError):
    type, code = "config_error", "invalid_config"


def _tree(base: type[VisionChatError]) -> list[type[VisionChatError]]:
    return [base] + [c for sub in base.__subclasses__() for c in _tree(sub)]


def from_code(code: str, message: str, param: str | None = None) -> VisionChatError:
    """The error that a replica named by `code` on the queue; an unknown code is an `EngineFailure`."""
    by_code = {cls.code: cls for cls in _tree(VisionChatError)}
    return by_code.get(code, EngineFailure)(message, param=param)
