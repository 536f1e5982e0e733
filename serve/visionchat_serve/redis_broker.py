"""The queue in Redis (6.2 and up), so that it outlives gateways, replicas and Redis itself.

Every step that must be whole is one Lua script in `redis_scripts/`; this module calls them and turns what comes
back into `messages`. Waiting and leased jobs are sorted sets, answers are streams; `prelude.lua` says what is
where. Leases, deadlines and expiry go by Redis' clock. Must not know HTTP or models. Made by `app` for gateway and
replica; the operator reads `load` and `reports`.
"""

from __future__ import annotations

import logging
import time
from collections.abc import AsyncIterator, Sequence
from datetime import timedelta

from redis.asyncio import Redis

from visionchat_serve import broker
from visionchat_serve.broker import BrokerPolicy, LeaseState, Reuse, Work
from visionchat_serve.messages import (
    ChatJob,
    ChunkDetails,
    Claim,
    Finish,
    Idempotency,
    JobEvent,
    JobView,
    QueueLoad,
    ReplicaReport,
    Submitted,
    TokenLogprob,
    decode,
    encode,
)
from visionchat_serve.redis_calls import RedisCalls
from visionchat_serve.redis_dead import RedisDead
from visionchat_serve.redis_keys import Keys
from visionchat_serve.redis_link import RedisLink
from visionchat_serve.redis_policy import ms
from visionchat_serve.redis_reader import RedisReader, event_of

log = logging.getLogger(__name__)

PROBE_TTL = timedelta(minutes=1)
WAIT = timedelta(seconds=3)  # one wait at Redis; below the socket timeout, which catches a hung Redis
_REFUSALS = {
    b"full": broker.queue_full,
    b"slow": broker.queue_slow,
    b"rate": broker.too_fast,
    b"open": broker.too_many_open,
}


