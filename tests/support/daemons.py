"""Processes that outlive the one that starts them: each has a log, and a pid file by which another one ends it."""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections.abc import Sequence
from pathlib import Path

PATIENCE_SECONDS = 20


class Daemons:
    """All daemons of one folder, in the order of their start."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._pids = folder / "pids"

    def start(self, command: Sequence[str], name: str | None = None, env: dict[str, str] | None = None) -> int:
        """Returns its pid."""
        name = name or Path(command[0]).name
        self._pids.mkdir(parents=True, exist_ok=True)
        to_log = (os.POSIX_SPAWN_OPEN, 1, str(self.log(name)), os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
        files = [(os.POSIX_SPAWN_OPEN, 0, os.devnull, os.O_RDONLY, 0), to_log, (os.POSIX_SPAWN_DUP2, 1, 2)]
        env = dict(os.environ) if env is None else env
        pid = os.posix_spawn(command[0], command, env, file_actions=files, setsid=True, setsigmask=())
        # The time is the order; the program tells this process from one that got its number later.
        (self._pids / f"{time.monotonic_ns():020}.{name}").write_text(f"{pid} {command[0]}")
        return pid

    def log(self, name: str) -> Path:
        return self.folder / f"{name}.log"

    def check(self) -> None:
        """Raise AssertionError when one has ended, with the end of its log."""
        for file in self._files():
            if _running(file) is None:
                name = _name(file)
                raise AssertionError(f"{name} has ended:\n{self.log(name).read_text(errors='replace')[-3000:]}")

    def pid(self, name: str) -> int | None:
        return next((pid for file in self._files() if _name(file) == name and (pid := _running(file))), None)

    def stop(self, name: str | None = None, by: signal.Signals = signal.SIGTERM) -> None:
        """One of them, or all, the last first; whoever does not obey within 20 s is killed."""
        for file in reversed(self._files()):
            if name in (None, _name(file)):
                _end(file, by)
                file.unlink()

    def _files(self) -> list[Path]:
        return sorted(self._pids.glob("*.*")) if self._pids.is_dir() else []


def _name(file: Path) -> str:
    return file.name.partition(".")[2]


def _running(file: Path) -> int | None:
    """The pid, if this program still runs under it."""
    pid, program = file.read_text().split(" ", 1)
    with contextlib.suppress(ChildProcessError):
        os.waitpid(int(pid), os.WNOHANG)  # ours that ended is a zombie until somebody asks
    return int(pid) if _program(int(pid)).startswith(os.path.realpath(program)) else None


def _program(pid: int) -> str:
    """Not by its command line, which is empty in the first moment."""
    try:
        return os.readlink(f"/proc/{pid}/exe")
    except OSError:
        return ""  # it has ended


def command_line(pid: int) -> list[str]:
    """Empty when there is no such process, or only what is left of it."""
    try:
        return [word.decode(errors="replace") for word in Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")[:-1]]
    except OSError:
        return []


def _end(file: Path, by: signal.Signals) -> None:
    for number in (by, signal.SIGKILL):
        deadline = time.monotonic() + PATIENCE_SECONDS
        if (pid := _running(file)) is None:
            return
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, number)
        while _running(file) is not None and time.monotonic() < deadline:
            time.sleep(0.02)
