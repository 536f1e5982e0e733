"""What travels through the queue: jobs, claims, pieces of answers and their ends.

Frozen values with a JSON form. The gateway writes `ChatJob`, a replica claims it as `Claim` and answers with
`TokenChunk`s and one `Finish`. Pictures travel beside the job, as already normalised PNG or JPEG bytes.
This module knows no broker, no HTTP and no model.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal, TypeVar

from pydantic import TypeAdapter

Role = Literal["system", "user", "assistant"]
FinishReason = Literal["stop", "length", "cancelled", "error"]
Priority = Literal["interactive", "batch"]
JobStatus = Literal["queued", "processing", "succeeded", "failed", "cancelled", "expired"]

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class TextPart:
    """A piece of text inside a message."""

    text: str
    kind: Literal["text"] = "text"


@dataclass(frozen=True, slots=True)
class ImagePart:
    """A picture inside a message: `index` counts the job's pictures from 0 in order of appearance."""

    index: int
    kind: Literal["image"] = "image"


@dataclass(frozen=True, slots=True)
class Message:
    """One turn of the conversation; the order of its parts is the order the model sees."""

    role: Role
    parts: tuple[TextPart | ImagePart, ...]


@dataclass(frozen=True, slots=True)
class SamplingParams:
    """How to choose tokens. None means: as the model's own `generation_config.json` says.

    `temperature` 0 is greedy. `top_k` 0 and `top_p` 1 are off. `seed` makes a sampled answer repeatable.
    `stop` strings end the answer and are not part of it. `logprobs`: None for none, else how many other tokens to
    tell beside the chosen one. `json_schema` is a JSON Schema as text that the answer must keep to. `n` answers are
    wanted; the one with index i is drawn with `seed` + i.
    """

    max_tokens: int = 256
    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    seed: int | None = None
    repetition_penalty: float | None = None
    stop: tuple[str, ...] = ()
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    logprobs: int | None = None
    json_schema: str | None = None
    n: int = 1


@dataclass(frozen=True, slots=True)
class ChatJob:
    """One question to the model. `created_at` and `deadline_at` are seconds since the epoch.

    `owner` is whose it is: one's jobs are invisible to others. `timeout` is the seconds that an attempt may take,
    within the deadline. Jobs with the same `affinity`, not "", are best answered by the same replica. `prompt_tokens`
    is an estimate, pictures included, by which the queue tells how long it will take. Whoever shows the `ticket`, not
    "", may follow the job's events without the owner's key.
    """

    id: str
    messages: tuple[Message, ...]
    sampling: SamplingParams
    model: str
    image_count: int
    created_at: float
    deadline_at: float
    owner: str = ""
    priority: Priority = "interactive"
    metadata: dict[str, str] = field(default_factory=dict)  # the owner's own notes on it
    cache_key: str = ""  # the same for all requests that have the same answer; "" if the answer is not to be kept
    timeout: float | None = None
    affinity: str = ""
    prompt_tokens: int = 0
    ticket: str = ""


@dataclass(frozen=True, slots=True)
class Idempotency:
    """What makes a repeated request the same: the owner's `key`; `fingerprint` is of its body."""

    key: str
    fingerprint: str


@dataclass(frozen=True, slots=True)
class Submitted:
    """What became of a request: `job_id` is the job that stands for it. `accepted`: it waits. `known`: an earlier
    request made that job. `joined`: the same is being answered already. `hit`: it is answered by a kept answer."""

    job_id: str
    how: Literal["accepted", "known", "joined", "hit"]


@dataclass(frozen=True, slots=True)
class Claim:
    """A job leased to one replica. `attempt` (from 1) fences: writes of an older attempt are refused."""

    job: ChatJob
    images: tuple[bytes, ...]
    attempt: int


@dataclass(frozen=True, slots=True)
class Usage:
    """Token counts in OpenAI's sense; `image_tokens` is the part of `prompt_tokens` that pictures took.

    `cached_tokens` did not have to be read again, and `cached_images` are the pictures that did not have to be encoded
    again, because the engine knew them from earlier requests.
    """

    prompt_tokens: int = 0
    completion_tokens: int = 0
    image_tokens: int = 0
    cached_tokens: int = 0
    cached_images: int = 0


@dataclass(frozen=True, slots=True)
class TokenLogprob:
    """How likely the model found a token: natural logarithm. `data` are its bytes, which need not be whole
    characters; `top` are the likeliest tokens in its place, if they were asked for."""

    token: str
    logprob: float
    data: tuple[int, ...]
    top: tuple[TokenLogprob, ...] = ()