class RedisBroker:
    """See `broker.Broker`."""

    def __init__(self, link: RedisLink, namespace: str, policy: BrokerPolicy | None = None) -> None:
        self.policy = policy or BrokerPolicy()
        self._link = link
        self._keys = Keys(namespace)
        self._calls = RedisCalls(link, self._keys, self.policy)
        self._reader = RedisReader(link, self._keys, self._calls, self.policy.outage)
        self._dead = RedisDead(link, self._keys, self._calls, self.submit)

    @classmethod
    def from_url(cls, url: str, namespace: str, policy: BrokerPolicy | None = None) -> RedisBroker:
        """The queue `namespace` at an address as in `redis_address`; connects with the first call."""
        return cls(RedisLink(url), namespace, policy)

    # --- the gateway's side ---

    async def submit(self, job: ChatJob, images: Sequence[bytes], idempotency: Idempotency | None = None) -> str:
        return (await self.ask(job, images, idempotency)).job_id

    async def ask(
        self,
        job: ChatJob,
        images: Sequence[bytes],
        idempotency: Idempotency | None = None,
        reuse: Reuse = Reuse.NOTHING,
    ) -> Submitted:
        key, fingerprint = (idempotency.key, idempotency.fingerprint) if idempotency else ("", "")
        keys = [*self._keys.of_owner(job.owner), self._keys.once(job.owner, key)]
        work = Work.of(job)
        own = job.owner, job.priority, job.created_at, int(job.deadline_at * 1000), fingerprint
        hints = job.affinity, work.prompt, work.written, job.cache_key, reuse.value
        what, detail = await self._calls.run("submit", job.id, encode(job), *own, *hints, *images, keys=keys)
        if what == b"reused":
            raise broker.key_reused()
        if what in _REFUSALS:
            raise _REFUSALS[what](self.policy, detail / 1000)
        return Submitted(detail.decode(), what.decode())

    async def let_go(self, job_id: str, client: str) -> bool:
        return bool(await self._calls.run("let_go", job_id, client))

    def events(self, job_id: str, after: str = "0") -> AsyncIterator[JobEvent]:
        return self._reader.follow(job_id, after)

    async def cancel(self, job_id: str) -> bool:
        return bool(await self._calls.run("cancel", job_id))

    async def describe(self, job_id: str) -> JobView:
        for view in await self._calls.describe([job_id]):
            return view
        raise broker.unknown_job(job_id)

    async def jobs(self, owner: str, limit: int, before: str | None = None) -> list[JobView]:
        key = self._keys.owned(owner)
        below = "+inf" if before is None else f"({await self._arrival(owner, before)}"
        ids = await self._link.call(lambda redis: redis.zrevrangebyscore(key, below, "-inf"))
        views: list[JobView] = []
        while ids and len(views) < limit:  # forgotten jobs are left out, and the page is filled with older ones
            page, ids = ids[:limit], ids[limit:]
            views += await self._calls.describe([job_id.decode() for job_id in page])
        return views[:limit]

    async def _arrival(self, owner: str, job_id: str) -> int:
        score = await self._link.call(lambda redis: redis.zscore(self._keys.owned(owner), job_id))
        if score is None:
            raise broker.unknown_job(job_id)
        return int(score)

    async def asked(self, ids: Sequence[str]) -> list[ChatJob | None]:
        replies = await self._link.call(lambda redis: self._questions(redis, ids)) if ids else []
        return [decode(ChatJob, reply) if reply is not None else None for reply in replies]

    async def _questions(self, redis: Redis, ids: Sequence[str]) -> list[bytes | None]:
        pipeline = redis.pipeline(transaction=False)
        for job_id in ids:
            pipeline.hget(self._keys.job(job_id), "job")
        replies: list[bytes | None] = await pipeline.execute()
        return replies

    async def so_far(self, job_id: str) -> list[JobEvent]:
        entries = await self._link.call(lambda redis: redis.xrange(self._keys.events(job_id)))
        return [event_of(job_id, entry_id, fields) for entry_id, fields in entries]

    async def dead(self, limit: int) -> list[JobView]:
        return await self._dead.newest(limit)

    async def replay(self, job_id: str) -> str:
        return await self._dead.replay(job_id)

    async def purge_dead(self) -> int:
        return await self._dead.purge()

    async def load(self) -> QueueLoad:
        waiting, leased, delayed, pace, oldest = await self._calls.run("load")
        return QueueLoad(waiting, leased, delayed, float(pace) / 1000, float(oldest) / 1000)

    async def reports(self) -> list[ReplicaReport]:
        found = await self._calls.run("reports")
        return sorted((decode(ReplicaReport, report) for report in found), key=lambda r: r.replica)

    # --- the replica's side ---

    async def claim(self, consumer: str, count: int, block: timedelta) -> list[Claim]:
        give_up_at = time.monotonic() + block.total_seconds()
        while True:
            found, pause, rung = await self._calls.run("claim", consumer, count)
            left = timedelta(seconds=give_up_at - time.monotonic())
            if found or left <= timedelta(0):
                return [Claim(decode(ChatJob, job), tuple(images), attempt) for job, attempt, images in found]
            await self._listen(rung, min(left, timedelta(milliseconds=pause), WAIT))

    async def _listen(self, rung: bytes, wait: timedelta) -> None:
        """Until the bell rings again after `rung`, so that no job can come unheard between look and wait."""
        await self._link.call(lambda redis: redis.xread({self._keys.bell: rung}, count=1, block=ms(wait)))

    async def renew(self, consumer: str, claims: Sequence[Claim]) -> list[LeaseState]:
        states = await self._calls.run_each("renew", [(c.job.id, c.attempt) for c in claims])
        return [LeaseState(state.decode()) for state in states]

    async def publish(
        self, claim: Claim, index: int, text: str, choice: int = 0, logprobs: tuple[TokenLogprob, ...] = ()
    ) -> LeaseState:
        more = ("more", encode(ChunkDetails(choice, logprobs))) if choice or logprobs else ()
        state = await self._calls.run("publish", claim.job.id, claim.attempt, index, text, *more)
        return LeaseState(state.decode())

    async def finish(self, claim: Claim, finish: Finish) -> bool:
        good, written = int(finish.reason in ("stop", "length")), finish.usage.completion_tokens
        args = claim.job.id, claim.attempt, encode(finish), good, written
        return bool(await self._calls.run("finish", *args, keys=self._keys.of_answers()))

    async def release(self, claim: Claim) -> bool:
        return bool(await self._calls.run("release", claim.job.id, claim.attempt))

    async def report(self, report: ReplicaReport, ttl: timedelta) -> None:
        await self._calls.run("report", report.replica, report.max_running, encode(report), ms(ttl))

    async def leave(self, consumer: str) -> None:
        await self._calls.run("leave", consumer)

    async def ping(self) -> None:
        await self._link.call(lambda redis: redis.set(self._keys.probe, 1, px=ms(PROBE_TTL)))

    async def close(self) -> None:
        await self._reader.close()
        await self._link.close()
