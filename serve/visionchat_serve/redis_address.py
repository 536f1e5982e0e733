"""From an address to a client of Redis: one server by TCP, TLS or socket, or the master that Sentinels name.

    redis://[user:password@]host[:port][/db]      rediss:// the same with TLS      unix:///path
    redis+sentinel://[user:password@]host[:port],host[:port]/service[/db]      rediss+sentinel:// with TLS to all

Query arguments are redis-py's, such as `ssl_ca_certs=/path/to/ca.crt`. User and password are those of Redis;
Sentinels that want their own get `sentinel_username` and `sentinel_password`. Must not know what is asked of Redis.
Used by `redis_link`.
"""

from __future__ import annotations

from typing import Any
from urllib.parse import urlsplit, urlunsplit

from redis.asyncio import Redis
from redis.asyncio.connection import parse_url
from redis.asyncio.sentinel import Sentinel

SENTINEL_PORT = 26379


def clients(url: str, **options: Any) -> tuple[Redis, list[Redis]]:
    """The client, and those of the Sentinels, to be closed with it; nothing connects yet.

    `options` are redis-py's, for all of them. Raises ValueError for an address that cannot be understood.
    """
    scheme = urlsplit(url).scheme
    if scheme in ("redis", "rediss", "unix"):
        return Redis.from_url(url, **options), []
    if scheme in ("redis+sentinel", "rediss+sentinel"):
        return _by_sentinels(url, options)
    raise ValueError("it must begin with redis://, rediss://, unix://, redis+sentinel:// or rediss+sentinel://")


def _by_sentinels(url: str, options: dict[str, Any]) -> tuple[Redis, list[Redis]]:
    parts = urlsplit(url)
    who, _, hosts = parts.netloc.rpartition("@")
    service, _, db = parts.path.strip("/").partition("/")
    if not service or not hosts:
        raise ValueError("after redis+sentinel:// come the Sentinels' hosts, a slash and the name of the service")
    given: dict[str, Any] = dict(parse_url(urlunsplit(("redis", f"{who}@", f"/{db}", parts.query, ""))))
    secure = {"ssl": True} if parts.scheme == "rediss+sentinel" else {}
    own = {name: given.pop(f"sentinel_{name}") for name in ("username", "password") if f"sentinel_{name}" in given}
    tls = {name: value for name, value in given.items() if name.startswith("ssl_")}
    sentinel = Sentinel(  # type: ignore[no-untyped-call]
        [_place(host) for host in hosts.split(",")],
        sentinel_kwargs={**options, **secure, **tls, **own},
        **{**options, **secure, **given},
    )
    return sentinel.master_for(service), sentinel.sentinels


def _place(host: str) -> tuple[str, int]:
    parts = urlsplit(f"//{host}")
    if not parts.hostname:
        raise ValueError(f"{host!r} is not the host of a Sentinel")
    return parts.hostname, parts.port or SENTINEL_PORT
