"""The pods: the Ray head's, a replica's, and the one that fetches the model. Pure; `children` calls it.

Every pod passes the `restricted` Pod Security profile. A pinned replica is one container in a Guaranteed pod with
whole CPUs and without init containers, which would leak exclusive CPUs.
"""

from __future__ import annotations

from typing import Any

from visionchat_operator import environment, names
from visionchat_operator.api import VisionChatSpec
from visionchat_operator.environment import AGENT_PORT, API_PORT, DASHBOARD_PORT, GCS_PORT, METRICS_PORT, Defaults
from visionchat_operator.status_api import Mode
from visionchat_operator.world import Key, Manifest

USER = 10001
SLOT, GATEWAY = "visionchat_replica", "visionchat_gateway"  # Ray's own resources that place replicas and gateway
SHARED_REQUEST = 250  # thousandths of a CPU that a shared replica reserves for each CPU it may use

NOT_TO_FETCH = ("ray-token", "shm", "api-keys")  # what the Job that fetches the model has no use for

HEAD_RESOURCES = {"requests": {"cpu": "500m", "memory": "2Gi"}, "limits": {"memory": "2Gi"}}
FETCH_RESOURCES = {"requests": {"cpu": "100m", "memory": "1Gi"}, "limits": {"memory": "4Gi"}}


def worker_resources(spec: VisionChatSpec, mode: Mode) -> Manifest:
    """Guaranteed with whole CPUs, or Burstable up to as many."""
    cpus, memory = str(spec.cpus_per_replica), spec.memory_per_replica
    limits = {"cpu": cpus, "memory": memory}
    if mode == Mode.PINNED:
        return {"requests": dict(limits), "limits": limits}
    return {"requests": {"cpu": _cpu(spec.cpus_per_replica * SHARED_REQUEST), "memory": memory}, "limits": limits}


