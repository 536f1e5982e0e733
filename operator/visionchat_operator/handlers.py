"""Watches, by kopf: every event goes into the `Store` and wakes its VisionChat. Nothing else happens here.

Only `on.event` handlers, so that kopf writes neither annotations nor finalizers onto anybody's objects. The kinds
that are watched, and by which label, are here.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import kopf

from visionchat_operator.api import KIND
from visionchat_operator.kube import plural, version_of
from visionchat_operator.names import MANAGED_BY
from visionchat_operator.store import Store, owner_of, version
from visionchat_operator.world import Key, Manifest

CHILD_KINDS = (
    "Pod",
    "Service",
    "ConfigMap",
    "ServiceAccount",
    "PersistentVolumeClaim",
    "Deployment",
    "Job",
    "PodDisruptionBudget",
    "NetworkPolicy",
    "Ingress",
)
SELECTOR = ",".join(f"{key}={value}" for key, value in MANAGED_BY.items())


def selector_of(kind: str) -> str | None:
    """We watch our own objects only; nodes and VisionChats are others'."""
    return None if kind in (KIND, "Node") else SELECTOR


class Watches:
    """What the watches have brought: into the store, and how far each has come."""

    def __init__(self, store: Store, wake: Callable[[Key], None], wake_all: Callable[[], None]) -> None:
        self._store, self._wake, self._wake_all = store, wake, wake_all
        self.newest: dict[str, int] = {}

    def event(self, kind: str, what: str | None, body: Manifest) -> None:
        self.newest[kind] = max(self.newest.get(kind, 0), version(body))
        news = self._store.drop(kind, body) if what == "DELETED" else self._store.put(kind, body)
        key = owner_of(kind, body)
        if kind == "Node":
            if news:
                self._wake_all()
        elif key is not None and (news or kind == KIND):
            self._wake(key)


def registry_for(watches: Watches, kinds: tuple[str, ...], login: Callable[..., Any]) -> kopf.OperatorRegistry:
    """kopf's registry with one handler for each kind."""
    registry = kopf.OperatorRegistry()
    kopf.on.login(registry=registry)(login)
    for kind in kinds:
        group, _, api_version = version_of(kind).rpartition("/")

        async def handle(event: Any, kind: str = kind, **_: Any) -> None:  # a plain function would run in a thread
            watches.event(kind, event["type"], dict(event["object"]))

        kopf.on.event(group, api_version, plural(kind), registry=registry, id=f"watch-{kind}")(handle)
    return registry


def settings_for(kinds: tuple[str, ...]) -> kopf.OperatorSettings:
    """kopf's settings: quick, silent, and no watch that hangs for ever."""
    settings = kopf.OperatorSettings()
    settings.posting.enabled = False  # our own events are enough
    settings.peering.standalone = True
    settings.scanning.disabled = True
    settings.watching.server_timeout = 300
    settings.watching.client_timeout = 330
    settings.watching.connect_timeout = 10
    for kind in kinds:
        if (selector := selector_of(kind)) is not None:
            group, _, api_version = version_of(kind).rpartition("/")
            settings.watching.label_selectors[group, api_version, plural(kind)] = selector
    return settings
