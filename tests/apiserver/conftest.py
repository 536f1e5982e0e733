"""The apiserver tier: a real etcd and kube-apiserver, a real Redis, the operator as a process; the node is played."""

from support.cluster_fixtures import (
    api,
    chats,
    jobs,
    namespace,
    node,
    operator,
    operators_rights,
    plane,
    quiet,
    redis,
    start_operator,
)

__all__ = [
    "api",
    "chats",
    "jobs",
    "namespace",
    "node",
    "operator",
    "operators_rights",
    "plane",
    "quiet",
    "redis",
    "start_operator",
]
