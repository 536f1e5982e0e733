"""Addresses with TLS and with Sentinels, on real servers of each kind that listen on loopback."""

from __future__ import annotations

import datetime
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from redis import Redis
from redis.exceptions import RedisError

from contract.queues import SERVERS
from support.redis_servers import Certificates, Launch, launching, make_certificates, speaks_tls, with_tls
from support.waiting import wait_until
from visionchat_serve.errors import ConfigError, Unavailable
from visionchat_serve.messages import Finish
from visionchat_serve.redis_address import master as master_by
from visionchat_serve.redis_address import with_authority, with_password
from visionchat_serve.redis_broker import RedisBroker

NOW = datetime.timedelta(0)
SOON = datetime.timedelta(seconds=3)


@pytest.fixture
def launch(server_name: str, tmp_path: Path) -> Iterator[Launch]:
    with launching(SERVERS[server_name], tmp_path) as start:
        yield start


async def answers(port: int, **options: Any) -> None:
    def ping() -> bool:
        try:
            with Redis("127.0.0.1", port, retry=None, **options) as redis:
                return bool(redis.ping())
        except RedisError:
            return False

    await wait_until(ping, f"the server on {port} answers")


async def one_answer(broker: RedisBroker, job: Any) -> None:
    """A job goes through the queue, pictures and all."""
    await broker.submit(job, [b"picture"])
    [claim] = await broker.claim("a", 1, SOON)
    assert claim.images == (b"picture",)
    await broker.publish(claim, 0, "blue")
    assert await broker.finish(claim, Finish("stop"))
    values = [event.value async for event in broker.events(job.id)]
    assert len(values) == 2


# --- TLS ---


@pytest.fixture
def certificates(tmp_path: Path) -> Certificates:
    return make_certificates(tmp_path)


@pytest.fixture
def tls_spoken(server_name: str) -> None:
    if not speaks_tls(SERVERS[server_name]):
        pytest.skip(f"{server_name} was built without TLS")


@pytest.mark.usefixtures("tls_spoken")
async def test_tls(launch: Launch, certificates: Certificates, make_job: Any) -> None:
    port = launch(*with_tls(certificates), "requirepass s3cret")
    await answers(port, ssl=True, ssl_ca_certs=str(certificates[0]), password="s3cret")
    broker = RedisBroker.from_url(f"rediss://:s3cret@127.0.0.1:{port}/1?ssl_ca_certs={certificates[0]}", "x")
    await one_answer(broker, make_job(images=1))
    await broker.close()
    for stranger in (
        f"rediss://:s3cret@127.0.0.1:{port}",  # nobody vouches for its certificate
        f"rediss://:s3cret@localhost:{port}?ssl_ca_certs={certificates[0]}",  # which is for another name
        f"redis://:s3cret@127.0.0.1:{port}",
    ):
        refused = RedisBroker.from_url(stranger, "x")
        with pytest.raises(Unavailable) as caught:
            await refused.ping()
        assert f":{port}" in caught.value.inside
        assert "s3cret" not in caught.value.inside
        await refused.close()


@pytest.mark.usefixtures("tls_spoken")
async def test_who_vouches_may_be_in_the_address_itself(
    launch: Launch, certificates: Certificates, make_job: Any
) -> None:
    port = launch(*with_tls(certificates), "requirepass p@ss/w:rd%")
    await answers(port, ssl=True, ssl_ca_certs=str(certificates.authority), password="p@ss/w:rd%")
    url = with_password(f"rediss://127.0.0.1:{port}/1?protocol=2", "p@ss/w:rd%")
    broker = RedisBroker.from_url(with_authority(url, ssl_ca_data=certificates.authority.read_text()), "x")
    await one_answer(broker, make_job(images=1))
    await broker.close()


def test_nobody_vouches_where_nobody_is_asked() -> None:
    with pytest.raises(ValueError, match="rediss://"):
        with_authority("redis://127.0.0.1", ssl_ca_data="")


# --- Sentinels ---

WATCH = (
    "port {port}",
    "sentinel down-after-milliseconds main 300",
    "sentinel failover-timeout main 2000",
)


