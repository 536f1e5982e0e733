"""`make chaos`: parts are killed with -9 while people ask; what was accepted must be answered, once and rightly.

    python tests/load/chaos.py [--replica-kills N] [--redis-kills N] [--gateway-kills N] [--rate R] [--seed S]

Real Redis, real Ray, the tiny model, two replicas. Requests of all kinds arrive at a steady rate, whether earlier ones
are answered or not (open loop). The next part is killed when the one before is back. Prints a table; exit code 1 if
anything was lost, doubled, spliced or torn.
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import os
import random
import signal
import sys
import tempfile
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
from redis import Redis

from load.asking import KINDS, Body, Outcome, ask
from support.pictures import data_url, shapes
from support.server import Server, alive, running
from visionchat_serve.redis_server import EmbeddedRedis

QUESTIONS = 12
PATIENCE = 240.0  # seconds for one answer; the longest stall is reported
BACK = 90.0  # seconds for a killed part to be replaced
REPLICA, GATEWAY = "ray::ServeReplica:visionchat:Model", "ray::ServeReplica:visionchat:Gateway"
FLAGS = {"VISIONCHAT_LEASE_SECONDS": "2"}


@dataclass
class Plan:
    replica_kills: int
    redis_kills: int
    gateway_kills: int
    rate: float  # requests a second
    seed: int = 0

    def victims(self) -> list[str]:
        victims = ["replica"] * self.replica_kills + ["redis"] * self.redis_kills + ["gateway"] * self.gateway_kills
        random.Random(self.seed).shuffle(victims)
        return victims


@dataclass
class Report:
    outcomes: list[Outcome] = field(default_factory=list)
    kills: Counter[str] = field(default_factory=Counter)
    slowest: dict[str, float] = field(default_factory=dict)  # seconds until a part was back
    seconds: float = 0.0

    @property
    def problems(self) -> list[str]:
        return [f"{outcome.kind}: {outcome.problem}" for outcome in self.outcomes if outcome.problem]

    def __str__(self) -> str:
        lines = ["| kind | accepted | answered rightly | asked again | longest, s |", "|---|---|---|---|---|"]
        for kind in KINDS:
            some = [outcome for outcome in self.outcomes if outcome.kind == kind]
            accepted, right = sum(o.accepted for o in some), sum(not o.problem for o in some)
            again = sum(o.tries > 1 for o in some)
            lines.append(
                f"| {kind} | {accepted} | {right} | {again} | {max((o.seconds for o in some), default=0):.1f} |"
            )
        kills = ", ".join(
            f"{count} x {part} (back after {self.slowest[part]:.1f} s at most)" for part, count in self.kills.items()
        )
        lines.append(f"\n{self.seconds:.0f} s; killed with -9: {kills}. Problems: {len(self.problems)}.")
        lines += [f"  {problem}" for problem in self.problems[:20]]
        return "\n".join(lines)


class Parts:
    """The living parts of one server, found and killed by name."""

    def __init__(self, server: Server, redis: EmbeddedRedis) -> None:
        self.server, self.redis = server, redis

    async def kill(self, part: str, http: httpx.AsyncClient) -> float:
        """Seconds until it was back."""
        began = time.monotonic()
        if part == "redis":
            with Redis.from_url(self.redis.url) as client:
                os.kill(int(client.info("server")["process_id"]), signal.SIGKILL)
        else:
            await self._kill_child(REPLICA if part == "replica" else GATEWAY)
        await until(lambda: self._ready(http), BACK, f"the {part} did not come back")
        return time.monotonic() - began

    async def _kill_child(self, name: str) -> None:
        before = self.server.children_named(name)
        os.kill(random.choice(before), signal.SIGKILL)

        async def is_replaced() -> bool:
            living = [pid for pid in self.server.children_named(name) if alive(pid)]
            return len(living) >= len(before) and living != before

        await until(is_replaced, BACK, f"{name} was not started again")

    async def _ready(self, http: httpx.AsyncClient) -> bool:
        try:
            return (await http.get("/readyz")).json() == {"ready": True, "replicas": 2}
        except (httpx.TransportError, ValueError):
            return False


async def until(condition: Any, patience: float, message: str) -> None:
    give_up_at = time.monotonic() + patience
    while not await condition():
        if time.monotonic() > give_up_at:
            raise AssertionError(message)
        await asyncio.sleep(0.1)


def questions(model: str) -> list[Body]:
    """Long and different answers, each the same every time: sampled hot, with a seed."""
    return [
        {
            "model": model,
            "messages": [
                {
                    "role": "user",
                    "content": [
                        {"type": "image_url", "image_url": {"url": data_url(shapes(number))}},
                        {"type": "text", "text": "Describe the picture."},
                    ],
                }
            ],
            "max_tokens": 20 + 20 * number,
            "temperature": 1.6,
            "seed": number,
        }
        for number in range(QUESTIONS)
    ]


async def run(parts: Parts, plan: Plan) -> Report:
    report = Report()
    limits = httpx.Limits(max_connections=None)
    async with httpx.AsyncClient(base_url=parts.server.url, timeout=60, limits=limits) as http:
        bodies = questions((await http.get("/v1/models")).json()["data"][0]["id"])
        expected = [await KINDS["whole"](http, body, {}, Outcome("", 0)) for body in bodies]
        began, over = time.monotonic(), asyncio.Event()

        async def arrive() -> None:
            kinds = itertools.cycle(KINDS)
            async with asyncio.TaskGroup() as asking:
                for number in itertools.count():
                    asking.create_task(one(next(kinds), number % QUESTIONS))
                    try:
                        await asyncio.wait_for(over.wait(), began + (number + 1) / plan.rate - time.monotonic())
                    except TimeoutError:
                        continue
                    return

        async def one(kind: str, number: int) -> None:
            report.outcomes.append(await ask(http, kind, bodies[number], expected[number], PATIENCE))

        async def kill() -> None:
            for part in plan.victims():
                took = await parts.kill(part, http)
                report.kills[part] += 1
                report.slowest[part] = max(report.slowest.get(part, 0.0), took)
            over.set()

        await asyncio.gather(arrive(), kill())
        report.seconds = time.monotonic() - began
    return report


def chaos(folder: Path, plan: Plan) -> Report:
    with (
        EmbeddedRedis(folder / "queue") as redis,
        running(folder, "--redis", redis.url, "--replicas", "2", "--cpus", "1", environ=FLAGS) as server,
    ):
        return asyncio.run(run(Parts(server, redis), plan))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--replica-kills", type=int, default=200)
    parser.add_argument("--redis-kills", type=int, default=50)
    parser.add_argument("--gateway-kills", type=int, default=20)
    parser.add_argument("--rate", type=float, default=4.0)
    parser.add_argument("--seed", type=int, default=0)
    with tempfile.TemporaryDirectory() as folder:
        report = chaos(Path(folder), Plan(**vars(parser.parse_args())))
    print(report)
    return 1 if report.problems else 0


if __name__ == "__main__":
    sys.exit(main())