def _cpu(thousandths: int) -> str:
    """As the API server writes it back: whole CPUs without a unit."""
    return str(thousandths // 1000) if thousandths % 1000 == 0 else f"{thousandths}m"


def worker_pod(key: Key, spec: VisionChatSpec, mode: Mode, defaults: Defaults) -> Manifest:
    """Pod spec of a replica."""
    container = _container(key, spec, defaults, "worker", cpus=spec.cpus_per_replica)
    container["args"] = ["worker"]
    # Written into the pod, not read from the ConfigMap: a container that restarts in the middle of a roll is the same.
    told = environment.settings(key, spec)
    container["env"] = [{"name": name, "value": value} for name, value in told.items()] + container["env"]
    container["resources"] = worker_resources(spec, mode)
    container["ports"] = [{"name": "metrics", "containerPort": METRICS_PORT, "protocol": "TCP"}]
    container |= _raylet_probes()
    pod = _pod(key, spec, container, environment.GRACE.total_seconds())
    template = spec.pod_template
    if template.node_selector:
        pod["nodeSelector"] = dict(template.node_selector)
    if template.affinity:
        pod["affinity"] = template.affinity
    pod["restartPolicy"] = "Always"
    return pod


def head_pod(key: Key, spec: VisionChatSpec, defaults: Defaults) -> Manifest:
    """Pod spec of the Ray head with the gateway; no model runs here."""
    container = _container(key, spec, defaults, "head", cpus=None)
    container["args"] = ["head"]
    container["envFrom"] = [{"configMapRef": {"name": names.settings(key)}}]
    container["resources"] = HEAD_RESOURCES
    ports = {"api": API_PORT, "dashboard": DASHBOARD_PORT, "gcs": GCS_PORT, "metrics": METRICS_PORT}
    container["ports"] = [{"name": n, "containerPort": p, "protocol": "TCP"} for n, p in ports.items()]
    container["readinessProbe"] = _get("/healthz", API_PORT, period=2, failures=3)
    container["livenessProbe"] = _get("/api/gcs_healthz", DASHBOARD_PORT, period=5, failures=12)
    container["startupProbe"] = _get("/api/gcs_healthz", DASHBOARD_PORT, period=2, failures=60)
    return _pod(key, spec, container, 30)


def model_pod(key: Key, spec: VisionChatSpec, defaults: Defaults) -> Manifest:
    """Pod spec of the Job that fetches the model onto the claim."""
    container = _base_container(spec, defaults, "fetch")
    command = ["python", "-m", "visionchat_serve.fetch", spec.model.id, environment.model_path(spec)]
    container["command"] = command + (["--revision", spec.model.revision] if spec.model.revision else [])
    told = [{"name": "HOME", "value": "/tmp"}, {"name": "VISIONCHAT_NAMESPACE", "value": names.queue(key)}]  # noqa: S108
    container["env"] = told + environment.redis(spec, defaults) + list(spec.pod_template.env)
    container["resources"] = FETCH_RESOURCES
    container["terminationMessagePolicy"] = "FallbackToLogsOnError"
    pod = _pod(key, spec, container, 30)
    pod["restartPolicy"] = "Never"
    pod["volumes"] = [v for v in pod["volumes"] if v["name"] not in NOT_TO_FETCH]
    mounts = [m for m in container["volumeMounts"] if m["name"] not in NOT_TO_FETCH]
    container["volumeMounts"] = [m | {"readOnly": False} if m["name"] == "models" else m for m in mounts]
    return pod


def _container(key: Key, spec: VisionChatSpec, defaults: Defaults, name: str, cpus: int | None) -> Manifest:
    container = _base_container(spec, defaults, name)
    container["command"] = ["python", "-m", "visionchat_serve.ray_node"]
    env = environment.ray(key, cpus) + environment.redis(spec, defaults)
    container["env"] = env + list(spec.pod_template.env)
    return container


def _base_container(spec: VisionChatSpec, defaults: Defaults, name: str) -> Manifest:
    container: Manifest = {
        "name": name,
        "image": spec.image or defaults.image,
        "securityContext": {
            "allowPrivilegeEscalation": False,
            "capabilities": {"drop": ["ALL"]},
            "readOnlyRootFilesystem": True,
            "runAsNonRoot": True,
        },
        "volumeMounts": [mount for _, mount in _volumes_of(spec, None)] + list(spec.pod_template.volume_mounts),
    }
    if spec.image_pull_policy:
        container["imagePullPolicy"] = spec.image_pull_policy
    return container


def _pod(key: Key, spec: VisionChatSpec, container: Manifest, grace_seconds: float) -> Manifest:
    template = spec.pod_template
    pod: Manifest = {
        "serviceAccountName": key.name,
        "automountServiceAccountToken": False,
        "enableServiceLinks": False,  # their variables would look like settings of ours
        "securityContext": {
            "runAsNonRoot": True,
            "runAsUser": USER,
            "runAsGroup": USER,
            "fsGroup": USER,
            "fsGroupChangePolicy": "OnRootMismatch",
            "seccompProfile": {"type": "RuntimeDefault"},
            **(template.security_context or {}),
        },
        "terminationGracePeriodSeconds": int(grace_seconds),
        "containers": [container],
        "volumes": [volume for volume, _ in _volumes_of(spec, key)] + list(template.volumes),
    }
    if template.tolerations:
        pod["tolerations"] = list(template.tolerations)
    if template.priority_class_name:
        pod["priorityClassName"] = template.priority_class_name
    if spec.image_pull_secrets:
        pod["imagePullSecrets"] = [{"name": secret.name} for secret in spec.image_pull_secrets]
    return pod


def _volumes_of(spec: VisionChatSpec, key: Key | None) -> list[tuple[Manifest, Manifest]]:
    """Volume and mount, pair by pair; without `key` only the mounts are right."""
    owner = key or Key("", "")
    token = {"secret": {"secretName": names.ray_token(owner), "defaultMode": 0o440}}
    pairs: list[tuple[str, Any, Manifest]] = [
        ("tmp", {"emptyDir": {}}, {"mountPath": "/tmp"}),  # noqa: S108
        ("shm", {"emptyDir": {"medium": "Memory", "sizeLimit": "256Mi"}}, {"mountPath": "/dev/shm"}),  # noqa: S108
        ("ray-token", token, {"mountPath": environment.TOKEN_FILE.rsplit("/", 1)[0], "readOnly": True}),
    ]
    if not spec.model.embedded:
        claim = spec.model.claim_name or names.model(owner)
        volume = {"persistentVolumeClaim": {"claimName": claim}}
        pairs.append(("models", volume, {"mountPath": environment.MODELS, "readOnly": True}))
    if (keys := spec.gateway.api_keys_secret) is not None:
        items = [{"key": keys.key or "keys", "path": environment.KEYS_FILE.rsplit("/", 1)[1]}]
        secret: Manifest = {"secret": {"secretName": keys.name, "items": items, "defaultMode": 0o440}}
        folder = environment.KEYS_FILE.rsplit("/", 1)[0]
        pairs.append(("api-keys", secret, {"mountPath": folder, "readOnly": True}))
    if (authority := spec.queue.ca_secret) is not None:
        folder, _, file = environment.AUTHORITY_FILE.rpartition("/")
        items = [{"key": authority.key or "ca.crt", "path": file}]
        source = {"secret": {"secretName": authority.name, "items": items, "defaultMode": 0o440}}
        pairs.append(("redis-ca", source, {"mountPath": folder, "readOnly": True}))
    return [({"name": n, **source}, {"name": n, **mount}) for n, source, mount in pairs]


def _raylet_probes() -> Manifest:
    path = "/api/local_raylet_healthz"
    return {
        "readinessProbe": _get(path, AGENT_PORT, period=2, failures=3),
        # After a drain Ray ends without its `ray start`: this restarts the container.
        "livenessProbe": _get(path, AGENT_PORT, period=5, failures=6),
        "startupProbe": _get(path, AGENT_PORT, period=2, failures=90),
    }


def _get(path: str, port: int, period: int, failures: int) -> Manifest:
    return {
        "httpGet": {"path": path, "port": port},
        "periodSeconds": period,
        "timeoutSeconds": 2,
        "failureThreshold": failures,
    }
