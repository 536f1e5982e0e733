"""A dictionary that takes no more than so many bytes: what was not asked for longest makes room. Pure."""

from __future__ import annotations

from collections import OrderedDict
from typing import Generic, TypeVar

T = TypeVar("T")


class LeastRecentlyUsed(Generic[T]):
    """Holds values by keys, up to `max_bytes` as told by who puts them in; 0: nothing."""

    def __init__(self, max_bytes: int) -> None:
        self.max_bytes = max_bytes
        self.bytes = 0
        self._entries: OrderedDict[bytes, tuple[T, int]] = OrderedDict()

    def __len__(self) -> int:
        return len(self._entries)

    def get(self, key: bytes) -> T | None:
        """None if it is not there; it counts as used just now."""
        if key not in self._entries:
            return None
        self._entries.move_to_end(key)
        return self._entries[key][0]

    def put(self, key: bytes, value: T, size: int) -> None:
        """`size` in bytes; what is larger than everything that fits is not kept."""
        self._drop(key)
        if size > self.max_bytes:
            return
        self._entries[key] = value, size
        self.bytes += size
        while self.bytes > self.max_bytes:
            self._drop(next(iter(self._entries)))

    def clear(self) -> None:
        self._entries.clear()
        self.bytes = 0

    def _drop(self, key: bytes) -> None:
        if key in self._entries:
            self.bytes -= self._entries.pop(key)[1]
