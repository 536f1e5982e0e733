"""Which requests have the same answer, and what a client says about the cache. Pure.

The same pictures and messages, sampled the same way without chance, by the same models, for the same owner: whether
somebody else has asked the same is nobody's business. Used by `gateway`.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from visionchat_serve.messages import ChatJob, ReplicaReport, encode

HEADER = "X-VisionChat-Cache"


@dataclass(frozen=True, slots=True)
class CacheUse:
    """What a client allows by `Cache-Control`: to be answered from the cache, to have the answer put there."""

    reads: bool = True
    stores: bool = True


def read_cache_control(header: str) -> CacheUse:
    """`no-cache` and `max-age=0` ask for a fresh answer, `no-store` also for none to be kept."""
    said = {part.strip().lower() for part in header.split(",")}
    stores = "no-store" not in said
    return CacheUse(reads=stores and not said & {"no-cache", "max-age=0"}, stores=stores)


def cache_key(job: ChatJob, images: Sequence[bytes], models: Iterable[str]) -> str:
    """The same for all requests that have the same answer."""
    sampling = replace(job.sampling, seed=None) if job.sampling.temperature == 0 else job.sampling
    own: Any = {"id": "", "created_at": 0, "deadline_at": 0, "priority": "interactive", "metadata": {}, "ticket": ""}
    asked = replace(job, **own, cache_key="", sampling=sampling)
    parts = [encode(asked), *(name.encode() for name in sorted(models)), *images]
    digests = (hashlib.sha256(part).digest() for part in parts)  # of one length each, so that no two lists look alike
    return hashlib.sha256(b"".join(digests)).hexdigest()


def model_names(reports: Iterable[ReplicaReport]) -> frozenset[str]:
    """What may answer just now. While several versions are there, an answer belongs to all of them together."""
    return frozenset(f"{r.model} {r.revision} {r.engine} {r.dtype}" for r in reports)
