"""The HTTP API's bodies in OpenAI's form.

Pydantic at the edge: what comes in is checked here, field by field; what the product does not support is refused
with a message that says so, never ignored. Pictures are only named here; the
gateway decodes them. Knows neither queue nor engines.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal, TypeVar

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError

from visionchat_serve.errors import InvalidRequest

MAX_STOPS = 4


class _Body(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class ImageUrl(_Body):
    url: str
    detail: Literal["low", "auto", "high"] = "auto"


def _as_object(value: Any) -> Any:
    """Some clients send `image_url` as a bare string."""
    return {"url": value} if isinstance(value, str) else value


class TextContent(_Body):
    type: Literal["text"]
    text: str


class ImageContent(_Body):
    type: Literal["image_url"]
    image_url: Annotated[ImageUrl, BeforeValidator(_as_object)]


Content = Annotated[TextContent | ImageContent, Field(discriminator="type")]


def _as_parts(value: Any) -> Any:
    """A bare string is one text part."""
    return [{"type": "text", "text": value}] if isinstance(value, str) else value


class ChatMessage(_Body):
    role: Literal["system", "developer", "user", "assistant"]
    content: Annotated[list[Content], BeforeValidator(_as_parts)]
    name: str | None = None
    refusal: None = None


class StreamOptions(_Body):
    include_usage: bool = False
    include_obfuscation: bool = False


class ResponseFormat(_Body):
    type: Literal["text"]


class ChatCompletionRequest(_Body):
    """`POST /v1/chat/completions`. `top_k` and `repetition_penalty` are the usual extensions."""

    model: str
    messages: list[ChatMessage] = Field(min_length=1, max_length=512)
    stream: bool = False
    stream_options: StreamOptions | None = None
    max_tokens: int | None = Field(None, ge=1)
    max_completion_tokens: int | None = Field(None, ge=1)
    temperature: float | None = Field(None, ge=0, le=2)
    top_p: float | None = Field(None, gt=0, le=1)
    top_k: int | None = Field(None, ge=0)
    repetition_penalty: float | None = Field(None, gt=0, le=10)
    seed: int | None = Field(None, ge=-(2**63), lt=2**63)
    stop: str | list[str] | None = None
    user: str | None = None
    # Accepted only with the value that asks for nothing: clients send these by default.
    n: Literal[1] | None = None
    logprobs: Literal[False] | None = None
    top_logprobs: Literal[0] | None = None
    presence_penalty: Literal[0] | None = None
    frequency_penalty: Literal[0] | None = None
    logit_bias: dict[str, float] | None = Field(None, max_length=0)
    response_format: ResponseFormat | None = None
    tools: list[Any] | None = Field(None, max_length=0)
    tool_choice: Literal["none", "auto"] | None = None
    parallel_tool_calls: bool | None = None
    # Labels that OpenAI's servers use for billing and storage; they mean nothing here and change nothing.
    metadata: dict[str, str] | None = None
    store: Literal[False] | None = None
    service_tier: str | None = None
    safety_identifier: str | None = None
    prompt_cache_key: str | None = None

    @property
    def is_deterministic(self) -> bool:
        """Whether asking again gives the same answer."""
        return self.temperature == 0 or self.seed is not None

    @property
    def stops(self) -> tuple[str, ...]:
        """The stop strings, empty ones left out."""
        given = [self.stop] if isinstance(self.stop, str) else (self.stop or [])
        return tuple(s for s in given if s)


Request = TypeVar("Request", bound=ChatCompletionRequest)


def parse_request(body: bytes) -> ChatCompletionRequest:
    """A chat completion's body. Raises `InvalidRequest` naming the first wrong field."""
    return parse_as(ChatCompletionRequest, body)


def parse_as(form: type[Request], body: bytes) -> Request:
    """The body of any request that asks a chat. Raises as `parse_request`."""
    try:
        request = form.model_validate_json(body)
    except ValidationError as error:
        raise _invalid(error) from error
    if len(request.stops) > MAX_STOPS:
        raise InvalidRequest(f"stop: at most {MAX_STOPS} stop strings are supported", param="stop")
    if not any(message.role == "user" for message in request.messages):
        raise InvalidRequest("messages: at least one message must have the role 'user'", param="messages")
    return request


def _invalid(error: ValidationError) -> InvalidRequest:
    first = error.errors(include_url=False, include_context=False)[0]
    path = _path(first["loc"])
    if first["type"] == "json_invalid":
        return InvalidRequest(f"the body is not valid JSON: {first['msg']}")
    if first["type"] == "extra_forbidden":
        return InvalidRequest(f"{path}: this argument is not supported; leave it out", param=path)
    if first["type"] == "literal_error" and path in _UNSUPPORTED:
        return InvalidRequest(f"{path}: only {_UNSUPPORTED[path]} is supported", param=path)
    return InvalidRequest(f"{path or 'body'}: {first['msg']}", param=path or None)


def _path(loc: tuple[int | str, ...]) -> str:
    """`messages.0.content.1.image_url.url`: pydantic's location without the tag of the part's type."""
    tags = {i for i in range(1, len(loc)) if isinstance(loc[i - 1], int) and loc[i] in ("text", "image_url")}
    return ".".join(str(part) for i, part in enumerate(loc) if i not in tags)


_UNSUPPORTED = {
    "n": "1 answer per request",
    "logprobs": "false",
    "top_logprobs": "0",
    "presence_penalty": "0 (use repetition_penalty)",
    "frequency_penalty": "0 (use repetition_penalty)",
    "response_format.type": "'text'",
    "store": "false",
}
