"""From settings to the queue they name. Used by the gateway's and the replicas' deployments and the command line."""

from __future__ import annotations

from datetime import timedelta

from visionchat_serve.broker import Broker, BrokerPolicy
from visionchat_serve.config import Settings
from visionchat_serve.errors import ConfigError
from visionchat_serve.redis_address import with_authority, with_password
from visionchat_serve.redis_broker import RedisBroker


def connect(settings: Settings) -> Broker:
    """The broker on the settings' Redis; connects with the first call."""
    assert settings.redis_url is not None, "the command line fills in the embedded server's address"
    return RedisBroker.from_url(address(settings), settings.namespace, policy_of(settings))


def address(settings: Settings) -> str:
    """The queue's address, with the password and who vouches for the server. Raises `ConfigError`."""
    assert settings.redis_url is not None
    url = settings.redis_url
    if settings.redis_password is not None:
        url = with_password(url, settings.redis_password.get_secret_value())
    if settings.redis_ca_file is None:
        return url
    try:
        return with_authority(url, ssl_ca_certs=str(settings.redis_ca_file))
    except ValueError as error:
        raise ConfigError(f"redis_ca_file does not fit redis_url: {error}") from error


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
