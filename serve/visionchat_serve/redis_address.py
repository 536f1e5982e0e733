"""From an address to a client of Redis: one server by TCP, TLS or socket, or the master that Sentinels name.

    redis://[user:password@]host[:port][/db]      rediss:// the same with TLS      unix:///path
    redis+sentinel://[user:password@]host[:port],host[:port]/service[/db]      rediss+sentinel:// with TLS to all

Query arguments are redis-py's, such as `ssl_ca_certs=/path/to/ca.crt`. User and password are those of Redis;
Sentinels that want their own get `sentinel_username` and `sentinel_password`. Must not know what is asked of Redis.
Used by `redis_link`.
"""

from __future__ import annotations

from typing import Any
from urllib.parse import quote, urlencode, urlsplit, urlunsplit

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


def with_password(url: str, password: str) -> str:
    """The address with this password, whatever characters it has, in the place of any other."""
    parts = urlsplit(url)
    who, _, place = parts.netloc.rpartition("@")
    user = who.partition(":")[0]
    return urlunsplit(parts._replace(netloc=f"{user}:{quote(password, safe='')}@{place}"))


def with_authority(url: str, **authority: str) -> str:
    """The address with who vouches for the server: `ssl_ca_certs`, a file, or `ssl_ca_data`, the PEM text itself.

    Raises ValueError for an address without TLS, where nobody would be asked.
    """
    parts = urlsplit(url)
    if parts.scheme not in ("rediss", "rediss+sentinel"):
        raise ValueError("certificates are checked with rediss:// or rediss+sentinel:// only")
    return urlunsplit(parts._replace(query="&".join(filter(None, (parts.query, urlencode(authority))))))


async def master(url: str, **options: Any) -> tuple[str, int]:
    """Host and port that the Sentinels of a redis+sentinel:// address name as the master just now.

    Raises ValueError for an address that cannot be understood, and redis-py's errors when no Sentinel knows.
    """
    sentinel, service = _sentinel(url, options)
    try:
        host, port = await sentinel.discover_master(service)
        return str(host), int(port)
    finally:
        for client in sentinel.sentinels:
            await client.aclose()


def _by_sentinels(url: str, options: dict[str, Any]) -> tuple[Redis, list[Redis]]:
    sentinel, service = _sentinel(url, options)
    return sentinel.master_for(service), sentinel.sentinels


def _sentinel(url: str, options: dict[str, Any]) -> tuple[Sentinel, str]:
    """The Sentinels, and the name by which they know the master."""
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
    return sentinel, service


def _place(host: str) -> tuple[str, int]:
    parts = urlsplit(f"//{host}")
    if not parts.hostname:
        raise ValueError(f"{host!r} is not the host of a Sentinel")
    return parts.hostname, parts.port or SENTINEL_PORT
