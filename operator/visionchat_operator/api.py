"""The VisionChat resource, `visionchat.dev/v1alpha1`: the one source of its schema.

`generate` writes the CRD from these models, `visionchat-operator check` validates files with them, and the operator
reads a resource through them. A rule over several fields is written once, as a `Rule`: in CEL for the API server and
in Python for `check`. Knows neither Kubernetes clients nor kopf.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from enum import StrEnum
from typing import Annotated, Any, ClassVar, NamedTuple, Self

from pydantic import BaseModel, ConfigDict, Field, model_validator
from pydantic.alias_generators import to_camel

GROUP, VERSION, KIND = "visionchat.dev", "v1alpha1", "VisionChat"
PLURAL, SINGULAR, SHORT = "visionchats", "visionchat", "vchat"
API_VERSION = f"{GROUP}/{VERSION}"

TINY = "tiny"  # the model that ships with the product

Quantity = Annotated[str, Field(pattern=r"^[1-9][0-9]*(Ki|Mi|Gi|Ti|k|M|G|T)?$")]
Name = Annotated[str, Field(min_length=1, max_length=253, pattern=r"^[a-z0-9]([-a-z0-9.]*[a-z0-9])?$")]
Anything = dict[str, Any]  # an object of Kubernetes' own API, which checks it itself


class Rule(NamedTuple):
    """What must hold between fields: for the API server, for people, and for Python."""

    cel: str
    message: str
    holds: Callable[[Any], bool]


class Model(BaseModel):
    """Base: camelCase names, unknown fields refused, rules checked."""

    model_config = ConfigDict(
        alias_generator=to_camel, validate_by_name=True, extra="forbid", frozen=True, protected_namespaces=()
    )
    rules: ClassVar[tuple[Rule, ...]] = ()

    @model_validator(mode="after")
    def _rules_hold(self) -> Self:
        for rule in self.rules:
            if not rule.holds(self):
                raise ValueError(rule.message)
        return self


class Engine(StrEnum):
    """What runs the model."""

    TORCH = "torch"


class Precision(StrEnum):
    """Numbers that the model computes with."""

    AUTO = "auto"
    FLOAT32 = "float32"
    BFLOAT16 = "bfloat16"


class ScalingPolicy(StrEnum):
    """Who decides the number of replicas."""

    QUEUE_DEPTH = "QueueDepth"
    MANUAL = "Manual"


class PinningMode(StrEnum):
    """When replicas get CPUs of their own from a kubelet with the static CPU manager policy."""

    NEVER = "Never"
    ALWAYS = "Always"
    QUEUE_DEPTH = "QueueDepth"


class Fallback(StrEnum):
    """What to do when a node refuses to pin."""

    SHARED = "Shared"
    WAIT = "Wait"


class GatewayKind(StrEnum):
    """How the API is reached from outside the cluster."""

    NONE = "None"
    INGRESS = "Ingress"
    HTTP_ROUTE = "HTTPRoute"


class SecretKey(Model):
    """One value in a Secret of the same namespace."""

    name: Name = Field(description="Name of the Secret.")
    key: str | None = Field(
        None, max_length=253, pattern=r"^[-._a-zA-Z0-9]+$", description="Key in it; default: by what it holds."
    )


class ModelSpec(Model):
    """Which model, where its files are, and its limits."""

    id: str = Field(
        "Qwen/Qwen3-VL-2B-Instruct",
        min_length=1,
        max_length=200,
        pattern=r"^[A-Za-z0-9._-]+(/[A-Za-z0-9._-]+)?$",
        description="Model on the Hugging Face hub, fetched once onto the claim; `tiny` is in the image.",
    )
    revision: str | None = Field(
        None, min_length=1, max_length=100, description="Branch, tag or commit on the hub; default: its main branch."
    )
    folder: str | None = Field(
        None,
        min_length=1,
        max_length=500,
        pattern=r"^[^/].*$",
        description="Folder on the claim that holds the checkpoint already; nothing is fetched then.",
    )
    claim_name: Name | None = Field(
        None, description="PersistentVolumeClaim for the model's files; default: one is made."
    )
    claim_size: Quantity = Field("20Gi", description="Size of the claim that is made.")
    storage_class_name: Name | None = Field(None, description="Storage class of the claim that is made.")
    name: str | None = Field(
        None, min_length=1, max_length=200, description="Name in the API; default: the model's own."
    )
    engine: Engine = Field(Engine.TORCH, description="What runs the model.")
    precision: Precision = Field(Precision.AUTO, description="Numbers that the model computes with.")
    max_pixels: int = Field(1 << 26, ge=1024, le=1 << 30, description="Largest picture that is accepted, in pixels.")
    image_side: int = Field(512, ge=32, le=8192, description="Longest side that the model sees, in pixels.")
    max_context: int = Field(4096, ge=64, le=1 << 20, description="Tokens of prompt and answer together.")

    rules = (
        Rule(
            "!has(self.folder) || has(self.claimName)",
            "model.folder needs model.claimName, the claim that holds the folder",
            lambda m: m.folder is None or m.claim_name is not None,
        ),
        Rule(
            "!has(self.folder) || !has(self.revision)",
            "model.revision is for models of the hub; a folder has none",
            lambda m: m.folder is None or m.revision is None,
        ),
    )

    @property
    def embedded(self) -> bool:
        """The model is in the image."""
        return self.id == TINY and self.folder is None


class ScalingSpec(Model):
    """How the number of replicas follows the queue."""

    policy: ScalingPolicy = Field(
        ScalingPolicy.QUEUE_DEPTH, description="QueueDepth follows the queue; Manual takes `replicas`."
    )
    min_replicas: int = Field(1, ge=0, le=1000, description="Fewest replicas; 0 lets the last one go when idle.")
    max_replicas: int = Field(1, ge=1, le=1000, description="Most replicas.")
    target_queue_depth: int | None = Field(
        None, ge=1, le=100000, description="Unanswered jobs per replica that scaling aims at; default 4."
    )
    target_wait_seconds: int | None = Field(
        None, ge=1, le=86400, description="Instead of a depth: how long a new job may wait, by measured speed."
    )
    scale_up_delay_seconds: int = Field(3, ge=0, le=3600, description="How long the queue must ask for more.")
    scale_down_delay_seconds: int = Field(120, ge=0, le=86400, description="How long the queue must allow fewer.")

    rules = (
        Rule(
            "self.minReplicas <= self.maxReplicas",
            "scaling.minReplicas must not be over scaling.maxReplicas",
            lambda s: s.min_replicas <= s.max_replicas,
        ),
        Rule(
            "!has(self.targetQueueDepth) || !has(self.targetWaitSeconds)",
            "set scaling.targetQueueDepth or scaling.targetWaitSeconds, not both",
            lambda s: s.target_queue_depth is None or s.target_wait_seconds is None,
        ),
    )

    @property
    def up_delay(self) -> timedelta:
        return timedelta(seconds=self.scale_up_delay_seconds)

    @property
    def down_delay(self) -> timedelta:
        return timedelta(seconds=self.scale_down_delay_seconds)


class PinningSpec(Model):
    """CPU pinning, and the queue depths that turn it on and off."""

    mode: PinningMode = Field(PinningMode.NEVER, description="When replicas are pinned to CPUs of their own.")
    pin_above: int = Field(4, ge=1, le=100000, description="QueueDepth: pin when jobs per replica stay over this.")
    unpin_below: int = Field(1, ge=0, le=100000, description="QueueDepth: unpin when jobs per replica stay under this.")
    dwell_seconds: int = Field(
        120, ge=0, le=86400, description="QueueDepth: how long the depth must stay there, and a mode lasts at least."
    )
    fallback: Fallback = Field(
        Fallback.SHARED, description="When a node refuses to pin: run on shared CPUs meanwhile, or wait."
    )

    rules = (
        Rule(
            "self.unpinBelow < self.pinAbove",
            "pinning.unpinBelow must be under pinning.pinAbove",
            lambda p: p.unpin_below < p.pin_above,
        ),
    )

    @property
    def dwell(self) -> timedelta:
        return timedelta(seconds=self.dwell_seconds)


class SentinelSpec(Model):
    """Redis found through its Sentinels."""

    addresses: list[Annotated[str, Field(pattern=r"^[^:/@]+:[0-9]+$", max_length=300)]] = Field(
        min_length=1, max_length=9, description="host:port of each Sentinel."
    )
    master: str = Field("mymaster", min_length=1, max_length=100, description="Name of the master.")
    password: SecretKey | None = Field(
        None, description="Password of the Redis behind the Sentinels; default key `password`."
    )
    tls: bool = Field(False, description="Sentinels and Redis speak TLS.")


class QueueSpec(Model):
    """The Redis (6.2 or newer) that keeps the queue; by default the one that the operator was installed with."""

    url: str | None = Field(
        None, max_length=500, pattern=r"^rediss?://[^@]+$", description="redis:// or rediss://, without a password."
    )
    url_secret: SecretKey | None = Field(
        None, description="Secret that holds the whole URL, password included; default key `url`."
    )
    sentinel: SentinelSpec | None = Field(None, description="Redis found through its Sentinels.")
    ca_secret: SecretKey | None = Field(
        None,
        description="Secret with the certificate (PEM) of the authority that vouches for a rediss:// server; "
        "default key `ca.crt`.",
    )
    delete_with_resource: bool = Field(
        False, description="Delete this VisionChat's keys in Redis when the VisionChat is deleted."
    )

    rules = (
        Rule(
            "[has(self.url), has(self.urlSecret), has(self.sentinel)].filter(x, x).size() <= 1",
            "set one of queue.url, queue.urlSecret and queue.sentinel",
            lambda q: sum(x is not None for x in (q.url, q.url_secret, q.sentinel)) <= 1,
        ),
        Rule(
            "!has(self.caSecret) || has(self.urlSecret) || (has(self.url) && self.url.startsWith('rediss://'))"
            " || (has(self.sentinel) && self.sentinel.tls)",
            "queue.caSecret is for a Redis with TLS: rediss:// in queue.url or queue.urlSecret, or queue.sentinel.tls",
            lambda q: q.ca_secret is None or q.url_secret is not None or q.with_tls,
        ),
    )

    @property
    def with_tls(self) -> bool:
        """As far as the spec says; an address in a Secret says it itself."""
        by_url = self.url is not None and self.url.startswith("rediss://")
        return by_url or (self.sentinel is not None and self.sentinel.tls)


class GatewaySpec(Model):
    """How the API is reached, and by whom."""

    kind: GatewayKind = Field(GatewayKind.NONE, description="None keeps the API inside the cluster.")
    host: Name | None = Field(None, description="Host name of the API.")
    class_name: Name | None = Field(None, description="Ingress class; default: the cluster's.")
    gateway_name: Name | None = Field(None, description="HTTPRoute: the Gateway it belongs to.")
    gateway_namespace: Name | None = Field(None, description="HTTPRoute: the Gateway's namespace; default: this one.")
    tls_secret_name: Name | None = Field(None, description="Ingress: Secret with the certificate of `host`.")
    annotations: dict[str, str] = Field(default_factory=dict, description="Annotations of the Ingress or HTTPRoute.")
    api_keys_secret: SecretKey | None = Field(
        None,
        description="Secret with the lines of `visionchat key` (default key `keys`); without it everybody may ask.",
    )

    rules = (
        Rule(
            "self.kind != 'HTTPRoute' || has(self.gatewayName)",
            "an HTTPRoute needs gateway.gatewayName",
            lambda g: g.kind != GatewayKind.HTTP_ROUTE or g.gateway_name is not None,
        ),
        Rule(
            "!has(self.tlsSecretName) || (self.kind == 'Ingress' && has(self.host))",
            "gateway.tlsSecretName needs kind Ingress and gateway.host",
            lambda g: g.tls_secret_name is None or (g.kind == GatewayKind.INGRESS and g.host is not None),
        ),
    )


class PodTemplate(Model):
    """What the operator adds to each of its pods, in Kubernetes' own words."""

    node_selector: dict[str, str] = Field(default_factory=dict, description="Nodes that the replicas may run on.")
    tolerations: list[Anything] = Field(default_factory=list, max_length=50, description="Taints that they tolerate.")
    affinity: Anything | None = Field(None, description="Scheduling preferences of the replicas.")
    volumes: list[Anything] = Field(default_factory=list, max_length=50, description="More volumes.")
    volume_mounts: list[Anything] = Field(default_factory=list, max_length=50, description="Where they are mounted.")
    env: list[Anything] = Field(default_factory=list, max_length=100, description="More environment variables.")
    priority_class_name: Name | None = Field(None, description="Priority class.")
    security_context: Anything | None = Field(None, description="Replaces the pods' security context, key by key.")
    labels: dict[str, str] = Field(default_factory=dict, description="More labels.")
    annotations: dict[str, str] = Field(default_factory=dict, description="More annotations.")


