"""How far a model's download is: written beside the queue by the Job that fetches it, read there by the operator.

A pod has no other way to tell while it runs that needs no rights on the API server.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta
from typing import Self

from visionchat_serve.redis_keys import Keys
from visionchat_serve.redis_link import RedisLink

TTL = timedelta(minutes=1)


@dataclass(frozen=True, slots=True)
class FetchProgress:
    """Bytes that are there, of all there will be; `total` 0: not known yet."""

    done: int
    total: int

    def __str__(self) -> str:
        gigabytes = f"{self.done / 1e9:.1f}"
        return f"{gigabytes} of {self.total / 1e9:.1f} GB" if self.total else f"{gigabytes} GB"

    async def tell(self, link: RedisLink, namespace: str) -> None:
        """Raises `errors.Unavailable`."""
        key, text = Keys(namespace).fetch, f"{self.done} {self.total}"
        await link.call(lambda redis: redis.set(key, text, ex=TTL))

    @classmethod
    async def told(cls, link: RedisLink, namespace: str) -> Self | None:
        """None: nobody has told lately. Raises `errors.Unavailable`."""
        key = Keys(namespace).fetch
        text = await link.call(lambda redis: redis.get(key))
        return None if text is None else cls(*map(int, text.split()))
