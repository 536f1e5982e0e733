"""Everything that a VisionChat consists of, as manifests. Pure: a spec in, plain dicts out; `plan` calls it.

Each manifest holds only what the operator wants to own; the API server's defaults and other people's fields are not
ours. Values are written the way the API server writes them back, so that drift can be told by comparing.
"""

from __future__ import annotations

from collections.abc import Iterable

from visionchat_operator import environment, names, pods
from visionchat_operator.api import API_VERSION, KIND, GatewayKind, VisionChatSpec
from visionchat_operator.environment import API_PORT, DASHBOARD_PORT, GCS_PORT, METRICS_PORT, Defaults
from visionchat_operator.names import HEAD, MODEL, WORKER
from visionchat_operator.status_api import Mode
from visionchat_operator.world import Key, Manifest

API_VERSIONS = {
    "Pod": "v1",
    "Service": "v1",
    "ConfigMap": "v1",
    "Secret": "v1",
    "ServiceAccount": "v1",
    "PersistentVolumeClaim": "v1",
    "Deployment": "apps/v1",
    "Job": "batch/v1",
    "PodDisruptionBudget": "policy/v1",
    "NetworkPolicy": "networking.k8s.io/v1",
    "Ingress": "networking.k8s.io/v1",
    "HTTPRoute": "gateway.networking.k8s.io/v1",
}


def render(key: Key, uid: str, spec: VisionChatSpec, defaults: Defaults, operator_namespace: str) -> list[Manifest]:
    """All children but the replicas' pods, the model's Job and claim, and Ray's token."""
    owner = Owner(key, uid)
    return [
        owner.make("ServiceAccount", key.name, HEAD, automountServiceAccountToken=False),
        owner.make("ConfigMap", names.settings(key), HEAD, data=environment.settings(key, spec)),
        head(owner, spec, defaults),
        head_service(owner),
        gateway_service(owner),
        disruption_budget(owner, spec),
        *network_policies(owner, operator_namespace),
        *outside(owner, spec),
    ]


class Owner:
    """Makes objects that belong to one VisionChat and go with it."""

    def __init__(self, key: Key, uid: str) -> None:
        self.key = key
        self._reference = {
            "apiVersion": API_VERSION,
            "kind": KIND,
            "name": key.name,
            "uid": uid,
            "controller": True,
            "blockOwnerDeletion": False,
        }

    def make(self, kind: str, name: str, component: str, **fields: object) -> Manifest:
        metadata = {
            "name": name,
            "namespace": self.key.namespace,
            "labels": names.labels(self.key, component),
            "ownerReferences": [self._reference],
        }
        return {"apiVersion": API_VERSIONS[kind], "kind": kind, "metadata": metadata, **fields}


def revision(key: Key, spec: VisionChatSpec, defaults: Defaults) -> str:
    """Stands for all that a replica is told; another one means that replicas must be replaced."""
    told = pods.worker_pod(key, spec, Mode.SHARED, defaults), spec.pod_template.labels, spec.pod_template.annotations
    return names.digest(told)


def worker(owner: Owner, spec: VisionChatSpec, index: int, mode: Mode, defaults: Defaults) -> Manifest:
    """Pod of one replica. Nothing of it is changed later: a new revision is a new pod."""
    key = owner.key
    pod = owner.make("Pod", names.worker(key, index), WORKER, spec=pods.worker_pod(key, spec, mode, defaults))
    pod["spec"]["hostname"] = names.worker(key, index)
    mine = {names.MODE_LABEL: mode.value, names.REVISION_LABEL: revision(key, spec, defaults)}
    pod["metadata"]["labels"] = {**spec.pod_template.labels, **pod["metadata"]["labels"], **mine}
    if spec.pod_template.annotations:
        pod["metadata"]["annotations"] = dict(spec.pod_template.annotations)
    return pod


def head(owner: Owner, spec: VisionChatSpec, defaults: Defaults) -> Manifest:
    """Deployment of the Ray head. It keeps its cluster's state in Redis and may be re-created at any time."""
    key = owner.key
    told = environment.settings(key, spec)
    template = {
        "metadata": {
            "labels": {**spec.pod_template.labels, **names.labels(key, HEAD)},
            "annotations": {**spec.pod_template.annotations, names.REVISION_LABEL: names.digest(told)},
        },
        "spec": pods.head_pod(key, spec, defaults),
    }
    body = {
        "replicas": 0 if spec.suspend else 1,
        "strategy": {"type": "Recreate"},  # two heads would fight over one cluster
        "selector": {"matchLabels": names.selector(key, HEAD)},
        "template": template,
    }
    return owner.make("Deployment", names.head(key), HEAD, spec=body)


def head_service(owner: Owner) -> Manifest:
    """Where workers find the head, and the operator Ray Serve's REST API; not ready is found as well."""
    ports = {"gcs": GCS_PORT, "dashboard": DASHBOARD_PORT, "metrics": METRICS_PORT}
    body = {
        "clusterIP": "None",
        "publishNotReadyAddresses": True,
        "selector": names.selector(owner.key, HEAD),
        "ports": [_port(name, port) for name, port in ports.items()],
    }
    return owner.make("Service", names.head(owner.key), HEAD, spec=body)


def gateway_service(owner: Owner) -> Manifest:
    """The API inside the cluster."""
    body = {"selector": names.selector(owner.key, HEAD), "ports": [_port("http", 80, API_PORT)]}
    return owner.make("Service", names.gateway(owner.key), HEAD, spec=body)


