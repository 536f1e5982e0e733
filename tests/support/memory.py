"""How much memory processes hold, shared pages counted once in all (PSS), in GB."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from pathlib import Path


def proportional_gb(pid: int) -> float:
    """0 for a process that is gone."""
    try:
        lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
    except OSError:
        return 0.0
    return next((int(line.split()[1]) for line in lines if line.startswith("Pss:")), 0) / 1e6


class ResidentMemory:
    """Looks at some processes every `interval` seconds while the block runs; `samples` is what it saw, in GB."""

    def __init__(self, pids: Sequence[int], interval: float = 0.2) -> None:
        self.samples: list[float] = []
        self._pids, self._interval = pids, interval
        self._done = threading.Event()
        self._thread = threading.Thread(target=self._watch)

    @property
    def peak_gb(self) -> float:
        return max(self.samples)

    def __enter__(self) -> ResidentMemory:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._done.set()
        self._thread.join()

    def _watch(self) -> None:
        while True:
            self.samples.append(sum(map(proportional_gb, self._pids)))
            if self._done.wait(self._interval):
                return
