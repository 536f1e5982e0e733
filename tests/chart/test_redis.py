"""The Redis of the chart, started as its container would be: the rendered command and configuration, a real server."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from redis import Redis
from redis.exceptions import AuthenticationError

from support.chart import template, the
from support.control_plane import free_ports
from support.waiting import wait_until
from visionchat_serve.redis_server import find_servers

PASSWORD = "a-password.of_ours~"
FOLDERS = {"/etc/visionchat-secret": "secret", "/etc/visionchat": "config", "/run/visionchat": "run", "/data": "data"}


class Container:
    """The container `redis` with its paths below `folder`, on `port` of loopback."""

    def __init__(self, folder: Path, port: int) -> None:
        self.port = port
        self._folder = folder
        objects = template({"redis.password": PASSWORD, "redis.config": f"port {port}\nbind 127.0.0.1"})
        (spec,) = the("StatefulSet", "visionchat-redis", objects)["spec"]["template"]["spec"]["containers"]
        self._spec: dict[str, Any] = spec
        for name in FOLDERS.values():
            (folder / name).mkdir()
        (folder / "secret" / "password").write_text(
            the("Secret", "visionchat-redis", objects)["stringData"]["password"]
        )
        config = the("ConfigMap", "visionchat-redis", objects)["data"]["redis.conf"]
        (folder / "config" / "redis.conf").write_text(self._here(config))

    def _here(self, text: str) -> str:
        for inside, name in FOLDERS.items():
            text = text.replace(inside, str(self._folder / name))
        return text.replace("redis-cli ", f"redis-cli -p {self.port} ")

    def start(self) -> subprocess.Popen[bytes]:
        command = [self._here(word) for word in (*self._spec["command"], *self._spec["args"])]
        return subprocess.Popen(command, env=self._env(), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)

    def ready(self) -> bool:
        probe = [self._here(word) for word in self._spec["readinessProbe"]["exec"]["command"]]
        return subprocess.run(probe, env=self._env(), capture_output=True, timeout=10, check=False).returncode == 0

    def _env(self) -> dict[str, str]:
        server, _ = next(find_servers())
        return os.environ | {"PATH": f"{server.parent}:{os.environ['PATH']}"}


def command_line(process: subprocess.Popen[bytes]) -> str:
    return Path(f"/proc/{process.pid}/cmdline").read_text()


@pytest.fixture
def container(tmp_path: Path) -> Container:
    (port,) = free_ports(1)
    return Container(tmp_path, port)


@pytest.fixture
def running(container: Container) -> Iterator[subprocess.Popen[bytes]]:
    process = container.start()
    yield process
    process.kill()
    process.wait()


async def test_it_starts_with_its_password_and_keeps_all(
    container: Container, running: subprocess.Popen[bytes]
) -> None:
    await wait_until(container.ready, "the readiness probe passes")
    with Redis("127.0.0.1", container.port, password=PASSWORD) as redis:
        told = {name: redis.config_get(name)[name] for name in ("appendonly", "appendfsync", "maxmemory-policy")}
        assert told == {"appendonly": "yes", "appendfsync": "everysec", "maxmemory-policy": "noeviction"}
        assert redis.config_get("maxmemory") == {"maxmemory": str(512 * 1024 * 1024)}
    with Redis("127.0.0.1", container.port) as redis, pytest.raises(AuthenticationError):
        redis.ping()
    assert PASSWORD not in command_line(running)


def test_it_is_not_ready_before(container: Container) -> None:
    assert not container.ready()
