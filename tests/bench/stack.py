"""What the whole stack adds to the engine alone: rounds of both in turn, on the same picture and question.

    python tests/bench/stack.py [--model tiny|DIR] [--rounds N]

Prints JSON. Times are medians over the rounds. CPU is that of all processes of the server, per answered token.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from support.server import Server, running

PICTURE = Path(__file__).parents[1] / "data" / "pictures" / "circle-and-square.png"
QUESTION = "Describe the picture."
# Both do the whole work each time: no answer is kept, nor what was computed for it.
NOTHING_KEPT = {"VISIONCHAT_CACHE_TTL_SECONDS": "0", "VISIONCHAT_PICTURE_CACHE_BYTES": "0"}


def measure(model: str, rounds: int, max_tokens: int, dtype: str) -> dict[str, Any]:
    threads = len(os.sched_getaffinity(0))
    command = [sys.executable, str(Path(__file__).parent / "alone.py"), model, str(threads), dtype]
    began = time.monotonic()
    with (
        tempfile.TemporaryDirectory() as data,
        running(Path(data), "--model", model, "--dtype", dtype, environ=NOTHING_KEPT) as server,
    ):
        cold_start = time.monotonic() - began
        engine = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        try:
            load = _reply(engine)["ready"]
            alone, stack = _rounds(engine, server, rounds, max_tokens)
            memory = {
                "engine alone": _peak([engine.pid]),
                "whole stack": _peak([server.process.pid, *server.children()]),
            }
        finally:
            assert engine.stdin is not None
            engine.stdin.close()
            engine.wait()
    return _report(model, alone, stack, memory, cold_start, load)


def _rounds(
    engine: subprocess.Popen[str], server: Server, rounds: int, max_tokens: int
) -> tuple[list[dict[str, float]], list[dict[str, float]]]:
    alone, stack = [], []
    for number in range(rounds + 1):
        one, other = _ask_engine(engine, max_tokens), _ask_server(server, max_tokens)
        if number:  # the first round warms both
            alone.append(one)
            stack.append(other)
    return alone, stack


def _ask_engine(engine: subprocess.Popen[str], max_tokens: int) -> dict[str, float]:
    assert engine.stdin is not None
    print(json.dumps({"picture": str(PICTURE), "question": QUESTION, "max_tokens": max_tokens}), file=engine.stdin)
    engine.stdin.flush()
    return _reply(engine)


def _reply(engine: subprocess.Popen[str]) -> Any:
    assert engine.stdout is not None
    return json.loads(engine.stdout.readline())


def _ask_server(server: Server, max_tokens: int) -> dict[str, float]:
    from visionchat_serve import client

    pids = [server.process.pid, *server.children()]
    before, timing = _cpu_seconds(pids), client.Timing()
    for _ in client.ask(server.url, [PICTURE], QUESTION, timing, max_tokens=max_tokens, temperature=0):
        pass
    first = timing.first_token or 0.0
    per_token = (timing.total - first) / max(1, timing.tokens - 1)
    return {"first_token": first, "per_token": per_token, "cpu": _cpu_seconds(pids) - before, "tokens": timing.tokens}


def _cpu_seconds(pids: list[int]) -> float:
    ticks = 0
    for pid in pids:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        ticks += int(fields[11]) + int(fields[12])
    return ticks / os.sysconf("SC_CLK_TCK")


def _peak(pids: list[int]) -> float:
    """Sum of the processes' peak resident memory, in GB; shared pages count once a process."""
    kilobytes = 0
    for pid in pids:
        for line in Path(f"/proc/{pid}/status").read_text().splitlines():
            if line.startswith("VmHWM:"):
                kilobytes += int(line.split()[1])
    return kilobytes / 1e6


def _report(
    model: str,
    alone: list[dict[str, float]],
    stack: list[dict[str, float]],
    memory: dict[str, float],
    cold_start: float,
    load: float,
) -> dict[str, Any]:
    def median(of: list[dict[str, float]], key: str) -> float:
        return statistics.median(one[key] for one in of)

    def per_token_cpu(of: list[dict[str, float]]) -> float:
        return statistics.median(one["cpu"] / one["tokens"] for one in of)

    return {
        "model": model,
        "rounds": len(alone),
        "tokens_an_answer": median(stack, "tokens"),
        "first_token_ms": {"engine": 1000 * median(alone, "first_token"), "stack": 1000 * median(stack, "first_token")},
        "added_to_first_token_ms": 1000 * (median(stack, "first_token") - median(alone, "first_token")),
        "per_token_ms": {"engine": 1000 * median(alone, "per_token"), "stack": 1000 * median(stack, "per_token")},
        "added_per_token_ms": 1000 * (median(stack, "per_token") - median(alone, "per_token")),
        "cpu_ms_per_token": {"engine": 1000 * per_token_cpu(alone), "stack": 1000 * per_token_cpu(stack)},
        "cpu_share_added": per_token_cpu(stack) / per_token_cpu(alone) - 1,
        "peak_memory_gb": memory,
        "cold_start_to_ready_s": cold_start,
        "engine_load_and_warm_up_s": load,
    }


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", default="tiny")
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--max-tokens", type=int, default=24)
    parser.add_argument("--dtype", default="auto")
    args = parser.parse_args()
    print(json.dumps(measure(args.model, args.rounds, args.max_tokens, args.dtype), indent=2))
