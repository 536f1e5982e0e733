"""Names and labels of everything that belongs to a VisionChat: made here and nowhere else."""

from __future__ import annotations

import hashlib
import json
from typing import Any

from visionchat_operator.api import GROUP
from visionchat_operator.world import Key

MANAGER = "visionchat-operator"  # field manager, and who manages our objects

OWNER_LABEL = "app.kubernetes.io/instance"
MANAGED_BY = {"app.kubernetes.io/managed-by": MANAGER}
COMPONENT = "app.kubernetes.io/component"
MODE_LABEL = f"{GROUP}/mode"
REVISION_LABEL = f"{GROUP}/revision"
APPLIED = f"{GROUP}/applied"  # annotation: digest of what was applied last
FINALIZER = f"{GROUP}/queue"

HEAD, WORKER, MODEL = "head", "worker", "model"


def labels(key: Key, component: str) -> dict[str, str]:
    return {"app.kubernetes.io/name": "visionchat", OWNER_LABEL: key.name, COMPONENT: component, **MANAGED_BY}


def selector(key: Key, component: str) -> dict[str, str]:
    """Labels that select a component's pods; never changes."""
    return {"app.kubernetes.io/name": "visionchat", OWNER_LABEL: key.name, COMPONENT: component}


def selector_text(key: Key, component: str) -> str:
    return ",".join(f"{k}={v}" for k, v in selector(key, component).items())


def head(key: Key) -> str:
    """Deployment and headless Service of the Ray head."""
    return f"{key.name}-head"


def gateway(key: Key) -> str:
    """Service, Ingress and HTTPRoute of the API."""
    return key.name


def workers(key: Key) -> str:
    """PodDisruptionBudget of the replicas."""
    return f"{key.name}-worker"


def worker(key: Key, index: int) -> str:
    """Pod of one replica."""
    return f"{key.name}-worker-{index}"


def worker_index(key: Key, pod: str) -> int | None:
    """The inverse of `worker`."""
    number = pod.removeprefix(f"{key.name}-worker-")
    return int(number) if number.isdecimal() else None


def model(key: Key) -> str:
    """Claim and Job of the model's files."""
    return f"{key.name}-model"


def ray_token(key: Key) -> str:
    """Secret with Ray's token."""
    return f"{key.name}-ray"


def settings(key: Key) -> str:
    """ConfigMap with the data plane's settings."""
    return f"{key.name}-settings"


def queue(key: Key) -> str:
    """Namespace of the queue's keys in Redis."""
    return f"{key.namespace}.{key.name}"


def digest(value: Any) -> str:
    """Ten hexadecimal digits that stand for any JSON value."""
    text = json.dumps(value, sort_keys=True, default=str)
    return hashlib.sha256(text.encode()).hexdigest()[:10]
