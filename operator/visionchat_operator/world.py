"""What the operator saw at one moment: the input of `plan`. Plain values, no I/O, no clock.

`observe` fills them from the API server, Redis and Ray; tests and the simulation fill them themselves.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any, NamedTuple

from visionchat_operator.api import VisionChatSpec
from visionchat_operator.status_api import Mode, VisionChatStatus

Manifest = dict[str, Any]


class Key(NamedTuple):
    """A VisionChat's place."""

    namespace: str
    name: str


class Ref(NamedTuple):
    """A child's place, in its VisionChat's namespace."""

    kind: str
    name: str


@dataclass(frozen=True, slots=True)
class Load:
    """The queue. `work` is what one replica alone would need for it, None as long as no answer was measured."""

    depth: int
    oldest: timedelta | None = None
    work: timedelta | None = None


@dataclass(frozen=True, slots=True)
class Worker:
    """A replica's pod. `serving`: a warm replica on it takes jobs. `jobs` it has in hand, None: not known."""

    name: str
    uid: str
    mode: Mode
    revision: str
    created: datetime
    node: str | None = None
    ip: str | None = None
    ready: bool = False  # its Ray node has joined
    serving: bool = False
    deleting: bool = False
    ends_by: datetime | None = None  # when it is being deleted: then its grace is over
    failed: bool = False  # it will never run: the kubelet refused it, or it ended
    failure: str | None = None  # the kubelet's reason
    unschedulable_since: datetime | None = None
    jobs: int | None = None
    cpuset: tuple[int, ...] | None = None
    threads: int | None = None
    containers: int = 1  # more than one: somebody injected a sidecar


@dataclass(frozen=True, slots=True)
class Node:
    """A node that replicas may run on. `pinnable`: whole CPUs that this VisionChat may have exclusively, its own
    pods' included. `cpus`: all that the node has."""

    name: str
    pinnable: int
    cpus: int


@dataclass(frozen=True, slots=True)
class RayState:
    """Ray Serve as the head tells it. `running`: addresses of the pods with a running replica."""

    deployed: bool  # the application as we want it is there
    target: int | None = None
    running: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True)
class Observed:
    """One VisionChat and all that belongs to it. None: it could not be seen, and nothing may be concluded."""

    key: Key
    uid: str
    generation: int
    spec: VisionChatSpec
    status: VisionChatStatus
    workers: tuple[Worker, ...] = ()
    children: Mapping[Ref, Manifest] = field(default_factory=dict)
    fetched: str | None = None  # how much of the model that Job has fetched, for people
    fetchers: tuple[Manifest, ...] = ()  # pods of the Job that brings the model's files
    load: Load | None = None
    load_fault: str | None = None  # why `load` is None
    ray: RayState | None = None
    nodes: tuple[Node, ...] | None = None
    deleting: bool = False
    deleted_at: datetime | None = None
    finalizers: tuple[str, ...] = ()
    route_api: bool = True  # the cluster knows HTTPRoute


@dataclass(frozen=True, slots=True)
class Decision:
    """Something that was decided and that people want to know: becomes an event and a line of log."""

    reason: str
    message: str
    warning: bool = False
