"""All talk with the API server: read, apply, create, delete, status, events. The only module that calls it.

Paths are built here rather than discovered: the kinds are few and known. Answers to writes go straight into the
`Store`. Must not know what a VisionChat needs.
"""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from kubernetes.aio import client, config
from kubernetes.aio.client.exceptions import ApiException

from visionchat_operator.api import API_VERSION, KIND, PLURAL
from visionchat_operator.children import API_VERSIONS
from visionchat_operator.metrics import OperatorMetrics
from visionchat_operator.names import MANAGER
from visionchat_operator.store import Store
from visionchat_operator.world import Decision, Key, Manifest, Ref

__all__ = ["ApiException", "Kube", "connected", "plural", "version_of"]

TIMEOUT_SECONDS = 20
APPLY, MERGE = "application/apply-patch+yaml", "application/merge-patch+json"
_PLURALS = {KIND: PLURAL, "NetworkPolicy": "networkpolicies", "Ingress": "ingresses", "HTTPRoute": "httproutes"}
CLUSTER_WIDE = {"Node", "CustomResourceDefinition"}
_OTHERS = {
    KIND: API_VERSION,
    "Node": "v1",
    "Event": "v1",
    "CustomResourceDefinition": "apiextensions.k8s.io/v1",
}


def plural(kind: str) -> str:
    return _PLURALS.get(kind, f"{kind.lower()}s")


def version_of(kind: str) -> str:
    """API version: group and version, or only the version in the core group."""
    return _OTHERS.get(kind) or API_VERSIONS[kind]


def path_of(kind: str, namespace: str | None, name: str | None = None, sub: str | None = None) -> str:
    version = version_of(kind)
    parts = ["api" if "/" not in version else "apis", version]
    if namespace and kind not in CLUSTER_WIDE:
        parts += ["namespaces", namespace]
    return "/" + "/".join([*parts, plural(kind), *filter(None, (name, sub))])


@asynccontextmanager
async def connected(kubeconfig: Path | None) -> AsyncIterator[client.ApiClient]:
    """A client by a kubeconfig file, or by the pod's service account."""
    configuration = client.Configuration()
    if kubeconfig is not None:
        await config.load_kube_config(str(kubeconfig), client_configuration=configuration, persist_config=False)
    else:
        config.load_incluster_config(client_configuration=configuration)
    async with client.ApiClient(configuration) as api:
        api.user_agent = MANAGER
        yield api


