"""The process of a pod: becomes Ray's head or a worker that joins it.

python -m visionchat_serve.ray_node head|worker

Replaces itself by `ray start --block`, so that Ray is the container's first process and drains when the pod is told to
stop. All ports are fixed, so that a NetworkPolicy can name them. The head keeps its cluster's state in the queue's
Redis and takes it up again when it is re-created. Behind Sentinels a second process ends Ray after a failover, so that
the container starts again, with the new master.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import os
import signal
import sys
import time
from collections.abc import Mapping, Sequence
from datetime import timedelta
from urllib.parse import SplitResult, parse_qs, unquote, urlsplit

from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff
from redis.exceptions import RedisError

from visionchat_serve.config import Settings, load_settings
from visionchat_serve.connection import address
from visionchat_serve.errors import ConfigError
from visionchat_serve.redis_address import master

SLOT, GATEWAY = "visionchat_replica", "visionchat_gateway"
OBJECT_STORE_BYTES = 80_000_000  # Ray's smallest; nothing of ours goes through it
SENTINEL_PATIENCE = 5.0  # seconds
SENTINELS_SILENT = (RedisError, OSError, ValueError)
ASK_EVERY = timedelta(seconds=2)
CERTIFICATES = {
    "ssl_ca_certs": "RAY_REDIS_CA_CERT",
    "ssl_ca_path": "RAY_REDIS_CA_PATH",
    "ssl_certfile": "RAY_REDIS_CLIENT_CERT",
    "ssl_keyfile": "RAY_REDIS_CLIENT_KEY",
}
PORTS = (
    "--node-manager-port=6380",
    "--object-manager-port=6381",
    "--dashboard-agent-listen-port=52365",
    "--dashboard-agent-grpc-port=52366",
    "--runtime-env-agent-port=52367",
    "--metrics-export-port=8080",
    "--min-worker-port=10002",
    "--max-worker-port=19999",
)


def command(role: str, environ: Mapping[str, str]) -> tuple[list[str], dict[str, str]]:
    """What to run, and the environment to add. Raises `ConfigError`."""
    settings = load_settings(environ=environ)
    common = [
        "ray",
        "start",
        "--block",
        "--disable-usage-stats",
        f"--node-ip-address={environ['POD_IP']}",
        f"--object-store-memory={OBJECT_STORE_BYTES}",
        "--include-log-monitor=False",
        *PORTS,
    ]
    if role == "worker":
        # Always said: Ray's own count ignores the CPUs that the kubelet gave to this pod.
        mine = [f"--num-cpus={settings.cpus or 1}", f'--resources={{"{SLOT}": 1}}']
        return [*common, f"--address={environ['RAY_HEAD_ADDRESS']}", *mine], {}
    storage, flags = _storage(settings)
    head = ["--head", "--port=6379", "--dashboard-host=0.0.0.0", "--dashboard-port=8265", "--no-monitor"]
    return [*common, *head, "--num-cpus=0", f'--resources={{"{GATEWAY}": 1}}', *flags], storage


def _storage(settings: Settings) -> tuple[dict[str, str], list[str]]:
    """Ray's own words for the Redis that keeps the cluster's state. Asks the Sentinels, if any."""
    if settings.redis_url is None:
        raise ConfigError("VISIONCHAT_REDIS_URL is not set; the head keeps its cluster's state in Redis")
    url = address(settings)
    parts = urlsplit(url)
    host, port = _place(url, parts)
    who = parts.netloc.rpartition("@")[0]
    user, _, password = (unquote(word) for word in who.partition(":"))
    flags = [f"--redis-password={password}"] if password else []
    flags += [f"--redis-username={user}"] if user else []
    scheme = "rediss://" if parts.scheme.startswith("rediss") else ""
    return {"RAY_REDIS_ADDRESS": f"{scheme}{host}:{port}", **_certificates(parts.query)}, flags


def _place(url: str, parts: SplitResult) -> tuple[str, int]:
    """Host and port of the Redis, which for Ray is one server for ever."""
    if parts.scheme.endswith("+sentinel"):
        try:
            return _master(url)
        except SENTINELS_SILENT as error:
            raise ConfigError(f"the Sentinels do not say where Redis is: {error}") from error
    if parts.scheme not in ("redis", "rediss") or parts.hostname is None:
        raise ConfigError(f"Ray's head cannot keep its state behind {parts.scheme}://; redis:// and rediss:// it knows")
    return parts.hostname, parts.port or 6379


def _master(url: str) -> tuple[str, int]:
    return asyncio.run(master(url, socket_timeout=SENTINEL_PATIENCE, retry=Retry(NoBackoff(), 0)))


def end_after_failover(url: str, place: str, ray: int) -> None:
    """Send SIGTERM to the process `ray`, our parent, as soon as the Sentinels name another master than `place`.

    Ray ends by itself when its Redis is gone, but not when that one is only a read-only replica from now on. Returns
    when the parent has ended.
    """
    while os.getppid() == ray:
        time.sleep(ASK_EVERY.total_seconds())
        with contextlib.suppress(*SENTINELS_SILENT):
            host, port = _master(url)
            if f"{host}:{port}" != place:
                print(f"ray_node: Redis is at {host}:{port} now; Ray has to start again", file=sys.stderr, flush=True)
                os.kill(ray, signal.SIGTERM)
                return


def _certificates(query: str) -> dict[str, str]:
    """Ray's names for redis-py's arguments."""
    given = parse_qs(query)
    return {ours: given[theirs][0] for theirs, ours in CERTIFICATES.items() if theirs in given}


def _watch_sentinels(place: str) -> None:
    """In a process beside this one, which becomes Ray. Nothing where there are no Sentinels."""
    url, ray = address(load_settings()), os.getpid()
    if urlsplit(url).scheme.endswith("+sentinel") and os.fork() == 0:
        end_after_failover(url, place, ray)
        os._exit(0)


def main(argv: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("role", choices=("head", "worker"))
    role = parser.parse_args(argv).role
    try:
        run, extra = command(role, os.environ)
    except ConfigError as error:
        parser.exit(2, f"ray_node: {error.message}\n")
    if role == "head":
        _watch_sentinels(extra["RAY_REDIS_ADDRESS"].removeprefix("rediss://"))
    os.execvpe(run[0], run, {**os.environ, **extra})  # noqa: S606 - no shell is meant


if __name__ == "__main__":
    main()