class LocalReference(Model):
    """An object of the same namespace."""

    name: Name = Field(description="Its name.")


class VisionChatSpec(Model):
    """What the user wants."""

    model: ModelSpec = Field(default_factory=ModelSpec, description="Which model, its files and limits.")
    replicas: int = Field(1, ge=0, le=1000, description="Number of replicas while scaling is Manual (kubectl scale).")
    cpus_per_replica: int = Field(2, ge=1, le=512, description="Whole CPUs of one replica; also its threads.")
    memory_per_replica: Quantity = Field("8Gi", description="Memory of one replica.")
    scaling: ScalingSpec = Field(default_factory=ScalingSpec, description="How many replicas, by the queue.")
    pinning: PinningSpec = Field(default_factory=PinningSpec, description="CPUs of their own, by the queue.")
    queue: QueueSpec = Field(default_factory=QueueSpec, description="The Redis that keeps the queue.")
    gateway: GatewaySpec = Field(default_factory=GatewaySpec, description="How the API is reached.")
    image: str | None = Field(None, min_length=1, max_length=500, description="Image; default: the operator's.")
    image_pull_policy: str | None = Field(
        None, pattern="^(Always|IfNotPresent|Never)$", description="When the image is pulled."
    )
    image_pull_secrets: list[LocalReference] = Field(
        default_factory=list, max_length=10, description="Secrets to pull the image with."
    )
    pod_template: PodTemplate = Field(default_factory=PodTemplate, description="Additions to the pods.")
    suspend: bool = Field(False, description="Keep everything but run nothing; accepted jobs wait in the queue.")
