"""What is still known of prompts that were read before: the last one, where it was read into the static cache that
requests take turns in, and copies of parts of others, made when another prompt took their place.

A part is known only together with all before it, so a look-up goes from the front and ends at the first that is
missing. Used by `torch_engine`.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import takewhile
from typing import Any

import torch

from visionchat_serve.engines.decoder import KVCache
from visionchat_serve.engines.least_recently_used import LeastRecentlyUsed
from visionchat_serve.engines.prompt_parts import Part


class ReadPrompts:
    """`cache` is where prompts are read into; copies are left in `kept`. If that may hold nothing, nothing is known."""

    def __init__(self, cache: KVCache, kept: LeastRecentlyUsed[Any]) -> None:
        self._cache = cache
        self._kept = kept
        self._held: list[Part] = []  # stand at the beginning of the cache
        self._logits: torch.Tensor | None = None  # after the last of them

    def restore(self, parts: Sequence[Part]) -> int:
        """How many of the parts, from the first on, stand in the cache now. If all of them, `logits` are known."""
        if not self._kept.max_bytes:
            return 0
        in_place = _same(self._held, parts)
        if in_place == len(parts) == len(self._held):
            return in_place
        self._put_aside(self._held[in_place:])
        back = sum(1 for _ in takewhile(self._put_back, parts[in_place:]))
        known = min(in_place + back, len(parts) - 1)  # the last is read again for its logits
        self._held = list(parts[:known])
        return known

    def end(self, parts: Sequence[Part], logits: torch.Tensor) -> None:
        """All parts stand in the cache now, and the model says `logits` (vocabulary,) after them."""
        self._held, self._logits = list(parts), logits

    @property
    def logits(self) -> torch.Tensor:
        """(vocabulary,) after the prompt that stands in the cache."""
        assert self._logits is not None
        return self._logits

    def forget(self) -> None:
        """Also what stands in the cache; the copies are their owner's to clear."""
        self._held = []

    def _put_aside(self, parts: Sequence[Part]) -> None:
        """The first part last, so that it is given up last: without it the others are worth nothing."""
        for part in reversed(parts):
            if part.is_worth_keeping and self._kept.get(part.key) is None:
                keys, values = self._cache.copy(part.start, part.end)
                self._kept.put(part.key, (keys, values), keys.nbytes + values.nbytes)

    def _put_back(self, part: Part) -> bool:
        copied = self._kept.get(part.key)
        if copied is not None:
            self._cache.write(part.start, copied)
        return copied is not None


def _same(some: Sequence[Part], others: Sequence[Part]) -> int:
    """How many parts both begin with."""
    return sum(1 for _ in takewhile(lambda pair: pair[0].key == pair[1].key, zip(some, others, strict=False)))
