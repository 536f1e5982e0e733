"""`make load`: many users and many idle streams on one replica, for a while; nothing fails and nothing grows.

    python tests/load/steady.py [--minutes N] [--users N] [--idle N]

Users ask one question after the other, streamed. Beside them, idle streams follow jobs that a replica of this program
holds without saying a word. Prints what happened; exit code 1 if anything but 429 came back, `/healthz` was slow, or
memory grew.
"""

from __future__ import annotations

import argparse
import asyncio
import statistics
import sys
import tempfile
import time
import uuid
from collections import Counter
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path

import httpx

from support.memory import ResidentMemory
from support.pictures import data_url, shapes
from support.server import running
from visionchat_serve.broker import Broker
from visionchat_serve.config import Settings
from visionchat_serve.connection import connect
from visionchat_serve.messages import ChatJob, Claim, Message, SamplingParams, TextPart
from visionchat_serve.redis_server import EmbeddedRedis

SLOWEST_HEALTH = 0.1  # seconds, of 99 in 100
GROWTH = 1.05  # memory of the last quarter over that of the second


@dataclass
class Report:
    seconds: float
    users: int
    idle: int
    statuses: Counter[str] = field(default_factory=Counter)  # HTTP status, or the kind of failure
    first_token: list[float] = field(default_factory=list)
    health: list[float] = field(default_factory=list)
    memory: list[float] = field(default_factory=list)
    broken_streams: int = 0

    @property
    def growth(self) -> float:
        quarter = max(1, len(self.memory) // 4)
        return statistics.median(self.memory[-quarter:]) / statistics.median(self.memory[quarter : 2 * quarter])

    @property
    def problems(self) -> list[str]:
        slow = percentile(self.health, 0.99)
        return [
            *(f"{count} x {status}" for status, count in self.statuses.items() if status not in ("200", "429")),
            *([f"{self.broken_streams} idle streams ended"] if self.broken_streams else []),
            *([f"/healthz took {1000 * slow:.0f} ms (p99)"] if slow > SLOWEST_HEALTH else []),
            *([f"memory grew to {self.growth:.3f} of what it was"] if self.growth > GROWTH else []),
        ]

    def __str__(self) -> str:
        answers = self.statuses["200"]
        rows = [
            ("users, idle streams, minutes", f"{self.users}, {self.idle}, {self.seconds / 60:.1f}"),
            ("answers, 429, other", f"{answers}, {self.statuses['429']}, {self.statuses.total() - answers}"),
            ("answers/min", f"{60 * answers / self.seconds:.0f}"),
            ("first token p50, p99", f"{at(self.first_token, 0.5)}, {at(self.first_token, 0.99)}"),
            ("/healthz p50, p99, slowest", f"{at(self.health, 0.5)}, {at(self.health, 0.99)}, {at(self.health, 1)}"),
            ("memory at first, at the end", f"{self.memory[0]:.2f} GB, {self.memory[-1]:.2f} GB ({self.growth:.3f})"),
            ("problems", "; ".join(self.problems) or "none"),
        ]
        return "\n".join(["| | |", "|---|---|", *(f"| {name} | {value} |" for name, value in rows)])


def percentile(values: list[float], share: float) -> float:
    return sorted(values)[min(len(values) - 1, int(share * len(values)))]


def at(values: list[float], share: float) -> str:
    return f"{1000 * percentile(values, share):.1f} ms"


async def hold(broker: Broker, count: int) -> list[Claim]:
    """Jobs that a replica of ours has claimed; none of the real ones can take them while we renew."""
    now = time.time()
    for _ in range(count):
        name = f"chatcmpl-{uuid.uuid4().hex}"
        job = ChatJob(name, (Message("user", (TextPart("?"),)),), SamplingParams(), "any", 0, now, now + 7200)
        await broker.submit(job, ())
    claims: list[Claim] = []
    while len(claims) < count:
        claims += await broker.claim("idle", count - len(claims), timedelta(seconds=1))
    return claims


async def keep(broker: Broker, claims: list[Claim]) -> None:
    while True:
        await broker.renew("idle", claims)
        await asyncio.sleep(2)


async def idle_stream(http: httpx.AsyncClient, job: str, opened: asyncio.Event, report: Report) -> None:
    """Follows a job of which nothing comes until it is told to stop."""
    with suppress(httpx.TransportError):
        async with http.stream("GET", f"/v1/jobs/{job}/events", timeout=30) as response:
            async for _ in response.aiter_lines():
                opened.set()
    report.broken_streams += 1


async def user(http: httpx.AsyncClient, body: dict[str, object], until: float, report: Report) -> None:
    while time.monotonic() < until:
        began, first = time.monotonic(), 0.0
        try:
            async with http.stream("POST", "/v1/chat/completions", json=body, timeout=60) as response:
                status = str(response.status_code)
                async for line in response.aiter_lines():
                    first = first or (time.monotonic() - began if '"content"' in line else 0.0)
                    status = "error in a stream" if line.startswith('data: {"error"') else status
        except httpx.TransportError as error:
            status = type(error).__name__
        report.statuses[status] += 1
        if first:
            report.first_token.append(first)


async def watch_health(url: str, report: Report) -> None:
    """From a thread of its own, as the loop here has its hands full."""
    with httpx.Client(base_url=url) as http:
        while True:
            report.health.append(await asyncio.to_thread(_health, http))
            await asyncio.sleep(0.05)


def _health(http: httpx.Client) -> float:
    began = time.monotonic()
    http.get("/healthz").raise_for_status()
    return time.monotonic() - began


async def run(url: str, claims: list[Claim], report: Report) -> None:
    unlimited = httpx.Limits(max_connections=None)
    async with httpx.AsyncClient(base_url=url, limits=unlimited) as http:
        model = (await http.get("/v1/models")).json()["data"][0]["id"]
        opened = [asyncio.Event() for _ in claims]
        aside = [asyncio.create_task(watch_health(url, report))]
        aside += [
            asyncio.create_task(idle_stream(http, claim.job.id, event, report))
            for claim, event in zip(claims, opened, strict=True)
        ]
        await asyncio.gather(*(event.wait() for event in opened))
        until = time.monotonic() + report.seconds
        bodies = (question(model, number) for number in range(report.users))
        await asyncio.gather(*(user(http, body, until, report) for body in bodies))
        for task in aside:
            task.cancel()
        ended = await asyncio.gather(*aside, return_exceptions=True)
        failures = [error for error in ended if isinstance(error, Exception)]
        if failures:
            raise failures[0]


def question(model: str, number: int) -> dict[str, object]:
    """Each user's own; the answer is sampled, so that it is never one that is kept."""
    picture = {"type": "image_url", "image_url": {"url": data_url(shapes(number))}}
    content = [picture, {"type": "text", "text": "Describe the picture."}]
    return {"model": model, "messages": [{"role": "user", "content": content}], "stream": True, "temperature": 0.7}


def steady(folder: Path, seconds: float, users: int, idle: int) -> Report:
    report = Report(seconds, users, idle)
    with EmbeddedRedis(folder / "queue") as redis:

        async def all_of_it() -> None:
            broker = connect(Settings(redis_url=redis.url))
            claims = await hold(broker, idle)
            keeping = asyncio.create_task(keep(broker, claims))
            with ExitStack() as stack:
                starting = running(folder, "--redis", redis.url, "--replicas", "1")
                server = await asyncio.to_thread(stack.enter_context, starting)
                pids = [server.process.pid, *server.children()]
                with ResidentMemory(pids, interval=2.0) as memory:
                    await run(server.url, claims, report)
            keeping.cancel()
            report.memory = memory.samples
            await broker.close()

        asyncio.run(all_of_it())
    return report


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--minutes", type=float, default=10)
    parser.add_argument("--users", type=int, default=16)
    parser.add_argument("--idle", type=int, default=500)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        report = steady(Path(folder), 60 * args.minutes, args.users, args.idle)
    print(report)
    return 1 if report.problems else 0


if __name__ == "__main__":
    sys.exit(main())
