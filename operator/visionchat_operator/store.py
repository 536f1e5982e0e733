"""The newest known state of every object that the operator watches. Plain memory, no I/O.

Fed by the watches and by the answers to the operator's own writes, whichever is newer: so a plan never looks at a
world in which the last plan has not happened yet. `handlers` and `kube` write, `observe` reads.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping

from visionchat_operator.api import KIND
from visionchat_operator.names import OWNER_LABEL
from visionchat_operator.world import Key, Manifest, Ref

_Place = tuple[str, str, str]  # kind, namespace, name


class Store:
    """Objects by kind and place; children by their VisionChat."""

    def __init__(self) -> None:
        self._objects: dict[_Place, Manifest] = {}
        self._children: dict[Key, dict[Ref, Manifest]] = defaultdict(dict)
        self._gone: dict[_Place, int] = {}  # what was deleted may still arrive late
        self._changes: dict[Key, int] = defaultdict(int)

    def put(self, kind: str, body: Manifest) -> bool:
        """Note an object unless a newer state of it is known; whether it was news."""
        place = _place(kind, body)
        known = self._objects.get(place)
        if known is not None and version(known) >= version(body) and _uid(known) == _uid(body):
            return False
        if version(body) <= self._gone.get(place, -1):
            return False
        body = {**body, "kind": kind, "metadata": {k: v for k, v in body["metadata"].items() if k != "managedFields"}}
        self._objects[place] = body
        if (key := owner_of(kind, body)) is not None:
            self._changes[key] += 1
            if kind != KIND:
                self._children[key][Ref(kind, place[2])] = body
        return True

    def drop(self, kind: str, body: Manifest) -> bool:
        """Note that an object is gone, unless a newer one has taken its place."""
        place = _place(kind, body)
        known = self._objects.get(place)
        self._gone[place] = max(version(body), self._gone.get(place, -1))
        if known is None or (version(known) > version(body) and _uid(known) != _uid(body)):
            return False
        del self._objects[place]
        if (key := owner_of(kind, known)) is not None:
            self._changes[key] += 1
            self._children[key].pop(Ref(kind, place[2]), None)
            if kind == KIND:
                self._forget_if_empty(key)
        return True

    def replace(self, kind: str, bodies: Iterable[Manifest], namespace: str | None) -> tuple[list[Key], bool]:
        """Take a full listing: whose objects differ from what was known, and whether the watch had missed any."""
        listed = {_place(kind, body): body for body in bodies}
        missed: list[Key] = []
        for body in listed.values():
            if self.put(kind, body):
                missed += _keys(owner_of(kind, body))
        for place in [p for p in self._objects if p[0] == kind and p not in listed and namespace in (None, p[1])]:
            known = self._objects[place]
            self.drop(kind, known)
            missed += _keys(owner_of(kind, known))
        self._gone = {place: v for place, v in self._gone.items() if place[0] != kind}
        return missed, bool(missed)

    def get(self, kind: str, namespace: str, name: str) -> Manifest | None:
        return self._objects.get((kind, namespace, name))

    def visionchat(self, key: Key) -> Manifest | None:
        return self.get(KIND, *key)

    def children(self, key: Key) -> Mapping[Ref, Manifest]:
        return self._children.get(key, {})

    def of_kind(self, kind: str) -> list[Manifest]:
        return [body for place, body in self._objects.items() if place[0] == kind]

    def visionchats(self) -> list[Key]:
        return [Key(namespace, name) for kind, namespace, name in self._objects if kind == KIND]

    def changes(self, key: Key) -> int:
        """Grows with every news about the VisionChat or its children."""
        return self._changes[key]

    def _forget_if_empty(self, key: Key) -> None:
        if not self._children.get(key):
            self._children.pop(key, None)
            self._changes.pop(key, None)


def owner_of(kind: str, body: Manifest) -> Key | None:
    """The VisionChat that the object is or belongs to."""
    metadata = body["metadata"]
    if kind == KIND:
        return Key(metadata["namespace"], metadata["name"])
    name = metadata.get("labels", {}).get(OWNER_LABEL)
    return Key(metadata["namespace"], name) if name and "namespace" in metadata else None


def version(body: Manifest) -> int:
    """Resource versions grow; Kubernetes promises since 1.35 that they may be compared as numbers."""
    return int(body["metadata"].get("resourceVersion", 0))


def _uid(body: Manifest) -> str | None:
    uid: str | None = body["metadata"].get("uid")
    return uid


def _place(kind: str, body: Manifest) -> _Place:
    return kind, body["metadata"].get("namespace", ""), body["metadata"]["name"]


def _keys(key: Key | None) -> list[Key]:
    return [] if key is None else [key]
