"""What the data plane is told: its settings as environment variables, and Ray's. Pure; `children` calls it.

The replicas read their settings from their own pod, not from Ray Serve's configuration: that stays the same for ever,
so that Serve never rolls replicas by itself, and a new model comes with new pods, one by one.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta
from typing import Any

from visionchat_operator import names
from visionchat_operator.api import QueueSpec, SecretKey, VisionChatSpec
from visionchat_operator.world import Key, Manifest
from visionchat_serve import __version__

MODELS = "/models"
TOKEN_FILE = "/etc/visionchat/ray/token"  # noqa: S105 - a path
KEYS_FILE = "/etc/visionchat/keys/keys"
AUTHORITY_FILE = "/etc/visionchat/redis/ca.crt"
DRAIN = timedelta(seconds=75)  # what Serve gives a replica to end its answer; see `visionchat_serve.app`
RAY_DRAIN = DRAIN + timedelta(seconds=10)
GRACE = RAY_DRAIN + timedelta(seconds=15)

API_PORT, DASHBOARD_PORT, GCS_PORT, METRICS_PORT, AGENT_PORT = 8000, 8265, 6379, 8080, 52365
PORTS = {
    "node-manager-port": 6380,
    "object-manager-port": 6381,
    "dashboard-agent-listen-port": AGENT_PORT,
    "dashboard-agent-grpc-port": 52366,
    "runtime-env-agent-port": 52367,
    "metrics-export-port": METRICS_PORT,
    "min-worker-port": 10002,
    "max-worker-port": 19999,
}

URL, PASSWORD, AUTHORITY = "VISIONCHAT_REDIS_URL", "VISIONCHAT_REDIS_PASSWORD", "VISIONCHAT_REDIS_CA_FILE"


@dataclass(frozen=True, slots=True)
class Defaults:
    """What a VisionChat gets where it says nothing: from the operator's own command line."""

    image: str = f"visionchat/serve:{__version__}"
    redis_url: str = "redis://visionchat-redis:6379/0"
    redis_secret: SecretKey | None = (
        None  # before `redis_url`: a Secret with the address, in each VisionChat's namespace
    )


def settings(key: Key, spec: VisionChatSpec) -> dict[str, str]:
    """`VISIONCHAT_…` for gateway and replicas, as in `visionchat_serve.config.Settings`."""
    model = spec.model
    values: dict[str, Any] = {
        "MODEL": model_path(spec),
        "MODEL_NAME": model.name or (None if model.embedded else served_name(spec)),
        "ENGINE": model.engine.value,
        "DTYPE": model.precision.value,
        "MAX_CONTEXT": model.max_context,
        "IMAGE_MAX_PIXELS": model.max_pixels,
        "IMAGE_SIDE": model.image_side,
        "CPUS": spec.cpus_per_replica,
        "HOST": "0.0.0.0",  # noqa: S104 - a pod's own address
        "PORT": API_PORT,
        "NAMESPACE": names.queue(key),
        "API_KEYS_FILE": KEYS_FILE if spec.gateway.api_keys_secret else None,
    }
    return {f"VISIONCHAT_{name}": str(value) for name, value in values.items() if value is not None}


def served_name(spec: VisionChatSpec) -> str:
    """The model's name in the API."""
    return (spec.model.folder or spec.model.id).rstrip("/").rsplit("/", 1)[-1]


def model_path(spec: VisionChatSpec) -> str:
    """`tiny`, or the folder with the checkpoint inside the pods."""
    model = spec.model
    if model.embedded:
        return model.id
    folder = model.folder or f"{model.id.replace('/', '--')}--{model.revision or 'main'}".replace("..", "-")
    return f"{MODELS}/{folder.strip('/')}"


def redis(spec: VisionChatSpec, defaults: Defaults) -> list[Manifest]:
    """Where the queue is, its password, and who vouches for the server."""
    queue = spec.queue
    authority = [{"name": AUTHORITY, "value": AUTHORITY_FILE}] if queue.ca_secret else []
    return [*_redis_url(queue, defaults), *authority]


def _redis_url(queue: QueueSpec, defaults: Defaults) -> list[Manifest]:
    secret = queue.url_secret
    if queue.url is None and queue.sentinel is None:
        secret = secret or defaults.redis_secret
    if secret is not None:
        return [_from_secret(URL, secret.name, secret.key or "url")]
    if queue.sentinel is None:
        return [{"name": URL, "value": queue.url or defaults.redis_url}]
    sentinel, own = queue.sentinel, queue.sentinel.password
    password = [_from_secret(PASSWORD, own.name, own.key or "password")] if own else []
    scheme = "rediss+sentinel" if sentinel.tls else "redis+sentinel"
    url = f"{scheme}://{','.join(sentinel.addresses)}/{sentinel.master}/0"
    return [*password, {"name": URL, "value": url}]


def ray(key: Key, cpus: int | None) -> list[Manifest]:
    """Ray's environment; `cpus` is None on the head, where no model runs."""
    # The head has nothing to drain, and would wait in vain for its own controller: meanwhile the next head comes up,
    # and two fight over one cluster.
    drain = timedelta(0) if cpus is None else RAY_DRAIN
    values = {
        "RAY_AUTH_MODE": "token",
        "RAY_AUTH_TOKEN_PATH": TOKEN_FILE,
        "RAY_USAGE_STATS_ENABLED": "0",
        "RAY_worker_niceness": "0",  # 15 is Ray's default: anything in the pod would preempt the model
        "RAY_memory_monitor_refresh_ms": "0",  # it counts page cache, and the model is in it; the pod's limit rules
        "RAY_GRACEFUL_SHUTDOWN_DRAIN_TIMEOUT_S": str(int(drain.total_seconds())),
        "RAY_gcs_rpc_server_reconnect_timeout_s": "600",  # replicas outlive a head that is away
        "RAY_health_check_timeout_ms": "3000",
        "RAY_health_check_failure_threshold": "3",
        "RAY_external_storage_namespace": names.queue(key),
        "MALLOC_ARENA_MAX": "2",
        "HOME": "/tmp",  # noqa: S108 - the only place that can be written
        "RAY_HEAD_ADDRESS": f"{names.head(key)}:{GCS_PORT}",
    }
    if cpus is not None:
        values |= dict.fromkeys(("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"), str(cpus))
    own = [
        {"name": "POD_NAME", "valueFrom": {"fieldRef": {"fieldPath": "metadata.name"}}},
        {"name": "POD_IP", "valueFrom": {"fieldRef": {"fieldPath": "status.podIP"}}},
    ]
    return own + [{"name": name, "value": value} for name, value in values.items()]


def _from_secret(variable: str, name: str, key: str) -> Manifest:
    return {"name": variable, "valueFrom": {"secretKeyRef": {"name": name, "key": key}}}
