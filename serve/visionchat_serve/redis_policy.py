"""What the Lua scripts must know of a broker's policy, as one JSON text with names: their ARGV[1], `POLICY` in Lua.

Durations are whole milliseconds, the ends of jobs are encoded `Finish`es. Must not know connections. Used by
`redis_broker`.
"""

from __future__ import annotations

import json
from datetime import timedelta

from visionchat_serve import broker
from visionchat_serve.broker import BrokerPolicy
from visionchat_serve.messages import encode
from visionchat_serve.redis_keys import Keys


def ms(duration: timedelta) -> int:
    """Whole milliseconds, at least one: 0 means "no limit" to Redis."""
    return max(1, round(duration.total_seconds() * 1000))


_NAMED = "job", "events", "images", "clients", "home", "flight", "leader", "answer"  # keys that end in what they are of


def policy_for_scripts(policy: BrokerPolicy, keys: Keys) -> str:
    """The JSON text."""
    durations = (
        "lease",
        "result_ttl",
        "max_wait",
        "retry_delay",
        "max_retry_delay",
        "dead_ttl",
        "idempotency_ttl",
        "affinity_wait",
        "cache_ttl",
    )
    counts = (
        "max_attempts",
        "max_waiting",
        "batch_after",
        "max_dead",
        "max_listed",
        "owner_rate",
        "owner_open",
        "cache_bytes",
    )
    ends = {
        "cancelled": broker.CANCELLED,
        "timed_out": broker.TIMED_OUT,
        "used_up": broker.attempts_used_up(policy),
        "pictures_lost": broker.PICTURES_LOST,
    }
    names = {name: getattr(keys, name)("") for name in _NAMED}
    return json.dumps(
        {name: ms(getattr(policy, name)) for name in durations}
        | {name: getattr(policy, name) for name in counts}
        | {name: encode(finish).decode() for name, finish in ends.items()}
        | names
    )
