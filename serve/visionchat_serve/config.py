"""Every setting of the data plane, in one frozen object.

Sources, later wins: defaults < YAML file < environment (`VISIONCHAT_<KEY>`) < command-line flags. An unknown key
or a value out of range is a `ConfigError` that names the source and the key. Knows no other room of the house;
the gateway, the replica and the command line all read from here.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from datetime import timedelta
from difflib import get_close_matches
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, SecretStr, ValidationError

from visionchat_serve.errors import ConfigError

ENV_PREFIX = "VISIONCHAT_"
# What Kubernetes tells every pod about Services, one named `visionchat` or `visionchat-…` among them.
_SERVICE_LINK = re.compile(r"(\w+_)?(SERVICE_HOST|SERVICE_PORT(_\w+)?|PORT_\d+_(TCP|UDP|SCTP)(_(PROTO|PORT|ADDR))?)")
_SERVICE_ADDRESS = re.compile(r"(tcp|udp|sctp)://.*")
TINY = "tiny"


HostEntry = Annotated[str, Field(pattern=r"^(\*|(\*\.)?[a-z0-9._-]+(:[0-9]{1,5})?|\[[0-9a-f:.]+\](:[0-9]{1,5})?)$")]


class Settings(BaseModel):
    """serve/README.md has them as a table. Durations are seconds here, as people write them; code uses `timedelta`."""

    model_config = ConfigDict(frozen=True, extra="forbid", protected_namespaces=())

    model: str = Field(TINY, description="`tiny` (ships with the product) or a folder with a Qwen3-VL checkpoint")
    model_name: str | None = Field(None, description="name in the API; default: the folder's name")
    engine: Literal["torch"] = Field("torch", description="what runs the model")
    dtype: Literal["auto", "float32", "bfloat16"] = Field("auto", description="numbers the model computes with")
    max_context: int = Field(4096, ge=64, description="tokens of prompt and answer together")
    default_max_tokens: int = Field(256, ge=1, description="length limit of an answer when the request has none")

    replicas: int = Field(1, ge=1, description="model replicas at the start")
    cpus: int | None = Field(None, ge=1, description="whole CPUs of a replica; default: all there are, shared evenly")

    host: str = Field("127.0.0.1", description="address the HTTP server listens on")
    port: int = Field(8000, ge=0, le=65535, description="port of the HTTP server; 0 picks a free one")

    api_keys_file: Path | None = Field(None, description="file with hashed API keys; default: everybody may ask")
    cors_origins: tuple[str, ...] = Field((), description="web origins whose pages may ask, `*` for all")

    redis_url: str | None = Field(
        None, description="redis://, rediss://, unix:// or redis+sentinel://; default: an embedded one"
    )
    redis_password: SecretStr | None = Field(None, description="password of that Redis, if it is not in the address")
    redis_ca_file: Path | None = Field(
        None, description="PEM file of the authority that vouches for a rediss:// server"
    )
    namespace: str = Field("default", pattern=r"^[A-Za-z0-9._-]{1,64}$", description="separates queues in one Redis")
    data_dir: Path | None = Field(None, description="where the embedded Redis keeps its data")
    lease_seconds: float = Field(10, gt=0, description="a silent replica loses its job after this long")
    max_attempts: int = Field(3, ge=1, description="replicas that may try one job")
    max_waiting: int = Field(1000, ge=1, description="jobs not yet answered above which requests get 429")
    max_wait_seconds: float = Field(600, gt=0, description="estimated wait above which requests get 429")
    rate_per_minute: int = Field(0, ge=0, description="requests a minute of one API key; 0: no limit")
    max_open_requests: int = Field(0, ge=0, description="unanswered requests of one API key; 0: no limit")
    cache_ttl_seconds: float = Field(3600, ge=0, description="how long an answer serves the same request; 0: never")
    cache_max_bytes: int = Field(16 << 20, ge=1024, description="memory for such answers; the oldest make room")
    result_ttl_seconds: float = Field(900, gt=0, description="how long an answer is kept")
    request_timeout_seconds: float = Field(600, gt=0, description="deadline of a request, waiting included")
    answer_timeout_seconds: float = Field(300, gt=0, description="how long a replica may work on one request")
    recycle_after_jobs: int | None = Field(None, ge=1, description="a replica restarts after so many; default: never")
    picture_cache_bytes: int = Field(
        512 << 20,
        ge=0,
        description="memory of a replica for pictures and conversations it may be asked on about; 0: none",
    )
    memory_high: float = Field(0.85, gt=0, le=1, description="share of the memory limit at which a replica restarts")
    stuck_seconds: float = Field(180, gt=0, description="a model step longer than this gets the replica restarted")

    max_body_bytes: int = Field(64 << 20, ge=1024, description="largest request body")
    body_seconds: float = Field(120, gt=0, description="longest time that a request body may take to arrive")
    max_bodies_bytes: int = Field(
        128 << 20,
        ge=1024,
        description="bodies and fetched pictures of all requests that are not in the queue yet; room for one is always",
    )
    image_max_bytes: int = Field(20 << 20, ge=1024, description="largest picture, encoded")
    image_max_pixels: int = Field(1 << 26, ge=1, description="largest picture, in pixels")
    image_side: int = Field(512, ge=32, description="longest side the model sees with `detail: auto`")
    max_images: int = Field(8, ge=1, description="pictures in one request")
    image_url_hosts: tuple[HostEntry, ...] = Field(
        (), description="hosts that pictures may be fetched from: `name`, `name:port`, `*.name`, `*`; default: none"
    )
    image_url_seconds: float = Field(10, gt=0, description="longest download of a picture, redirects included")

    @property
    def served_name(self) -> str:
        """The model's name in the API."""
        return self.model_name or ("visionchat-tiny" if self.model == TINY else Path(self.model).name)

    @property
    def request_timeout(self) -> timedelta:
        return timedelta(seconds=self.request_timeout_seconds)


