"""From the bytes of a chat request to a job: parse, check every picture, shrink it. Before the queue, off the loop.

All of it is plain computation, so the gateway runs it in a small thread pool. Whatever is wrong with a request is
found here and raised as one of `errors`, with the place in the body as `param`.
"""

from __future__ import annotations

import itertools
import json
import math
import secrets
import time
import uuid
from collections.abc import Iterator, Mapping, Sequence

from visionchat_serve.affinity import affinity
from visionchat_serve.config import Settings
from visionchat_serve.errors import ContextTooLong, ImageError, InvalidRequest, NotFound, VisionChatError
from visionchat_serve.image_address import is_http
from visionchat_serve.images import ImageLimits, NormalisedImage, decode_data_url, normalise
from visionchat_serve.json_bounds import check_values
from visionchat_serve.json_grammar import ANY_OBJECT, check_schema
from visionchat_serve.messages import ChatJob, ImagePart, Message, Role, SamplingParams, TextPart
from visionchat_serve.schemas import (
    ChatCompletionRequest,
    ChatMessage,
    ImageUrl,
    JsonObjectFormat,
    JsonSchemaFormat,
    Request,
    ResponseFormat,
    parse_as,
)

LONGEST_TOKEN = 128  # characters; in Qwen's vocabulary as many spaces are one token
IMAGE_TOKEN_SIDE = 32  # pixels: patches of 16, two by two to a token
FEWEST_IMAGE_TOKENS = 64  # small pictures are scaled up
BYTES_PER_TOKEN = 4  # of text
FRAME_TOKENS = 5  # around each message


def parse(body: bytes | bytearray, settings: Settings, form: type[Request]) -> tuple[Request, dict[str, str]]:
    """The request as it was asked, and the http(s) URLs of its pictures by their places in the body.

    What can be said without the pictures is said here, so that nothing is fetched for a request that is refused.
    """
    check_values(body)
    request = parse_as(form, body)
    if request.model != settings.served_name:
        raise NotFound(f"the model {request.model!r} does not exist here; use {settings.served_name!r}", param="model")
    _check_length(request, settings.max_context)
    places = list(_places(request))
    if len(places) > settings.max_images:
        where = places[settings.max_images][0].rpartition(".content.")[0]
        raise InvalidRequest(f"{where}: at most {settings.max_images} pictures a request", param=where)
    return request, {place: image.url for place, image in places if is_http(image.url)}


def _check_length(request: ChatCompletionRequest, max_context: int) -> None:
    """Refuse text that cannot fit, however it is cut into tokens: the queue would keep it, and a replica count it."""
    letters = sum(len(part.text) for message in request.messages for part in message.content if part.type == "text")
    if letters > max_context * LONGEST_TOKEN:
        raise ContextTooLong(
            f"messages: {letters} characters of text are more than the model's {max_context} tokens; shorten the text",
            param="messages",
        )


def read_request(
    request: ChatCompletionRequest, settings: Settings, fetched: Mapping[str, bytes], owner: str = ""
) -> tuple[ChatJob, tuple[bytes, ...]]:
    """The owner's job, and its pictures as PNG or JPEG. `fetched` are those that came by URL."""
    limits = image_limits(settings)
    pictures = [_picture(image, place, fetched, limits) for place, image in _places(request)]
    images = tuple(picture.data for picture in pictures)
    count = itertools.count()
    messages = tuple(_message(message, count) for message in request.messages)
    now = time.time()
    job = ChatJob(
        id=f"chatcmpl-{uuid.uuid4().hex}",
        messages=messages,
        sampling=_sampling(request, settings),
        model=request.model,
        image_count=len(images),
        created_at=now,
        deadline_at=now + settings.request_timeout_seconds,
        owner=owner,
        timeout=settings.answer_timeout_seconds,
        affinity=affinity(owner, images),
        prompt_tokens=about_tokens(messages, [(picture.width, picture.height) for picture in pictures]),
    )
    return job, images


def image_limits(settings: Settings) -> ImageLimits:
    return ImageLimits(
        max_bytes=settings.image_max_bytes,
        max_pixels=settings.image_max_pixels,
        auto_side=settings.image_side,
    )


def _places(request: ChatCompletionRequest) -> Iterator[tuple[str, ImageUrl]]:
    """The pictures in their order, with their places in the body."""
    for at, message in enumerate(request.messages):
        for part, content in enumerate(message.content):
            if content.type == "image_url":
                if message.role != "user":
                    where = f"messages.{at}"
                    raise InvalidRequest(f"{where}: only user messages may hold pictures", param=where)
                yield f"messages.{at}.content.{part}.image_url", content.image_url


def _message(message: ChatMessage, count: Iterator[int]) -> Message:
    """`count` numbers the pictures."""
    role: Role = "system" if message.role == "developer" else message.role
    return Message(
        role, tuple(TextPart(c.text) if c.type == "text" else ImagePart(next(count)) for c in message.content)
    )


def _picture(image: ImageUrl, where: str, fetched: Mapping[str, bytes], limits: ImageLimits) -> NormalisedImage:
    try:
        # What a host declares is often wrong and not the caller's fault; the bytes say what it is.
        data, declared_type = (fetched[image.url], None) if image.url in fetched else decode_data_url(image.url, limits)
        return normalise(data, detail=image.detail, declared_type=declared_type, limits=limits)
    except ImageError as error:
        raise _at(error, where) from error


def about_tokens(messages: Sequence[Message], pictures: Sequence[tuple[int, int]]) -> int:
    """Tokens of a prompt, near enough to tell how long it will take: pictures are width and height in pixels."""
    text = sum(len(part.text.encode()) for m in messages for part in m.parts if isinstance(part, TextPart))
    squares = (round(width / IMAGE_TOKEN_SIDE) * round(height / IMAGE_TOKEN_SIDE) for width, height in pictures)
    image = sum(max(squares_of_one, FEWEST_IMAGE_TOKENS) for squares_of_one in squares)
    return math.ceil(text / BYTES_PER_TOKEN) + image + FRAME_TOKENS * len(messages)


def _at(error: ImageError, where: str) -> VisionChatError:
    return type(error)(f"{where}: {error.message}", param=where)


def _sampling(request: ChatCompletionRequest, settings: Settings) -> SamplingParams:
    return SamplingParams(
        # More cannot be written, and the queue would believe that it takes so long.
        max_tokens=min(
            request.max_completion_tokens or request.max_tokens or settings.default_max_tokens, settings.max_context
        ),
        temperature=request.temperature,
        top_p=request.top_p,
        top_k=request.top_k,
        # With a seed of our own another replica can repeat the answer if the first one dies over it.
        seed=request.seed if request.seed is not None else secrets.randbits(62),
        repetition_penalty=request.repetition_penalty,
        stop=request.stops,
        presence_penalty=request.presence_penalty or 0.0,
        frequency_penalty=request.frequency_penalty or 0.0,
        logprobs=(request.top_logprobs or 0) if request.logprobs else None,
        json_schema=_json_schema(request.response_format),
        n=request.n or 1,
    )


def _json_schema(wanted: ResponseFormat | None) -> str | None:
    """The JSON Schema that the answer must keep to, as text."""
    if isinstance(wanted, JsonObjectFormat):
        return ANY_OBJECT
    if not isinstance(wanted, JsonSchemaFormat):
        return None
    schema = json.dumps(wanted.json_schema.schema_)
    check_schema(schema, "response_format.json_schema.schema")
    return schema
