"""The queue's Lua scripts as calls: what each gets as KEYS and ARGV. Used by `redis_broker` and `redis_dead`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from redis.commands.core import AsyncScript

from visionchat_serve.broker import BrokerPolicy
from visionchat_serve.messages import Finish, JobView, decode, status_after
from visionchat_serve.redis_keys import Keys
from visionchat_serve.redis_link import RedisLink
from visionchat_serve.redis_policy import policy_for_scripts


class RedisCalls:
    """One queue's scripts on one link."""

    def __init__(self, link: RedisLink, keys: Keys, policy: BrokerPolicy) -> None:
        self._link = link
        self._keys = keys.of_queue()
        self._policy = policy_for_scripts(policy, keys)
        self._scripts: dict[str, AsyncScript] = {}

    def _script(self, name: str) -> AsyncScript:
        if name not in self._scripts:
            self._scripts[name] = self._link.script(name)
        return self._scripts[name]

    async def run(self, name: str, *args: Any, keys: Sequence[str] = ()) -> Any:
        """The reply of the script `name`."""
        return await self._link.run(self._script(name), [*self._keys, *keys], [self._policy, *args])

    async def run_each(self, name: str, calls: Sequence[Sequence[Any]]) -> list[Any]:
        """The replies of several calls of a script, in one round trip."""
        return await self._link.run_each(self._script(name), [(self._keys, [self._policy, *args]) for args in calls])

    async def describe(self, ids: Sequence[str]) -> list[JobView]:
        """What is known of these jobs; those that are forgotten are left out."""
        replies = await self.run_each("describe", [(job_id,) for job_id in ids])
        return [_view(job_id, reply) for job_id, reply in zip(ids, replies, strict=True) if reply is not None]


def _view(job_id: str, reply: Sequence[Any]) -> JobView:
    owner, created_at, status, attempt, position, finish, ended_at = reply
    end = decode(Finish, finish) if finish is not None else None
    return JobView(
        id=job_id,
        owner=owner.decode(),
        status=status_after(end) if end else "processing" if status == b"leased" else "queued",
        attempt=int(attempt),
        created_at=float(created_at),
        ended_at=int(ended_at) / 1000 if ended_at is not None else None,
        position=position,
        finish=end,
    )
