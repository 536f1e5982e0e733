"""The queue in Redis Streams (6.2 and up), so that it outlives gateways, replicas and Redis itself.

Every step that must be whole is one Lua script in `redis_scripts/`; this module calls them and turns what comes
back into `messages`. A job is an entry of the jobs stream until it is answered; a lease is the entry's idle time in
the consumer group. Leases, deadlines and expiry go by Redis' clock. Must not know HTTP or models. Made by `app`
for gateway and replica; the operator reads `load` and `reports`.
"""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from datetime import timedelta
from typing import Any

from redis.asyncio import Redis
from redis.commands.core import AsyncScript
from redis.exceptions import ResponseError

from visionchat_serve import broker
from visionchat_serve.broker import BrokerPolicy, LeaseState
from visionchat_serve.errors import NotFound, QueueFull
from visionchat_serve.messages import (
    ChatJob,
    ChunkDetails,
    Claim,
    Finish,
    JobEvent,
    QueueLoad,
    ReplicaReport,
    TokenChunk,
    TokenLogprob,
    decode,
    encode,
)
from visionchat_serve.redis_keys import GROUP, RELEASED, Keys
from visionchat_serve.redis_link import RedisLink

CLAIM_WAIT = timedelta(milliseconds=500)  # a job that was given back or whose lease expired waits this long at most
EVENTS_WAIT = timedelta(seconds=3)  # one wait for events; below the socket timeout, which catches a hung Redis
EVENTS_AT_ONCE = 256

_Taken = tuple[str, str]  # entry id, job id


