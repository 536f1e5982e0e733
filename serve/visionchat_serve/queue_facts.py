"""What the queue's Redis says of itself, by INFO alone: managed Redis often refuses CONFIG. Judges nothing."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

from redis.exceptions import RedisError

from visionchat_serve.redis_address import clients

PATIENCE = timedelta(seconds=3)


@dataclass(frozen=True, slots=True)
class QueueFacts:
    """`fault`: why it could not be asked; all else is unknown then. `saves`: whether its last writes to disk worked.
    `limit_bytes` is 0 without a limit."""

    fault: str | None = None
    version: tuple[int, ...] = ()
    is_master: bool = True
    appends: bool = False
    saves: bool = True
    eviction: str = "noeviction"
    limit_bytes: int = 0
    used_bytes: int = 0


async def read_queue(url: str) -> QueueFacts:
    """Raises ValueError for an address that cannot be understood."""
    seconds = PATIENCE.total_seconds()
    redis, sentinels = clients(url, socket_timeout=seconds, socket_connect_timeout=seconds, decode_responses=True)
    try:
        info: dict[str, Any] = {}
        for section in ("server", "replication", "persistence", "memory"):
            info |= await redis.info(section)
        return of_info(info)
    except (RedisError, OSError) as error:
        return QueueFacts(fault=str(error) or type(error).__name__)
    finally:
        for client in (redis, *sentinels):
            with suppress(RedisError, OSError):
                await client.aclose()


def of_info(info: Mapping[str, Any]) -> QueueFacts:
    """From the answer to INFO as redis-py reads it."""
    saves = (info.get(name, "ok") for name in ("aof_last_write_status", "rdb_last_bgsave_status"))
    return QueueFacts(
        version=tuple(int(part) for part in str(info.get("redis_version", "")).split(".") if part.isdigit()),
        is_master=info.get("role", "master") == "master",
        appends=bool(info.get("aof_enabled", 0)),
        saves=all(status == "ok" for status in saves),
        eviction=str(info.get("maxmemory_policy", "noeviction")),
        limit_bytes=int(info.get("maxmemory", 0)),
        used_bytes=int(info.get("used_memory", 0)),
    )
