"""`make sim`: the operator's scaling against other rules on the same loads, as a Markdown table.

python tests/sim/run.py [--write]     --write keeps the table in tests/sim/results.md, from where `make generate` takes
                                      it into the README
python tests/sim/run.py --seeds N     the same loads, N times by other chances: how often ours is better (minutes)
"""

from __future__ import annotations

import argparse
import sys
from functools import cache
from pathlib import Path

sys.path[:0] = [str(Path(__file__).resolve().parents[1])]

from sim.rivals import Keda, KubernetesHpa, RayServe  # noqa: E402
from sim.simulate import MOST, START_UP, TARGET, Ours, Outcome, Theirs, simulate  # noqa: E402
from sim.traces import SEED, SERVICE_MEDIAN, Trace, traces  # noqa: E402

RESULTS = Path(__file__).with_name("results.md")
PINNED = {"pinning": {"mode": "QueueDepth"}}


@cache
def outcomes(trace: Trace) -> dict[str, Outcome]:
    """By rule; those that cannot run from zero are left out where that is asked for."""
    low = trace.min_replicas
    found = {
        "VisionChat": simulate(trace, Ours(low)),
        "VisionChat, pinning by depth": simulate(trace, Ours(low, **PINNED)),
    }
    for rule in (KubernetesHpa(TARGET, low, MOST), Keda(TARGET, low, MOST), RayServe(TARGET, low, MOST)):
        if low > 0 or rule.from_zero:
            found[rule.name] = simulate(trace, Theirs(rule))
    return found


def table() -> str:
    lines = [
        f"Start-up {START_UP} s, answers of {SERVICE_MEDIAN:g} s (median), one at a time; {TARGET} jobs per replica "
        f"aimed at, {MOST} replicas at most; every rule with its defaults.",
        "",
        "| load | rule | mean wait, s | p95 wait, s | replica-seconds | changes | mode changes |",
        "|---|---|---:|---:|---:|---:|---:|",
    ]
    for trace in traces():
        for number, (name, it) in enumerate(outcomes(trace).items()):
            load = f"**{trace.name}**: {trace.about}" if number == 0 else ""
            mean = sum(it.waits) / len(it.waits)
            cells = f"{mean:.1f} | {it.wait(0.95):.1f} | {it.replica_seconds} | {it.changes} | {it.mode_changes}"
            lines.append(f"| {load} | {name} | {cells} |")
    return "\n".join([*lines, "", "Made by `make sim`.", ""])


def comparison(seeds: int) -> str:
    """Ours against each rule on each load, over so many seeds after the table's."""
    pairs = [
        (ours, theirs)
        for seed in range(SEED + 1, SEED + 1 + seeds)
        for ours, *others in (_without_pinning(trace) for trace in traces(seed))
        for theirs in others
    ]
    waits = sum(sum(ours.waits) / len(ours.waits) < sum(it.waits) / len(it.waits) for ours, it in pairs)
    late = sum(ours.wait(0.95) < it.wait(0.95) for ours, it in pairs)
    cost = sum(ours.replica_seconds <= it.replica_seconds for ours, it in pairs)
    less = f"mean wait is less in {waits}, the p95 wait in {late}, the replica-seconds are no more in {cost}"
    return f"Of {len(pairs)} comparisons over {seeds} other seeds, ours: the {less}."


def _without_pinning(trace: Trace) -> list[Outcome]:
    return [outcome for name, outcome in outcomes(trace).items() if "pinning" not in name]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--write", action="store_true", help="keep the table")
    parser.add_argument("--seeds", type=int, metavar="N", help="compare on N other seeds")
    args = parser.parse_args()
    if args.seeds:
        print(comparison(args.seeds))
        return 0
    text = table()
    print(text)
    if args.write:
        RESULTS.write_text(text, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