def load_settings(
    yaml_file: Path | None = None,
    environ: Mapping[str, str] | None = None,
    flags: Mapping[str, Any] | None = None,
) -> Settings:
    """Merge the sources in order. Flags that are None were not given."""
    merged: dict[str, Any] = {}
    for source, values in (
        (f"file {yaml_file}", _from_yaml(yaml_file)),
        ("environment", _from_environ(os.environ if environ is None else environ)),
        ("command line", {k: v for k, v in (flags or {}).items() if v is not None}),
    ):
        _check_known(source, values)
        merged |= values
    try:
        return Settings.model_validate(merged)
    except ValidationError as error:
        raise ConfigError("; ".join(_explain(e) for e in error.errors())) from error


def _from_yaml(path: Path | None) -> dict[str, Any]:
    if path is None:
        return {}
    import yaml  # only a start with a file pays for it

    try:
        values = yaml.safe_load(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        raise ConfigError(f"cannot read the settings file {path}: {error}") from error
    if values is None:
        return {}
    if not isinstance(values, dict):
        raise ConfigError(f"the settings file {path} must hold `key: value` lines")
    return values


def _from_environ(environ: Mapping[str, str]) -> dict[str, Any]:
    values: dict[str, Any] = {
        name.removeprefix(ENV_PREFIX).lower(): value
        for name, value in environ.items()
        if name.startswith(ENV_PREFIX) and value != "" and not _is_service_link(name.removeprefix(ENV_PREFIX), value)
    }
    for key in ("cors_origins", "image_url_hosts"):
        if key in values:
            values[key] = [entry.strip() for entry in values[key].split(",")]
    return values


def _is_service_link(name: str, value: str) -> bool:
    is_address = name.endswith("PORT") and _SERVICE_ADDRESS.fullmatch(value) is not None
    return is_address or _SERVICE_LINK.fullmatch(name) is not None


def _check_known(source: str, values: Mapping[str, Any]) -> None:
    unknown = sorted(str(key) for key in values if key not in Settings.model_fields)
    if unknown:
        known = ", ".join(Settings.model_fields)
        raise ConfigError(
            f"unknown setting in {source}: {', '.join(map(_with_nearest, unknown))}. Known settings: {known}"
        )


def _with_nearest(key: str) -> str:
    nearest = get_close_matches(key, Settings.model_fields, 1)
    return f"{key} (did you mean {nearest[0]}?)" if nearest else key


def _explain(error: Any) -> str:
    key = ".".join(str(part) for part in error["loc"])
    return f"setting {key}: {error['msg']} (got {error['input']!r})"
