"""A whole VisionChat as a child process, for tests that ask it over HTTP."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

START_SECONDS = 120
STOP_SECONDS = 60


@dataclass
class Server:
    """`url` once it is ready; `log` is what it printed."""

    process: subprocess.Popen[str]
    url: str = ""
    log: list[str] = field(default_factory=list)

    def stop(self) -> int:
        """SIGTERM, then the exit code."""
        self.process.send_signal(signal.SIGTERM)
        return self.process.wait(STOP_SECONDS)

    def children(self) -> list[int]:
        """Pids of all living processes that descend from the server."""
        parents = dict(_parents())
        family = {self.process.pid}
        while new := {pid for pid, parent in parents.items() if parent in family} - family:
            family |= new
        return sorted(family - {self.process.pid})

    def children_named(self, name: str) -> list[int]:
        """Those whose command line starts with `name` (Ray names its workers `ray::Class`)."""
        return [pid for pid in self.children() if _command_line(pid).startswith(name)]


def _parents() -> Iterator[tuple[int, int]]:
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                stat = (entry / "stat").read_text()
            except OSError:
                continue
            yield int(entry.name), int(stat.rpartition(")")[2].split()[1])


def _command_line(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
    except OSError:
        return ""


def alive(pid: int) -> bool:
    """Whether the process is still there and no zombie."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


@contextmanager
def running(data_dir: Path, *flags: str, environ: dict[str, str] | None = None) -> Iterator[Server]:
    """`visionchat serve` on a free port until the block ends."""
    server = start(["serve", "--port", "0", "--data-dir", str(data_dir), *flags], environ)
    try:
        yield server
    finally:
        if server.process.poll() is None:
            server.stop()


def start(arguments: Sequence[str], environ: dict[str, str] | None = None) -> Server:
    """Start the command and wait for its ready line; fails with its log when that does not come."""
    command = [sys.executable, "-m", "visionchat_serve.cli", *arguments]
    process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True, env={**os.environ, **(environ or {})})
    server = Server(process)
    ready = threading.Event()

    def read() -> None:
        assert process.stderr is not None
        for line in process.stderr:
            server.log.append(line)
            if match := re.search(r"ready in .*? s: (http://\S+)", line):
                server.url = match[1]
                ready.set()
        ready.set()

    threading.Thread(target=read, daemon=True).start()
    if not ready.wait(START_SECONDS) or not server.url:
        process.terminate()
        process.wait(STOP_SECONDS)
        raise AssertionError("the server did not become ready:\n" + "".join(server.log))
    return server