async def test_the_queue_follows_a_new_master(launch: Launch, make_job: Any) -> None:
    """What was accepted by a master that then dies is answered from the one that takes its place."""
    first = launch("port {port}", "requirepass s3cret", "masterauth s3cret")
    second = launch("port {port}", "requirepass s3cret", "masterauth s3cret", f"replicaof 127.0.0.1 {first}")
    for port in (first, second):
        await answers(port, password="s3cret")
    monitor = [f"sentinel monitor main 127.0.0.1 {first} 1", "sentinel auth-pass main s3cret"]
    sentinel = launch(WATCH[0], monitor[0], monitor[1], *WATCH[1:], "requirepass watch", sentinel=True)
    await answers(sentinel, password="watch")

    nowhere = "127.0.0.1:1"  # a Sentinel that is down is no obstacle
    url = f"redis+sentinel://:s3cret@{nowhere},127.0.0.1:{sentinel}/main/0?sentinel_password=watch"
    assert await master_by(url) == ("127.0.0.1", first)
    broker = RedisBroker.from_url(url, "x")
    await one_answer(broker, make_job(images=1))
    job = make_job(images=1)
    await broker.submit(job, [b"picture"])
    with Redis(port=second, password="s3cret") as replica, Redis(port=first, password="s3cret", retry=None) as master:

        def is_copied() -> bool:
            return bool(
                replica.info("replication")["master_link_status"] == "up" and replica.dbsize() == master.dbsize()
            )

        await wait_until(is_copied, "the second server has everything")

        def is_known() -> bool:
            with Redis(port=sentinel, password="watch") as watch:
                return bool(watch.sentinel_slaves("main"))

        await wait_until(is_known, "the Sentinel knows the second server", seconds=30)
        master.shutdown(nosave=True)

    async def claimed() -> bool:
        try:
            claims = await broker.claim("a", 1, NOW)
        except Unavailable:
            return False
        return [claim.job for claim in claims] == [job]

    await wait_until(claimed, "the new master hands the job out", seconds=30)
    await broker.close()


@pytest.mark.usefixtures("tls_spoken")
async def test_sentinels_with_tls(launch: Launch, certificates: Certificates, make_job: Any) -> None:
    port = launch(*with_tls(certificates))
    ours = {"ssl": True, "ssl_ca_certs": str(certificates[0])}
    await answers(port, **ours)
    sentinel = launch(*with_tls(certificates), f"sentinel monitor main 127.0.0.1 {port} 1", sentinel=True)
    await answers(sentinel, **ours)
    broker = RedisBroker.from_url(f"rediss+sentinel://127.0.0.1:{sentinel}/main?ssl_ca_certs={certificates[0]}", "x")
    await one_answer(broker, make_job(images=1))
    await broker.close()
    stranger = RedisBroker.from_url(f"redis+sentinel://127.0.0.1:{sentinel}/main", "x")
    with pytest.raises(Unavailable):
        await stranger.ping()
    await stranger.close()


async def test_a_service_that_sentinels_do_not_know(launch: Launch) -> None:
    sentinel = launch("port {port}", sentinel=True)
    await answers(sentinel)
    broker = RedisBroker.from_url(f"redis+sentinel://:s3cret@127.0.0.1:{sentinel}/nobody", "x")
    with pytest.raises(Unavailable) as caught:
        await broker.ping()
    assert "nobody" in caught.value.inside
    assert "s3cret" not in caught.value.inside
    await broker.close()


@pytest.mark.parametrize(
    "url",
    [
        "redis+sentinel://127.0.0.1:26379",
        "redis+sentinel:///main",
        "redis+sentinel://127.0.0.1:x/main",
        "redis+sentinel://127.0.0.1,,127.0.0.2/main",
        "redis+cluster://127.0.0.1/main",
        "http+sentinel://127.0.0.1/main",
    ],
)
def test_addresses_that_cannot_be_understood(url: str) -> None:
    with pytest.raises(ConfigError, match="not usable"):
        RedisBroker.from_url(url, "x")


@pytest.mark.parametrize("url", ["foo", "http://127.0.0.1", "redis+cluster://127.0.0.1/main"])
def test_an_address_of_another_kind_is_told_all_kinds(url: str) -> None:
    with pytest.raises(ConfigError) as caught:
        RedisBroker.from_url(url, "x")
    kinds = "redis://, rediss://, unix://, redis+sentinel:// or rediss+sentinel://"
    assert str(caught.value) == f"the Redis address {url} is not usable: it must begin with {kinds}"
