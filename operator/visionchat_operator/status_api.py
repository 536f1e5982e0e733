"""The status of a VisionChat: what was observed, and the little memory that decisions need.

One source of the status' schema in the CRD. The operator keeps no memory of its own: what a later decision needs to
know of an earlier one (since when, how often) is here, so that it survives the operator.
"""

from __future__ import annotations

from datetime import datetime, timedelta
from enum import StrEnum
from typing import Literal

from pydantic import ConfigDict, Field

from visionchat_operator.api import Model


class Mode(StrEnum):
    """How a replica gets its CPUs."""

    SHARED = "Shared"
    PINNED = "Pinned"


class _Status(Model):
    model_config = ConfigDict(extra="ignore")  # a newer operator may have written more


class Condition(_Status):
    """One condition, as Kubernetes has them."""

    type: str = Field(description="Ready, Progressing, Degraded, LoadKnown or CPUPinned.")
    status: Literal["True", "False", "Unknown"] = Field(description="True, False or Unknown.")
    reason: str = Field(description="Why, in one stable word.")
    message: str = Field(description="Why, for people.")
    last_transition_time: datetime = Field(description="Since when the status is so.")
    observed_generation: int = Field(description="Generation of the spec that this is about.")


class ReplicaCounts(_Status):
    """Replicas by what they are."""

    desired: int = Field(0, description="How many there should be.")
    ready: int = Field(0, description="How many are warm and take jobs.")
    pinned: int = Field(0, description="How many report CPUs of their own.")
    shared: int = Field(0, description="How many run on shared CPUs.")
    current: int = Field(0, description="How many pods there are.")


class QueueStatus(_Status):
    """The queue at the last look."""

    depth: int = Field(description="Jobs that are not answered yet.")
    oldest_seconds: int | None = Field(None, description="Age of the oldest one.")
    work_seconds: int | None = Field(None, description="About how long the replicas will work on them.")


class ReplicaStatus(_Status):
    """One replica, as it reports itself."""

    pod: str = Field(description="Its pod.")
    node: str | None = Field(None, description="Its node.")
    mode: Mode = Field(description="How its pod asked for CPUs.")
    cpuset: str | None = Field(None, description="The CPUs it may really run on, from its own report.")
    threads: int | None = Field(None, description="Threads of its engine.")


class ScalingMemory(_Status):
    """What the next scaling decision needs to know."""

    changed_at: datetime | None = Field(None, description="When the number of replicas was last changed.")
    more_since: datetime | None = Field(None, description="Since when the queue asks for more replicas.")
    fewer_since: datetime | None = Field(None, description="Since when the queue allows fewer replicas.")
    fewer_peak: int = Field(0, description="Most replicas that it asked for since then.")


class PinningMemory(_Status):
    """What the next pinning decision needs to know."""

    mode: Mode = Field(Mode.SHARED, description="The mode that was decided.")
    since: datetime | None = Field(None, description="Since when.")
    crossed_since: datetime | None = Field(None, description="Since when the queue is over (or under) the threshold.")
    refusals: int = Field(0, description="How often in a row nodes refused to pin.")
    refused_at: datetime | None = Field(None, description="When they last did.")
    refused_reason: str | None = Field(None, description="Why, in the kubelet's word.")


class VisionChatStatus(_Status):
    """What was observed."""

    observed_generation: int = Field(0, description="Generation of the spec that this is about.")
    conditions: list[Condition] = Field(default_factory=list, description="Ready, Progressing, Degraded, …")
    replicas: ReplicaCounts = Field(default_factory=ReplicaCounts, description="Replicas by what they are.")
    queue: QueueStatus | None = Field(None, description="The queue at the last look.")
    mode: Mode = Field(Mode.SHARED, description="How new replicas get their CPUs.")
    mode_since: datetime | None = Field(None, description="Since when.")
    replica_list: list[ReplicaStatus] = Field(default_factory=list, description="The replicas, one by one.")
    model: str | None = Field(None, description="State of the model's files: Embedded, Fetching, Present or Failed.")
    url: str | None = Field(None, description="Where the API answers.")
    selector: str | None = Field(None, description="Label selector of the replicas' pods, for the scale subresource.")
    scaling: ScalingMemory = Field(default_factory=ScalingMemory, description="Memory of the scaling decisions.")
    pinning: PinningMemory = Field(default_factory=PinningMemory, description="Memory of the pinning decisions.")


def seconds(duration: timedelta | None) -> int | None:
    """Whole seconds, as they are written in a status."""
    return None if duration is None else round(duration.total_seconds())
