"""Addresses with TLS and with Sentinels, on real servers of each kind that listen on loopback."""

from __future__ import annotations

import datetime
import ipaddress
import socket
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID
from redis import Redis
from redis.exceptions import RedisError

from contract.queues import SERVERS
from support.waiting import wait_until
from visionchat_serve.errors import ConfigError, Unavailable
from visionchat_serve.messages import Finish
from visionchat_serve.redis_broker import RedisBroker

NOW = datetime.timedelta(0)
SOON = datetime.timedelta(seconds=3)

Launch = Callable[..., int]


@pytest.fixture
def launch(server_name: str, tmp_path: Path) -> Iterator[Launch]:
    """Starts a redis-server with these lines of configuration on a free port (`{port}` in them); the port."""
    processes: list[subprocess.Popen[bytes]] = []

    def start(*lines: str, sentinel: bool = False) -> int:
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port: int = probe.getsockname()[1]
        folder = tmp_path / str(port)
        folder.mkdir()
        text = "\n".join(["bind 127.0.0.1", f"dir {folder}", "logfile log", *lines]).replace("{port}", str(port))
        (folder / "redis.conf").write_text(text)
        command = [str(SERVERS[server_name]), str(folder / "redis.conf"), *(["--sentinel"] if sentinel else [])]
        processes.append(subprocess.Popen(command))
        return port

    yield start
    for process in processes:
        process.kill()
        process.wait()


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
def certificates(tmp_path: Path) -> tuple[Path, Path, Path]:
    """Of an authority, of a server at 127.0.0.1 that it signed, and that server's key; as PEM files."""
    authority_key, key = ec.generate_private_key(ec.SECP256R1()), ec.generate_private_key(ec.SECP256R1())
    authority = certificate("authority", authority_key, "authority", authority_key, is_authority=True)
    server = certificate("server", key, "authority", authority_key, is_authority=False)
    pem = serialization.Encoding.PEM
    plain = serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    files = tmp_path / "ca.crt", tmp_path / "server.crt", tmp_path / "server.key"
    contents = authority.public_bytes(pem), server.public_bytes(pem), key.private_bytes(pem, *plain)
    for file, content in zip(files, contents, strict=True):
        file.write_bytes(content)
    return files


def certificate(
    name: str, key: ec.EllipticCurvePrivateKey, issuer: str, by: ec.EllipticCurvePrivateKey, *, is_authority: bool
) -> x509.Certificate:
    def named(text: str) -> x509.Name:
        return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, text)])

    today = datetime.datetime.now(datetime.UTC)
    return (
        x509.CertificateBuilder()
        .subject_name(named(name))
        .issuer_name(named(issuer))
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(today - datetime.timedelta(days=1))
        .not_valid_after(today + datetime.timedelta(days=1))
        .add_extension(x509.BasicConstraints(is_authority, None), critical=True)
        .add_extension(x509.SubjectAlternativeName([x509.IPAddress(ipaddress.ip_address("127.0.0.1"))]), critical=False)
        .sign(by, hashes.SHA256())
    )


def tls(certificates: tuple[Path, Path, Path]) -> list[str]:
    authority, server, key = certificates
    return [
        "port 0",
        "tls-port {port}",
        f"tls-ca-cert-file {authority}",
        f"tls-cert-file {server}",
        f"tls-key-file {key}",
        "tls-auth-clients no",
        "tls-replication yes",
    ]


@pytest.fixture
def with_tls(server_name: str) -> None:
    """Not every build of Redis speaks TLS: the one in the PyPI package does not."""
    command = [str(SERVERS[server_name]), "--port", "0", "--tls-port", "0", "--no-such-directive"]
    said = subprocess.run(command, capture_output=True, text=True, timeout=10)
    if ">>> 'tls-port" in said.stdout + said.stderr:
        pytest.skip(f"{server_name} was built without TLS")


@pytest.mark.usefixtures("with_tls")
async def test_tls(launch: Launch, certificates: tuple[Path, Path, Path], make_job: Any) -> None:
    port = launch(*tls(certificates), "requirepass s3cret")
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
        with pytest.raises(Unavailable, match="check that Redis") as caught:
            await refused.ping()
        assert "s3cret" not in str(caught.value)
        await refused.close()


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


@pytest.mark.usefixtures("with_tls")
async def test_sentinels_with_tls(launch: Launch, certificates: tuple[Path, Path, Path], make_job: Any) -> None:
    port = launch(*tls(certificates))
    ours = {"ssl": True, "ssl_ca_certs": str(certificates[0])}
    await answers(port, **ours)
    sentinel = launch(*tls(certificates), f"sentinel monitor main 127.0.0.1 {port} 1", sentinel=True)
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
    with pytest.raises(Unavailable, match="nobody") as caught:
        await broker.ping()
    assert "s3cret" not in str(caught.value)
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
