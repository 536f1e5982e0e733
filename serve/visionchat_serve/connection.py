"""From settings to the queue they name. Used by the gateway's and the replicas' deployments and the command line."""

from __future__ import annotations

from datetime import timedelta

from visionchat_serve.broker import Broker, BrokerPolicy
from visionchat_serve.config import Settings
from visionchat_serve.redis_broker import RedisBroker


def connect(settings: Settings) -> Broker:
    """The broker on the settings' Redis; connects with the first call."""
    assert settings.redis_url is not None, "the command line fills in the embedded server's address"
    return RedisBroker.from_url(settings.redis_url, settings.namespace, policy_of(settings))


def policy_of(settings: Settings) -> BrokerPolicy:
    """The queue's numbers."""
    return BrokerPolicy(
        lease=timedelta(seconds=settings.lease_seconds),
        max_attempts=settings.max_attempts,
        result_ttl=timedelta(seconds=settings.result_ttl_seconds),
        max_waiting=settings.max_waiting,
        max_wait=timedelta(seconds=settings.max_wait_seconds),
        cache_ttl=timedelta(seconds=settings.cache_ttl_seconds),
        cache_bytes=settings.cache_max_bytes,
        owner_rate=settings.rate_per_minute,
        owner_open=settings.max_open_requests,
    )


async def check_queue(settings: Settings) -> None:
    """Raise `errors.Unavailable`, saying what to do, when the queue does not answer."""
    broker = connect(settings)
    try:
        await broker.ping()
    finally:
        await broker.close()