class Kube:
    """Calls raise `ApiException`; those that say what is already so (gone, there) are answers, not errors."""

    def __init__(self, api: client.ApiClient, store: Store, metrics: OperatorMetrics) -> None:
        self._api, self._store, self._metrics = api, store, metrics

    async def listing(self, kind: str, namespace: str | None, selector: str | None = None) -> list[Manifest]:
        query = [("labelSelector", selector)] if selector else []
        found = await self._call("GET", kind, path_of(kind, namespace), query)
        items: list[Manifest] = found.get("items", [])
        return items

    async def read(self, kind: str, namespace: str, name: str) -> Manifest | None:
        try:
            return await self._call("GET", kind, path_of(kind, namespace, name))
        except ApiException as error:
            if error.status == 404:
                return None
            raise

    async def serves(self, kind: str) -> bool:
        """The cluster knows the kind."""
        group = "/".join(path_of(kind, None).split("/")[:-1])
        try:
            found = await self._call("GET", "APIResourceList", group)
        except ApiException as error:
            if error.status == 404:
                return False
            raise
        return any(resource["name"] == plural(kind) for resource in found.get("resources", ()))

    async def apply(self, manifest: Manifest) -> Manifest:
        """Server-side apply: what the manifest names is ours, whoever had it before."""
        kind, metadata = manifest["kind"], manifest["metadata"]
        query = [("fieldManager", MANAGER), ("force", "true")]
        path = path_of(kind, metadata["namespace"], metadata["name"])
        return self._noted(kind, await self._call("PATCH", kind, path, query, manifest, APPLY))

    async def create(self, manifest: Manifest) -> None:
        """Create it unless it is there."""
        kind = manifest["kind"]
        path = path_of(kind, manifest["metadata"]["namespace"])
        try:
            self._noted(kind, await self._call("POST", kind, path, [("fieldManager", MANAGER)], manifest))
        except ApiException as error:
            if error.status != 409:
                raise

    async def delete(self, namespace: str, ref: Ref, uid: str | None) -> None:
        """Ask for its deletion unless it is gone, or is another one by now."""
        body: Manifest = {"propagationPolicy": "Background"}
        if uid is not None:
            body["preconditions"] = {"uid": uid}
        try:
            left = await self._call("DELETE", ref.kind, path_of(ref.kind, namespace, ref.name), body=body)
        except ApiException as error:
            if error.status not in (404, 409):
                raise
            return
        known = self._store.get(ref.kind, namespace, ref.name)
        if left.get("kind") == ref.kind and "deletionTimestamp" in left["metadata"]:
            self._noted(ref.kind, left)  # it ends in its own time
        elif known is not None:
            self._store.drop(ref.kind, known)

    async def write_status(self, key: Key, uid: str, status: Manifest) -> None:
        metadata = {"name": key.name, "namespace": key.namespace, "uid": uid}
        body = {"apiVersion": API_VERSION, "kind": KIND, "metadata": metadata, "status": status}
        query = [("fieldManager", MANAGER), ("force", "true")]
        path = path_of(KIND, key.namespace, key.name, "status")
        self._noted(KIND, await self._call("PATCH", KIND, path, query, body, APPLY))

    async def set_finalizers(self, key: Key, finalizers: list[str], resource_version: str) -> None:
        body = {"metadata": {"finalizers": finalizers, "resourceVersion": resource_version}}
        query = [("fieldManager", MANAGER)]
        self._noted(KIND, await self._call("PATCH", KIND, path_of(KIND, *key), query, body, MERGE))

    async def tell(self, key: Key, uid: str, decision: Decision) -> None:
        """An event on the VisionChat."""
        now = datetime.now(UTC).isoformat(timespec="seconds").replace("+00:00", "Z")
        about = {"apiVersion": API_VERSION, "kind": KIND, "name": key.name, "namespace": key.namespace, "uid": uid}
        body = {
            "apiVersion": "v1",
            "kind": "Event",
            "metadata": {"generateName": f"{key.name}.", "namespace": key.namespace},
            "involvedObject": about,
            "reason": decision.reason,
            "message": decision.message[:1024],
            "type": "Warning" if decision.warning else "Normal",
            "source": {"component": MANAGER},
            "reportingComponent": MANAGER,
            "firstTimestamp": now,
            "lastTimestamp": now,
            "count": 1,
        }
        await self._call("POST", "Event", path_of("Event", key.namespace), body=body)

    def _noted(self, kind: str, body: Manifest) -> Manifest:
        self._store.put(kind, body)
        return body

    async def _call(
        self,
        verb: str,
        kind: str,
        path: str,
        query: list[tuple[str, Any]] | None = None,
        body: Manifest | None = None,
        content_type: str = "application/json",
    ) -> Manifest:
        headers = {"Accept": "application/json", "Content-Type": content_type}
        request = await self._api.param_serialize(
            verb, path, query_params=query or [], header_params=headers, body=body, auth_settings=["BearerToken"]
        )
        response = await self._api.call_api(*request, _request_timeout=TIMEOUT_SECONDS)
        data = await response.read()
        self._metrics.api_calls.labels(verb, kind, response.status).inc()
        if not 200 <= response.status <= 299:
            error = ApiException(status=response.status, reason=response.reason)
            error.body = data.decode(errors="replace")
            raise error
        answer: Manifest = json.loads(data)
        return answer