class RedisBroker:
    """See `broker.Broker`."""

    def __init__(self, link: RedisLink, namespace: str, policy: BrokerPolicy | None = None) -> None:
        self.policy = policy or BrokerPolicy()
        self._link = link
        self._keys = Keys(namespace)
        self._result_ttl = _ms(self.policy.result_ttl)
        self._lease = _ms(self.policy.lease)
        self._submit, self._look, self._cancel = map(link.script, ("submit", "look", "cancel"))
        self._take, self._claim, self._renew = map(link.script, ("take", "claim", "renew"))
        self._publish, self._finish, self._release = map(link.script, ("publish", "finish", "release"))
        self._load, self._leave = map(link.script, ("load", "leave"))
        self._report, self._reports = map(link.script, ("report", "reports"))
        self._ends = [
            encode(finish)
            for finish in (
                broker.CANCELLED,
                broker.TIMED_OUT,
                broker.attempts_used_up(self.policy),
                broker.PICTURES_LOST,
            )
        ]

    @classmethod
    def from_url(cls, url: str, namespace: str, policy: BrokerPolicy | None = None) -> RedisBroker:
        """The queue `namespace` at `redis://`, `rediss://` or `unix://`; connects with the first call."""
        return cls(RedisLink(url), namespace, policy)

    # --- the gateway's side ---

    async def submit(self, job: ChatJob, images: Sequence[bytes]) -> None:
        deadline = int(job.deadline_at * 1000)
        args = [job.id, encode(job), deadline, self.policy.max_waiting, *images]
        if await self._of_job(self._submit, job.id, *args) == b"full":
            raise QueueFull(f"{self.policy.max_waiting} requests are not answered yet; try again later")

    async def events(self, job_id: str, after: str = "0") -> AsyncIterator[JobEvent]:
        broker.resume_point(after)
        while True:
            # First the state, then the stream: after "ended", all there is to read is there.
            wait = await self._wait_of_reader(job_id)
            while events := await self._read(job_id, after, wait):
                for event in events:
                    after = event.id
                    yield event
                    if isinstance(event.value, Finish):
                        return
            if wait == 0:  # `after` was the end already
                return

    async def _wait_of_reader(self, job_id: str) -> int:
        args = self._lease, _ms(EVENTS_WAIT), encode(broker.TIMED_OUT)
        wait: int | None = await self._of_job(self._look, job_id, *args)
        if wait is None:
            raise NotFound(f"there is no job {job_id!r}; it was never accepted, or its result has expired")
        return wait

    async def _read(self, job_id: str, after: str, wait: int) -> list[JobEvent]:
        key = self._keys.events(job_id)
        reply = await self._link.call(lambda redis: redis.xread({key: after}, count=EVENTS_AT_ONCE, block=wait or None))
        return [_event(job_id, entry_id, fields) for _, entries in reply or () for entry_id, fields in entries]

    async def cancel(self, job_id: str) -> bool:
        return bool(await self._of_job(self._cancel, job_id, self._lease, encode(broker.CANCELLED)))

    async def load(self) -> QueueLoad:
        waiting, leased = await self._link.run(self._load, [self._keys.jobs], [GROUP, 0, self._lease])
        return QueueLoad(waiting=waiting, leased=leased)

    async def reports(self) -> list[ReplicaReport]:
        found = await self._link.run(self._reports, [self._keys.reports], [GROUP, 0])
        return sorted((decode(ReplicaReport, report) for report in found), key=lambda r: r.replica)

    # --- the replica's side ---

    async def claim(self, consumer: str, count: int, block: timedelta) -> list[Claim]:
        give_up_at = time.monotonic() + block.total_seconds()
        while True:
            taken = await self._take_free(consumer, count)
            if not taken and (left := give_up_at - time.monotonic()) > 0:
                taken = await self._wait_for_new(consumer, count, min(left, CLAIM_WAIT.total_seconds()))
            claims = await self._lease_or_end(consumer, taken)
            if claims or time.monotonic() >= give_up_at:
                return claims

    async def _take_free(self, consumer: str, count: int) -> list[_Taken]:
        args = [GROUP, 0, consumer, count, self._lease]
        taken = await self._with_group(lambda: self._link.run(self._take, [self._keys.jobs], args))
        return [(entry_id.decode(), job_id.decode()) for entry_id, job_id in taken or ()]

    async def _wait_for_new(self, consumer: str, count: int, seconds: float) -> list[_Taken]:
        block = max(1, int(seconds * 1000))  # 0 would block for ever

        def read(redis: Redis) -> Awaitable[Any]:
            return redis.xreadgroup(GROUP, consumer, {self._keys.jobs: ">"}, count=count, block=block)

        reply = await self._with_group(lambda: self._link.call(read))
        return [(i.decode(), fields[b"job"].decode()) for _, entries in reply or () for i, fields in entries]

    async def _lease_or_end(self, consumer: str, taken: Sequence[_Taken]) -> list[Claim]:
        calls = [
            self._call(job_id, consumer, entry_id, self._lease, self.policy.max_attempts, *self._ends)
            for entry_id, job_id in taken
        ]
        replies = await self._link.run_each(self._claim, calls)
        return [
            Claim(decode(ChatJob, reply[0]), tuple(reply[2]), reply[1], entry_id)
            for (entry_id, _), reply in zip(taken, replies, strict=True)
            if reply is not None
        ]

    async def renew(self, consumer: str, claims: Sequence[Claim]) -> list[LeaseState]:
        calls = [self._call(c.job.id, consumer, c.entry_id, c.attempt, self._lease) for c in claims]
        return [LeaseState(state.decode()) for state in await self._link.run_each(self._renew, calls)]

    async def publish(
        self, claim: Claim, index: int, text: str, choice: int = 0, logprobs: tuple[TokenLogprob, ...] = ()
    ) -> LeaseState:
        more = ("more", encode(ChunkDetails(choice, logprobs))) if choice or logprobs else ()
        state = await self._of_job(self._publish, claim.job.id, claim.attempt, index, text, *more)
        return LeaseState(state.decode())

    async def finish(self, claim: Claim, finish: Finish) -> bool:
        args = claim.entry_id, claim.attempt, encode(finish)
        return bool(await self._of_job(self._finish, claim.job.id, *args))

    async def release(self, claim: Claim) -> bool:
        args = claim.entry_id, claim.attempt, self._lease, RELEASED
        return bool(await self._of_job(self._release, claim.job.id, *args))

    async def report(self, report: ReplicaReport, ttl: timedelta) -> None:
        args = [GROUP, 0, report.replica, encode(report), _ms(ttl)]
        await self._link.run(self._report, [self._keys.reports], args)

    async def leave(self, consumer: str) -> None:
        keys = [self._keys.jobs, self._keys.reports]
        await self._link.run(self._leave, keys, [GROUP, 0, consumer, self._lease, RELEASED])

    async def ping(self) -> None:
        await self._link.call(lambda redis: redis.echo("ping"))

    async def close(self) -> None:
        await self._link.close()

    # --- calling ---

    def _call(self, job_id: str, *args: Any) -> tuple[list[str], list[Any]]:
        return self._keys.of_job(job_id), [GROUP, self._result_ttl, *args]

    async def _of_job(self, script: AsyncScript, job_id: str, *args: Any) -> Any:
        return await self._link.run(script, *self._call(job_id, *args))

    async def _with_group(self, call: Callable[[], Awaitable[Any]]) -> Any:
        """Make the consumer group when it is not there: at the very first claim, and after Redis lost its data.

        From the stream's start: what is answered has left it, so what is in it must be claimed.
        """
        try:
            return await call()
        except ResponseError as error:
            if not any(word in str(error) for word in ("NOGROUP", "UNBLOCKED")):
                raise
        try:
            await self._link.call(lambda redis: redis.xgroup_create(self._keys.jobs, GROUP, id="0", mkstream=True))
        except ResponseError as error:
            if "BUSYGROUP" not in str(error):  # another replica was faster
                raise
        return await call()


def _ms(duration: timedelta) -> int:
    return max(1, round(duration.total_seconds() * 1000))


def _event(job_id: str, entry_id: bytes, fields: dict[bytes, bytes]) -> JobEvent:
    attempt = int(fields[b"attempt"])
    if b"finish" in fields:
        return JobEvent(entry_id.decode(), attempt, decode(Finish, fields[b"finish"]))
    more = decode(ChunkDetails, fields[b"more"]) if b"more" in fields else ChunkDetails()
    text = fields[b"text"].decode()
    chunk = TokenChunk(job_id, attempt, int(fields[b"index"]), text, more.choice, more.logprobs)
    return JobEvent(entry_id.decode(), attempt, chunk)