def _port(name: str, port: int, target: int | None = None) -> Manifest:
    return {"name": name, "port": port, "targetPort": target or port, "protocol": "TCP"}


def disruption_budget(owner: Owner, spec: VisionChatSpec) -> Manifest:
    """Evictions take one replica at a time; the operator re-creates it elsewhere."""
    body = {"maxUnavailable": 1, "selector": {"matchLabels": names.selector(owner.key, WORKER)}}
    return owner.make("PodDisruptionBudget", names.workers(owner.key), WORKER, spec=body)


def network_policies(owner: Owner, operator_namespace: str) -> Iterable[Manifest]:
    """Ray's ports are for this VisionChat's own pods, its REST API for the operator; the API is for all."""
    key = owner.key
    everyone = {"app.kubernetes.io/name": "visionchat", names.OWNER_LABEL: key.name}
    operator = {
        "namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": operator_namespace}},
        "podSelector": {"matchLabels": {"app.kubernetes.io/name": names.MANAGER}},
    }
    scrape = [{"port": METRICS_PORT, "protocol": "TCP"}]
    inside = {"from": [{"podSelector": {"matchLabels": everyone}}]}
    ray = {
        "podSelector": {"matchLabels": everyone},
        "policyTypes": ["Ingress"],
        "ingress": [inside, {"ports": scrape}],
    }
    gateway = {
        "podSelector": {"matchLabels": names.selector(key, HEAD)},
        "policyTypes": ["Ingress"],
        "ingress": [
            {"ports": [{"port": API_PORT, "protocol": "TCP"}]},
            {"from": [operator], "ports": [{"port": DASHBOARD_PORT, "protocol": "TCP"}]},
        ],
    }
    yield owner.make("NetworkPolicy", f"{key.name}-ray", HEAD, spec=ray)
    yield owner.make("NetworkPolicy", names.gateway(key), HEAD, spec=gateway)


def outside(owner: Owner, spec: VisionChatSpec) -> Iterable[Manifest]:
    """Ingress or HTTPRoute, if any."""
    if spec.gateway.kind == GatewayKind.INGRESS:
        yield _ingress(owner, spec)
    if spec.gateway.kind == GatewayKind.HTTP_ROUTE:
        yield _route(owner, spec)


def _ingress(owner: Owner, spec: VisionChatSpec) -> Manifest:
    gateway = spec.gateway
    backend = {"service": {"name": names.gateway(owner.key), "port": {"name": "http"}}}
    rule: Manifest = {"http": {"paths": [{"path": "/", "pathType": "Prefix", "backend": backend}]}}
    if gateway.host:
        rule["host"] = gateway.host
    body: Manifest = {"rules": [rule]}
    if gateway.class_name:
        body["ingressClassName"] = gateway.class_name
    if gateway.tls_secret_name:
        body["tls"] = [{"hosts": [gateway.host], "secretName": gateway.tls_secret_name}]
    return _annotated(owner.make("Ingress", names.gateway(owner.key), HEAD, spec=body), spec)


def _route(owner: Owner, spec: VisionChatSpec) -> Manifest:
    gateway = spec.gateway
    parent = {"name": gateway.gateway_name} | (
        {"namespace": gateway.gateway_namespace} if gateway.gateway_namespace else {}
    )
    rule = {"backendRefs": [{"name": names.gateway(owner.key), "port": 80}]}
    body: Manifest = {"parentRefs": [parent], "rules": [rule]}
    if gateway.host:
        body["hostnames"] = [gateway.host]
    return _annotated(owner.make("HTTPRoute", names.gateway(owner.key), HEAD, spec=body), spec)


def _annotated(manifest: Manifest, spec: VisionChatSpec) -> Manifest:
    if spec.gateway.annotations:
        manifest["metadata"]["annotations"] = dict(spec.gateway.annotations)
    return manifest


def ray_token(owner: Owner, token: str) -> Manifest:
    """Secret with Ray's token: who has it may run code in the cluster. Made once."""
    return owner.make("Secret", names.ray_token(owner.key), HEAD, type="Opaque", stringData={"token": token})


def model_claim(owner: Owner, spec: VisionChatSpec) -> Manifest:
    """Claim for the model's files, when the user brings none."""
    body: Manifest = {
        "accessModes": ["ReadWriteOnce"],
        "resources": {"requests": {"storage": spec.model.claim_size}},
    }
    if spec.model.storage_class_name:
        body["storageClassName"] = spec.model.storage_class_name
    return owner.make("PersistentVolumeClaim", names.model(owner.key), MODEL, spec=body)


def model_job(owner: Owner, spec: VisionChatSpec, defaults: Defaults) -> Manifest:
    """Job that fetches the model onto the claim, named after what it fetches. A Job cannot be changed."""
    pod = pods.model_pod(owner.key, spec, defaults)
    body = {
        "backoffLimit": 6,
        "template": {"metadata": {"labels": names.labels(owner.key, MODEL)}, "spec": pod},
    }
    return owner.make("Job", model_job_name(owner.key, spec), MODEL, spec=body)


def model_job_name(key: Key, spec: VisionChatSpec) -> str:
    what = [spec.model.id, spec.model.revision, spec.model.claim_name]
    return f"{names.model(key)}-{names.digest(what)}"
