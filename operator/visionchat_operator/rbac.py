"""What the operator may do on the API server: the one source of `manifests/rbac.yaml` and of the chart's roles.

Pure data. Whoever gives the operator a new call to make adds the right here, and nowhere else.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from visionchat_operator.api import GROUP, PLURAL
from visionchat_operator.names import MANAGER

NAMESPACE = "visionchat-system"
_GROUP = "rbac.authorization.k8s.io"

Rules = list[dict[str, Any]]


def _rule(group: str, resources: str, verbs: str, **more: Any) -> dict[str, Any]:
    return {"apiGroups": [group], "resources": resources.split(), **more, "verbs": verbs.split()}


def namespaced() -> Rules:
    """In each namespace that it looks after: a Role there, or all of them by a ClusterRole."""
    return [
        _rule(GROUP, PLURAL, "get list watch patch"),
        _rule(GROUP, f"{PLURAL}/status", "patch"),
        _rule("", "pods persistentvolumeclaims", "list watch create delete"),
        _rule("", "services configmaps serviceaccounts", "list watch create patch delete"),
        _rule("", "secrets", "get create"),
        _rule("", "events", "create"),
        _rule("apps", "deployments", "list watch create patch delete"),
        _rule("batch", "jobs", "list watch create delete"),
        _rule("policy", "poddisruptionbudgets", "list watch create patch delete"),
        _rule("networking.k8s.io", "ingresses networkpolicies", "list watch create patch delete"),
        _rule("gateway.networking.k8s.io", "httproutes", "list watch create patch delete"),
    ]


def cluster() -> Rules:
    """Only with a ClusterRole: nodes tell whether CPUs can be pinned. Held to a namespace it goes without."""
    return [_rule("", "nodes", "list watch")]


def lease() -> Rules:
    """In its own namespace: the leader's Lease. A right to create cannot be held to a name."""
    return [
        _rule("coordination.k8s.io", "leases", "create"),
        _rule("coordination.k8s.io", "leases", "get update", resourceNames=[MANAGER]),
    ]


def documents() -> Iterator[dict[str, Any]]:
    """ServiceAccount, ClusterRole, Role and their bindings, as for an operator of all namespaces."""
    yield {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": MANAGER, "namespace": NAMESPACE}}
    yield _role("ClusterRole", {"name": MANAGER}, namespaced() + cluster())
    yield _binding("ClusterRole", {"name": MANAGER})
    own = {"name": f"{MANAGER}-lease", "namespace": NAMESPACE}
    yield _role("Role", own, lease())
    yield _binding("Role", own)


def _role(kind: str, metadata: dict[str, str], rules: Rules) -> dict[str, Any]:
    return {"apiVersion": f"{_GROUP}/v1", "kind": kind, "metadata": dict(metadata), "rules": rules}


def _binding(kind: str, metadata: dict[str, str]) -> dict[str, Any]:
    return {
        "apiVersion": f"{_GROUP}/v1",
        "kind": f"{kind}Binding",
        "metadata": dict(metadata),
        "roleRef": {"apiGroup": _GROUP, "kind": kind, "name": metadata["name"]},
        "subjects": [{"kind": "ServiceAccount", "name": MANAGER, "namespace": NAMESPACE}],
    }
