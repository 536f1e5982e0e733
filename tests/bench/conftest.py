"""The measurement of many VisionChats uses the parts of the apiserver tier."""

from support.cluster_fixtures import api, chats, namespace, node, operators_rights, plane, redis, start_operator

__all__ = ["api", "chats", "namespace", "node", "operators_rights", "plane", "redis", "start_operator"]
