"""Everything that is measured, as Markdown tables: `make bench`. Nothing else should run meanwhile.

The full-size checkpoint is written once, to $VISIONCHAT_FULL_SIZE_CHECKPOINT or the user's cache folder (4.3 GB).
"""

from __future__ import annotations

import json
import os
import platform
import subprocess
import sys
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent


def main() -> None:
    folder = full_size_checkpoint()
    print(f"{platform.processor() or platform.machine()}, {len(os.sched_getaffinity(0))} CPUs\n", flush=True)
    engines = [
        run("engine.py", "--rounds", "15", "--max-tokens", "32"),
        run("engine.py", "--model", str(folder), "--dtype", "bfloat16", "--rounds", "3", "--max-tokens", "12"),
    ]
    print(engine_table(engines), flush=True)
    asking_on = [
        run("asking_on.py", "--rounds", "30"),
        run("asking_on.py", "--model", str(folder), "--dtype", "bfloat16", "--rounds", "3"),
    ]
    print(asking_on_table(asking_on), flush=True)
    stacks = [
        run("stack.py", "--rounds", "30"),
        run("stack.py", "--model", str(folder), "--dtype", "bfloat16", "--rounds", "4", "--max-tokens", "16"),
    ]
    print(stack_table(stacks), flush=True)
    print(queue_table(run("queue_costs.py")), flush=True)
    users = [
        run("users.py", "--each", "20", "--max-tokens", "16"),
        run("users.py", "--model", str(folder), "--dtype", "bfloat16", "--each", "1", "--max-tokens", "16"),
    ]
    print(users_table(users), flush=True)


def full_size_checkpoint() -> Path:
    """The folder, written if it is not there."""
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "visionchat" / "qwen3-vl-2b-random"
    folder = Path(os.environ.get("VISIONCHAT_FULL_SIZE_CHECKPOINT") or cache)
    if not (folder / "config.json").exists():
        subprocess.run([sys.executable, HERE / "checkpoint.py", folder], check=True, env=_environ())
    return folder


def run(script: str, *arguments: str) -> dict[str, Any]:
    command = [sys.executable, str(HERE / script), *arguments]
    output = subprocess.run(command, check=True, env=_environ(), stdout=subprocess.PIPE, text=True).stdout
    report: dict[str, Any] = json.loads(output[output.index("{") :])
    return report


def _environ() -> dict[str, str]:
    """The tests' support package is on the path; the settings of whoever measures are not."""
    plain = {key: value for key, value in os.environ.items() if not key.startswith("VISIONCHAT_")}
    return plain | {"PYTHONPATH": str(HERE.parent), "TRANSFORMERS_VERBOSITY": "error"}


def _name(report: dict[str, Any]) -> str:
    return "tiny" if report["model"] == "tiny" else "full size, random weights"


def table(head: str, rows: list[tuple[Any, ...]]) -> str:
    columns = head.count("|") - 1
    lines = [head, "|---" * columns + "|", *("| " + " | ".join(map(str, row)) + " |" for row in rows)]
    return "\n".join(lines) + "\n"


def engine_table(reports: list[dict[str, Any]]) -> str:
    rows = []
    for report in reports:
        for who in ("ours", "transformers"):
            one = report[who]
            peak = f"{report['peak_memory_gb']['at the end']:.2f}" if who == "ours" else ""
            load = f"{report['load_s']:.1f}" if who == "ours" else ""
            name = f"{_name(report)}, {report['dtype']}"
            rows.append((name, who, f"{one['first_token_ms']:.0f}", f"{one['per_token_ms']:.2f}", load, peak))
    return table("| model | loop | first token, ms | per later token, ms | load, s | peak memory, GB |", rows)


def asking_on_table(reports: list[dict[str, Any]]) -> str:
    rows = []
    for report in reports:
        times = report["first_token_ms"]
        rows.append((_name(report), "the first question about a picture", f"{times['first question']:.0f}", ""))
        for key, label in (
            ("another question", "another question about it"),
            ("conversation", f"the next after an answer of up to {report['answer_tokens']} tokens"),
        ):
            rows.append((_name(report), label, f"{times[f'{key}, anew']:.0f}", f"{times[f'{key}, known']:.0f}"))
    return table("| model | first token, ms | nothing known | picture known |", rows)


def stack_table(reports: list[dict[str, Any]]) -> str:
    rows = []
    for report in reports:
        memory = report["peak_memory_gb"]
        for who, label in (("engine", "engine alone"), ("stack", "whole stack")):
            rows.append(
                (
                    _name(report),
                    label,
                    f"{report['first_token_ms'][who]:.1f}",
                    f"{report['per_token_ms'][who]:.2f}",
                    f"{report['cpu_ms_per_token'][who]:.1f}",
                    f"{memory[label]:.2f}",
                    f"{report['engine_load_and_warm_up_s' if who == 'engine' else 'cold_start_to_ready_s']:.1f}",
                )
            )
        rows.append(
            (
                _name(report),
                "**added**",
                f"**{report['added_to_first_token_ms']:+.1f}**",
                f"**{report['added_per_token_ms']:+.2f}**",
                f"**{100 * report['cpu_share_added']:+.1f} %**",
                "",
                "",
            )
        )
    head = (
        "| model | | first token, ms | per later token, ms | CPU per token, ms | peak memory, GB | start to ready, s |"
    )
    return table(head, rows)


def queue_table(report: dict[str, Any]) -> str:
    rows: list[tuple[Any, ...]] = [
        (name, f"{report[key]['p50']:.2f} ms", f"{report[key]['p99']:.2f} ms")
        for name, key in (
            ("enqueue to claim by a replica that waits", "enqueue_to_claim_ms"),
            ("piece of answer from replica to gateway", "token_relay_ms"),
        )
    ]
    memory, renewal = report["redis_memory_per_job"], report["renewal"]
    rows += [
        ("Redis memory of a waiting job, without its pictures", f"{memory['waiting_kb']:.1f} kB", ""),
        ("Redis memory of an answered job, until it is forgotten", f"{memory['answered_kb']:.1f} kB", ""),
        (f"renewing {renewal['leases']} leases, Redis' CPU", f"{renewal['redis_cpu_us']:.0f} µs", ""),
    ]
    return table("| queue | p50 | p99 |", rows)


def users_table(reports: list[dict[str, Any]]) -> str:
    rows = []
    for report in reports:
        for naive, ours in zip(report["naive"], report["visionchat"], strict=True):
            for who, one in (("naive", naive), ("VisionChat", ours)):
                rows.append(
                    (
                        _name(report),
                        one["users"],
                        who,
                        f"{one['answers_per_minute']:.1f}",
                        f"{one['first_token_s']['p50']:.2f}",
                        f"{one['first_token_s']['p99']:.2f}",
                        f"{one['context_switches_per_s']:.0f}",
                        f"{one['peak_memory_gb']:.2f}",
                        one["failures"],
                    )
                )
    return table(
        "| model | users | server | answers/min | first token p50, s | p99, s | context switches/s "
        " | memory, GB | failures |",
        rows,
    )


if __name__ == "__main__":
    main()
