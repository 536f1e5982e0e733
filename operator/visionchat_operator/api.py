"""The VisionChat resource, `visionchat.dev/v1alpha1`: the one source of its schema.

`generate` writes the CRD from these models, and a resource is checked against them before it is applied. Knows
neither Kubernetes clients nor kopf.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field
from pydantic.alias_generators import to_camel

GROUP, VERSION, KIND = "visionchat.dev", "v1alpha1", "VisionChat"
PLURAL, SINGULAR, SHORT = "visionchats", "visionchat", "vchat"

Quantity = Annotated[str, Field(pattern=r"^[0-9]+(\.[0-9]+)?(Ki|Mi|Gi|Ti|k|M|G|T)?$")]


class _Model(BaseModel):
    model_config = ConfigDict(
        alias_generator=to_camel, validate_by_name=True, extra="forbid", frozen=True, protected_namespaces=()
    )


class PinningMode(StrEnum):
    """When replicas get CPUs of their own from a kubelet with the static CPU manager policy."""

    NEVER = "Never"
    ALWAYS = "Always"
    QUEUE_DEPTH = "QueueDepth"


class ModelSpec(_Model):
    """Which model, and the volume its files are on."""

    name: str = Field("Qwen/Qwen3-VL-2B-Instruct", min_length=1, description="Name of the model in the API.")
    path: str = Field("/models/Qwen3-VL-2B-Instruct", min_length=1, description="Folder of the checkpoint.")
    claim_name: str | None = Field(None, description="PersistentVolumeClaim that holds the folder, mounted read-only.")


class ReplicaSpec(_Model):
    """How many model replicas the operator may run, and what one of them gets."""

    min: int = Field(1, ge=0, le=1000, description="Fewest replicas.")
    max: int = Field(1, ge=1, le=1000, description="Most replicas.")
    target_backlog: int = Field(4, ge=1, description="Jobs in the queue per replica that scaling aims at.")
    cpus: int = Field(2, ge=1, le=512, description="Whole CPUs of one replica; also its threads.")
    memory: Quantity = Field("8Gi", description="Memory of one replica.")


class PinningSpec(_Model):
    """CPU pinning, and the queue depths that turn it on and off."""

    mode: PinningMode = Field(PinningMode.NEVER, description="When replicas are pinned.")
    pin_above: int = Field(4, ge=1, description="QueueDepth: pin when depth per replica stays over this.")
    unpin_below: int = Field(1, ge=0, description="QueueDepth: unpin when depth per replica stays under this.")
    dwell_seconds: int = Field(120, ge=0, description="QueueDepth: how long depth must stay there.")


class RedisSpec(_Model):
    """The queue. Redis 6.2 or newer."""

    url: str = Field("redis://visionchat-redis:6379/0", description="Address; a password belongs in the Secret.")
    url_secret_name: str | None = Field(None, description="Secret whose key `url` replaces `url`.")


class VisionChatSpec(_Model):
    """What the user wants."""

    model: ModelSpec = Field(default_factory=ModelSpec)
    replicas: ReplicaSpec = Field(default_factory=ReplicaSpec)
    pinning: PinningSpec = Field(default_factory=PinningSpec)
    redis: RedisSpec = Field(default_factory=RedisSpec)
    image: str | None = Field(None, description="Container image of gateway and replicas.")


# Rules over several fields, as CEL: (path of the object in the spec, rule, message).
RULES: tuple[tuple[str, str, str], ...] = (
    ("replicas", "self.min <= self.max", "replicas.min must not be over replicas.max"),
    ("pinning", "self.unpinBelow < self.pinAbove", "pinning.unpinBelow must be under pinning.pinAbove"),
)
