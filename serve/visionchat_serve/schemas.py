"""The HTTP API's bodies in OpenAI's form.

Pydantic at the edge: what comes in is checked here, field by field; what the product does not support is refused
with a message that says so, never ignored. Pictures are only named here; the
gateway decodes them. Knows neither queue nor engines.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal, TypeVar

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError, model_validator
from pydantic_core import PydanticCustomError

from visionchat_serve.errors import InvalidRequest

MAX_STOPS = 4
MAX_STOP_LENGTH = 1024  # characters; each new token is compared with all of it
MAX_PARTS = 1024  # of one message
MAX_CHOICES = 4  # answers of one request; each costs as much as a request of its own


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
    content: Annotated[list[Content], Field(max_length=MAX_PARTS), BeforeValidator(_as_parts)]
    name: str | None = None
    refusal: None = None


class StreamOptions(_Body):
    include_usage: bool = False
    include_obfuscation: bool = False


class TextFormat(_Body):
    type: Literal["text"]


class JsonObjectFormat(_Body):
    type: Literal["json_object"]


class JsonSchema(_Body):
    """`strict` changes nothing: an answer is always kept to the schema."""

    name: str = Field(pattern=r"^[A-Za-z0-9_-]{1,64}$")
    description: str | None = None
    schema_: dict[str, Any] = Field(alias="schema")
    strict: bool | None = None


class JsonSchemaFormat(_Body):
    type: Literal["json_schema"]
    json_schema: JsonSchema


ResponseFormat = Annotated[TextFormat | JsonObjectFormat | JsonSchemaFormat, Field(discriminator="type")]


class ChatCompletionRequest(_Body):
    """`POST /v1/chat/completions`. `top_k` and `repetition_penalty` are the usual extensions."""

    model: str
    messages: list[ChatMessage] = Field(min_length=1, max_length=512)
    stream: bool = False
    stream_options: StreamOptions | None = None
    max_tokens: int | None = Field(None, ge=1, lt=2**31)
    max_completion_tokens: int | None = Field(None, ge=1, lt=2**31)
    temperature: float | None = Field(None, ge=0, le=2)
    top_p: float | None = Field(None, gt=0, le=1)
    top_k: int | None = Field(None, ge=0, lt=2**31)
    repetition_penalty: float | None = Field(None, gt=0, le=10)
    seed: int | None = Field(None, ge=-(2**63), lt=2**63)
    stop: str | list[str] | None = None
    n: int | None = Field(None, ge=1, le=MAX_CHOICES)
    logprobs: bool | None = None
    top_logprobs: int | None = Field(None, ge=0, le=20)
    presence_penalty: float | None = Field(None, ge=-2, le=2)
    frequency_penalty: float | None = Field(None, ge=-2, le=2)
    response_format: ResponseFormat | None = None
    # Accepted only with the value that asks for nothing: clients send these by default.
    logit_bias: dict[str, float] | None = Field(None, max_length=0)
    tools: list[Any] | None = Field(None, max_length=0)
    functions: list[Any] | None = Field(None, max_length=0)
    tool_choice: Literal["none", "auto"] | None = None
    parallel_tool_calls: bool | None = None
    modalities: list[Literal["text"]] | None = None
    # Labels that OpenAI's servers use for abuse, billing and storage; they mean nothing here and change nothing.
    user: str | None = None
    metadata: dict[str, str] | None = None
    store: Literal[False] | None = None
    service_tier: str | None = None
    safety_identifier: str | None = None
    prompt_cache_key: str | None = None

    @model_validator(mode="before")
    @classmethod
    def _without_nulls(cls, given: Any) -> Any:
        """OpenAI's clients may send null for anything that is not wanted, also for what is not known here."""
        return {k: v for k, v in given.items() if v is not None} if isinstance(given, dict) else given

    @model_validator(mode="after")
    def _top_needs_logprobs(self) -> ChatCompletionRequest:
        if self.top_logprobs is not None and not self.logprobs:
            raise PydanticCustomError("needs_logprobs", 'top_logprobs: only together with "logprobs": true')
        return self

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


def parse_as(form: type[Request], body: bytes | bytearray) -> Request:
    """The body of any request that asks a chat. Raises as `parse_request`."""
    try:
        request = form.model_validate_json(body)
    except ValidationError as error:
        raise _invalid(error) from error
    if len(request.stops) > MAX_STOPS:
        raise InvalidRequest(f"stop: at most {MAX_STOPS} stop strings are supported", param="stop")
    if any(len(stop) > MAX_STOP_LENGTH for stop in request.stops):
        raise InvalidRequest(f"stop: a stop string may have at most {MAX_STOP_LENGTH} characters", param="stop")
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
    if path in _UNSUPPORTED and first["type"] != "missing":
        return InvalidRequest(f"{path}: {_UNSUPPORTED[path]}; leave it out", param=path)
    if first["type"] == "needs_logprobs":
        return InvalidRequest(first["msg"], param="top_logprobs")
    return InvalidRequest(f"{path or 'body'}: {first['msg']}", param=path or None)


def _path(loc: tuple[int | str, ...]) -> str:
    """`messages.0.content.1.image_url.url`: pydantic's location without the tag of a part's or format's type."""
    return ".".join(str(part) for i, part in enumerate(loc) if not _is_tag(loc[:i], part))


def _is_tag(before: tuple[int | str, ...], part: int | str) -> bool:
    in_content = len(before) > 1 and before[-2] == "content" and part in ("text", "image_url")
    return in_content or (before == ("response_format",) and part in ("text", "json_object", "json_schema"))


_UNSUPPORTED = {
    "tools": "tools are not supported",
    "functions": "functions are not supported",
    "tool_choice": "tools are not supported",
    "logit_bias": "a bias for single tokens is not supported",
    "modalities.0": "only text is supported",
    "modalities.1": "only text is supported",
    "store": "answers are not stored",
}
