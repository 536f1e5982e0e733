"""What the queue costs: how soon a waiting replica has a job and a reader a piece of answer, memory, leases.

    python tests/bench/queue_costs.py [--rounds N]

Real Redis (the embedded one) on its socket; gateway and replica are brokers with connections of their own. JSON.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import tempfile
import time
import uuid
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any

from redis.asyncio import Redis

from visionchat_serve.broker import BrokerPolicy
from visionchat_serve.messages import (
    ChatJob,
    Claim,
    Finish,
    ImagePart,
    Message,
    SamplingParams,
    TextPart,
    TokenChunk,
    Usage,
)
from visionchat_serve.redis_broker import RedisBroker
from visionchat_serve.redis_server import EmbeddedRedis

JOBS = 200  # for memory
PICTURE_BYTES = 50_000
LEASES = 8
SECOND = timedelta(seconds=1)


def new_job(images: int = 0) -> ChatJob:
    now = time.time()
    parts = (*(ImagePart(number) for number in range(images)), TextPart("Describe the picture."))
    name = f"chatcmpl-{uuid.uuid4().hex}"
    return ChatJob(name, (Message("user", parts),), SamplingParams(), "model", images, now, now + 600)


@asynccontextmanager
async def brokers(url: str) -> AsyncIterator[tuple[RedisBroker, RedisBroker]]:
    """The gateway's and the replica's."""
    pair = tuple(RedisBroker.from_url(url, "bench", BrokerPolicy()) for _ in range(2))
    try:
        yield pair[0], pair[1]
    finally:
        for broker in pair:
            await broker.close()


async def one_claim(replica: RedisBroker) -> Claim:
    while not (claims := await replica.claim("bench", 1, SECOND)):
        pass
    return claims[0]


async def latencies(url: str, rounds: int) -> dict[str, list[float]]:
    """Milliseconds from `submit` to the claim of a replica that waits, and from `publish` to the reader's hand."""
    to_claim, relay = [], []
    async with brokers(url) as (gateway, replica):
        for _ in range(rounds):
            waiting = asyncio.create_task(one_claim(replica))
            await asyncio.sleep(0.005)  # the replica waits in Redis by then, as an idle one does
            began = time.perf_counter()
            await gateway.submit(new_job(), ())
            claim = await waiting
            to_claim.append(1000 * (time.perf_counter() - began))
            relay += await relay_of(gateway, replica, claim)
    return {"enqueue_to_claim_ms": to_claim, "token_relay_ms": relay}


async def relay_of(gateway: RedisBroker, replica: RedisBroker, claim: Claim) -> list[float]:
    sent: dict[int, float] = {}
    seen: list[float] = []
    arrived = asyncio.Event()

    async def read() -> None:
        async for event in gateway.events(claim.job.id):
            if isinstance(event.value, TokenChunk):
                seen.append(1000 * (time.perf_counter() - sent[event.value.index]))
                arrived.set()

    reading = asyncio.create_task(read())
    for index in range(5):
        sent[index] = time.perf_counter()
        await replica.publish(claim, index, "text ")
        await arrived.wait()
        arrived.clear()
    await replica.finish(claim, Finish("stop", usage=Usage(1, 1)))
    await reading
    return seen


async def memory(url: str) -> dict[str, float]:
    """Kilobytes of Redis per waiting job, without the pictures' own bytes, and per job that is answered."""
    async with brokers(url) as (gateway, replica), Redis.from_url(url) as redis:
        before = await used(redis)
        for _ in range(JOBS):
            await gateway.submit(new_job(1), (os.urandom(PICTURE_BYTES),))
        waiting = (await used(redis) - before) / JOBS - PICTURE_BYTES
        for _ in range(JOBS):
            claim = await one_claim(replica)
            await replica.publish(claim, 0, "An answer of some forty characters, say.")
            await replica.finish(claim, Finish("stop", usage=Usage(1, 1)))
        answered = (await used(redis) - before) / JOBS
    return {"waiting_kb": waiting / 1000, "answered_kb": answered / 1000}


async def used(redis: Redis) -> int:
    return int((await redis.info("memory"))["used_memory"])


async def leases(url: str, rounds: int) -> dict[str, float]:
    """Microseconds of Redis' own CPU to renew the leases of one replica once."""
    async with brokers(url) as (gateway, replica), Redis.from_url(url) as redis:
        for _ in range(LEASES):
            await gateway.submit(new_job(), ())
        claims = [await one_claim(replica) for _ in range(LEASES)]
        before, began = await cpu(redis), time.perf_counter()
        for _ in range(rounds):
            await replica.renew("bench", claims)
        spent, took = await cpu(redis) - before, time.perf_counter() - began
    return {"leases": LEASES, "redis_cpu_us": 1e6 * spent / rounds, "call_ms": 1000 * took / rounds}


async def cpu(redis: Redis) -> float:
    info = await redis.info("cpu")
    return float(info["used_cpu_user"]) + float(info["used_cpu_sys"])


def spread(values: list[float]) -> dict[str, float]:
    ordered = sorted(values)
    return {"p50": ordered[len(ordered) // 2], "p99": ordered[min(len(ordered) - 1, int(0.99 * len(ordered)))]}


def main(rounds: int) -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as folder, EmbeddedRedis(Path(folder)) as server:
        times = asyncio.run(latencies(server.url, rounds))
        return {name: spread(values) for name, values in times.items()} | {
            "redis_memory_per_job": asyncio.run(memory(server.url)),
            "renewal": asyncio.run(leases(server.url, rounds)),
        }


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=300)
    print(json.dumps(main(parser.parse_args().rounds), indent=2))
