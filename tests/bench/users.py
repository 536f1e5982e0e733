"""Several users at once: VisionChat against the naive server (`naive.py`), one after the other.

    python tests/bench/users.py [--model tiny|DIR] [--dtype D] [--users 1,2,8,16] [--each N] [--max-tokens N]

Each user asks about a picture of their own, waits for the whole answer, and asks again, `--each` times. Prints JSON.
The naive server answers whole, so its first token comes with its last. Context switches are the machine's, memory is
that of the server's processes.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx

from support.memory import ResidentMemory
from support.pictures import data_url, shapes
from support.server import running

QUESTION = "Describe the picture."
LONGEST_ANSWER = 900  # seconds; a user who waits longer has failed


@dataclass
class Under:
    """A server under test: where it is and which processes it consists of."""

    url: str
    model: str
    pids: list[int]


@dataclass
class Tally:
    first: list[float] = field(default_factory=list)
    failures: int = 0


@contextmanager
def visionchat(model: str, dtype: str) -> Iterator[Under]:
    """It does the whole work for each question, as the other does: nothing is kept of the one before."""
    environ = {"VISIONCHAT_PICTURE_CACHE_BYTES": "0"}
    flags = ("--model", model, "--dtype", dtype)
    with tempfile.TemporaryDirectory() as data, running(Path(data), *flags, environ=environ) as server:
        name = httpx.get(f"{server.url}/v1/models").json()["data"][0]["id"]
        yield Under(server.url, name, [server.process.pid, *server.children()])


@contextmanager
def naive(model: str, dtype: str) -> Iterator[Under]:
    command = [sys.executable, str(Path(__file__).parent / "naive.py"), "--model", model, "--dtype", dtype]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        yield Under(process.stdout.readline().strip(), "any", [process.pid])
    finally:
        process.kill()
        process.wait()


def ask(http: httpx.Client, server: Under, url: str, max_tokens: int) -> float:
    """Seconds to the first piece of the answer; the whole answer has been read."""
    content = [{"type": "image_url", "image_url": {"url": url}}, {"type": "text", "text": QUESTION}]
    body = {"model": server.model, "messages": [{"role": "user", "content": content}], "max_tokens": max_tokens}
    began, first = time.monotonic(), 0.0
    with http.stream("POST", f"{server.url}/v1/chat/completions", json=body | SAMPLING, headers=FRESH) as response:
        response.raise_for_status()
        for line in response.iter_lines():
            if '"content"' in line and not first:
                first = time.monotonic() - began
    if not first:
        raise httpx.ReadError("the answer was empty")
    return first


SAMPLING = {"stream": True, "temperature": 0}
FRESH = {"Cache-Control": "no-cache"}  # each answer is made, none is one that was kept


def load(server: Under, users: int, each: int, max_tokens: int) -> dict[str, Any]:
    tally, lock = Tally(), threading.Lock()

    def user(number: int) -> None:
        url = data_url(shapes(number))
        with httpx.Client(timeout=LONGEST_ANSWER) as http:
            for _ in range(each):
                try:
                    first = ask(http, server, url, max_tokens)
                except httpx.HTTPError:
                    with lock:
                        tally.failures += 1
                else:
                    with lock:
                        tally.first.append(first)

    with ResidentMemory(server.pids) as memory:
        switches, began = context_switches(), time.monotonic()
        with ThreadPoolExecutor(users) as pool:
            list(pool.map(user, range(users)))
        seconds = time.monotonic() - began
        switches = context_switches() - switches
    if not tally.first:
        raise RuntimeError(f"{server.url} answered nothing")
    return {
        "users": users,
        "answers": len(tally.first),
        "failures": tally.failures,
        "answers_per_minute": 60 * len(tally.first) / seconds,
        "first_token_s": {"p50": statistics.median(tally.first), "p99": percentile(tally.first, 0.99)},
        "context_switches_per_s": switches / seconds,
        "peak_memory_gb": memory.peak_gb,
    }


def percentile(values: list[float], share: float) -> float:
    return sorted(values)[min(len(values) - 1, int(share * len(values)))]


def context_switches() -> int:
    """Of the whole machine since it started."""
    lines = Path("/proc/stat").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("ctxt "))


def main(model: str, dtype: str, users: list[int], each: int, max_tokens: int) -> dict[str, Any]:
    report: dict[str, Any] = {"model": model, "each": each, "max_tokens": max_tokens}
    for name, start in (("naive", naive), ("visionchat", visionchat)):
        with start(model, dtype) as server:
            load(server, 1, 1, 2)  # warms both
            report[name] = [load(server, count, each, max_tokens) for count in users]
    return report


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", default="tiny")
    parser.add_argument("--dtype", default="auto")
    parser.add_argument("--users", default="1,2,8,16")
    parser.add_argument("--each", type=int, default=8)
    parser.add_argument("--max-tokens", type=int, default=16)
    args = parser.parse_args()
    os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")
    counts = [int(count) for count in args.users.split(",")]
    print(json.dumps(main(args.model, args.dtype, counts, args.each, args.max_tokens), indent=2))
