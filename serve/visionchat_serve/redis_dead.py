"""The dead list in Redis: jobs that no replica survived, with their pictures, to look at, replay or forget.

`claim.lua` puts them there. Must not know leases. Part of `redis_broker`; the command line calls it through that.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence

from visionchat_serve import broker
from visionchat_serve.messages import ChatJob, JobView, decode
from visionchat_serve.redis_calls import RedisCalls
from visionchat_serve.redis_keys import Keys
from visionchat_serve.redis_link import RedisLink


class RedisDead:
    """See `broker.Broker`, `dead`, `replay` and `purge_dead`. `submit` is the broker's."""

    def __init__(
        self,
        link: RedisLink,
        keys: Keys,
        calls: RedisCalls,
        submit: Callable[[ChatJob, Sequence[bytes]], Awaitable[str]],
    ) -> None:
        self._link = link
        self._keys = keys
        self._calls = calls
        self._submit = submit

    async def newest(self, limit: int) -> list[JobView]:
        ids = await self._link.call(lambda redis: redis.zrevrange(self._keys.dead, 0, limit - 1))
        return await self._calls.describe([job_id.decode() for job_id in ids])

    async def replay(self, job_id: str) -> str:
        """In two steps that may both be repeated: a crash between them leaves the job here and asked anew."""
        job, images = await self._find(job_id)
        new_id = await self._submit(broker.replay_of(job, images), images)
        await self._calls.run("forget_dead", job_id)
        return new_id

    async def _find(self, job_id: str) -> tuple[ChatJob, list[bytes]]:
        is_dead = await self._link.call(lambda redis: redis.zscore(self._keys.dead, job_id))
        job = await self._link.call(lambda redis: redis.hget(self._keys.job(job_id), "job"))
        if is_dead is None or job is None:
            raise broker.not_dead(job_id)
        images = await self._link.call(lambda redis: redis.lrange(self._keys.images(job_id), 0, -1))
        return decode(ChatJob, job), images

    async def purge(self) -> int:
        return int(await self._calls.run("forget_dead", ""))
