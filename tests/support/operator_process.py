"""The operator as users run it: a process of its own, with a log."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import httpx

from support.control_plane import environment, free_ports


class OperatorProcess:
    """`start`, `kill` (-9), `stop` (SIGTERM)."""

    def __init__(self, kubeconfig: Path, namespace: str | None, log: Path, flags: Sequence[str]) -> None:
        (self.port,) = free_ports(1)
        command = [sys.executable, "-m", "visionchat_operator.cli", "run", "--kubeconfig", str(kubeconfig)]
        command += ["--namespace", namespace] if namespace else []
        self._command = [*command, "--host", "127.0.0.1", "--port", str(self.port), *flags]
        self._log = log

    def start(self) -> None:
        with open(self._log, "ab") as log:
            self._process = subprocess.Popen(self._command, stdout=log, stderr=log, env=environment())

    def kill(self) -> None:
        self._process.kill()
        self._process.wait()

    def stop(self) -> int:
        if self._process.poll() is None:
            self._process.send_signal(signal.SIGTERM)
        try:
            return self._process.wait(20)
        except subprocess.TimeoutExpired:
            self.kill()
            raise

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def alive(self) -> bool:
        return self._process.poll() is None

    def log(self) -> str:
        return self._log.read_text()

    def page(self, path: str) -> httpx.Response:
        return httpx.get(f"http://127.0.0.1:{self.port}{path}", timeout=10, trust_env=False)

    def metric(self, name: str, **labels: str) -> float:
        """Sum of the samples of a metric with these labels."""
        wanted = [f'{key}="{value}"' for key, value in labels.items()]
        lines = [line for line in self.page("/metrics").text.splitlines() if line.startswith((f"{name}{{", f"{name} "))]
        return sum(float(line.rsplit(" ", 1)[1]) for line in lines if all(label in line for label in wanted))