@dataclass(frozen=True, slots=True)
class TokenChunk:
    """Text of one or more tokens. `index` counts the chunks of one attempt from 0; `choice` is which of the job's
    `n` answers they belong to. `logprobs` of these tokens, if the job asked for them."""

    job_id: str
    attempt: int
    index: int
    text: str
    choice: int = 0
    logprobs: tuple[TokenLogprob, ...] = ()


@dataclass(frozen=True, slots=True)
class ChunkDetails:
    """What most chunks do not have; kept apart so that those stay as small as their text."""

    choice: int = 0
    logprobs: tuple[TokenLogprob, ...] = ()


@dataclass(frozen=True, slots=True)
class Finish:
    """The end of a job. With reason "error", `error_code` is an `errors` code, `message` is for people, and `param`
    the field of the request that is at fault, if one is.

    Of a job with several answers, `reason` is the first one's, `others` those of the rest.
    """

    reason: FinishReason
    usage: Usage = field(default_factory=Usage)
    error_code: str | None = None
    message: str | None = None
    others: tuple[FinishReason, ...] = ()
    param: str | None = None

    @property
    def reasons(self) -> tuple[FinishReason, ...]:
        """One for each answer."""
        return (self.reason, *self.others)


@dataclass(frozen=True, slots=True)
class JobEvent:
    """One entry of a job's result stream: a chunk of text or the end. `id` is its place, to resume after."""

    id: str
    attempt: int
    value: TokenChunk | Finish


@dataclass(frozen=True, slots=True)
class JobView:
    """A job as its owner may see it. `position` counts the jobs ahead of it and is None unless it is queued.

    A queued job may have an `attempt` already: its replica was lost.
    """

    id: str
    owner: str
    status: JobStatus
    attempt: int
    created_at: float
    ended_at: float | None = None
    position: int | None = None
    finish: Finish | None = None


def status_after(finish: Finish) -> JobStatus:
    """How a job that ended so is called."""
    if finish.reason == "error":
        return "expired" if finish.error_code == "timeout" else "failed"
    return "cancelled" if finish.reason == "cancelled" else "succeeded"


@dataclass(frozen=True, slots=True)
class QueueLoad:
    """The queue at one moment, in jobs. `backlog` is what is not yet answered.

    `pace` is the seconds between two answers of all replicas that report, as they will be for this backlog: from its
    tokens, the length that answers had lately and the measured speed; 0 until one was measured. `oldest` is the age in
    seconds of the job that has waited longest, 0 if none waits. Both are left out when two loads are compared.
    """

    waiting: int
    leased: int
    delayed: int = 0
    pace: float = field(default=0.0, compare=False)
    oldest: float = field(default=0.0, compare=False)

    @property
    def backlog(self) -> int:
        return self.waiting + self.leased + self.delayed

    @property
    def seconds(self) -> float:
        """About how long the replicas will work on the backlog."""
        return self.backlog * self.pace


@dataclass(frozen=True, slots=True)
class ReplicaReport:
    """What a ready replica says of itself every few seconds; it vanishes soon after the replica does.

    `cpus` are the logical CPUs it may really run on, `threads` what its engine uses, `running` the jobs that it
    works on; `pod` is where it runs, if in a cluster. Since it was loaded it had to encode `picture_misses` pictures,
    and knew `picture_hits` pictures and `cached_tokens` tokens of prompts from earlier requests.
    """

    replica: str
    engine: str
    model: str
    dtype: str
    revision: str
    threads: int
    cpus: tuple[int, ...]
    max_context: int
    max_running: int
    loaded_at: float
    running: int = 0
    pod: str = ""
    picture_hits: int = 0
    picture_misses: int = 0
    cached_tokens: int = 0


_adapters: dict[Any, TypeAdapter[Any]] = {}  # making one is slow, using it is quick


def _adapter(kind: Any) -> TypeAdapter[Any]:
    if kind not in _adapters:
        _adapters[kind] = TypeAdapter(kind)
    return _adapters[kind]


def encode(value: Any) -> bytes:
    """JSON of one of the dataclasses above."""
    return _adapter(type(value)).dump_json(value)


def decode(kind: type[T], data: bytes | str) -> T:
    """The inverse of `encode`; raises pydantic's ValidationError on foreign data."""
    result: T = _adapter(kind).validate_json(data)
    return result
