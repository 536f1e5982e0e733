"""The embedded Redis on a disk that is full: a clear 503, not ready with the reason, nothing lost, and on it goes when
there is room again."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from redis.asyncio import Redis

from contract.queues import SERVERS
from support.house import chat, open_house
from support.waiting import wait_until
from visionchat_serve.redis_broker import RedisBroker
from visionchat_serve.redis_server import EmbeddedRedis

DISK_KB, BALLAST_KB = 2048, 1024

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="only root may mount a small disk")


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A disk of its own, half of it taken by the file `ballast`."""
    disk = tmp_path / "disk"
    disk.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={DISK_KB}k", "tmpfs", disk], check=True)
    try:
        (disk / "ballast").write_bytes(bytes(BALLAST_KB << 10))
        yield disk
    finally:
        subprocess.run(["umount", disk], check=True)


@pytest.fixture
def server_there(server_name: str, small_disk: Path) -> Iterator[EmbeddedRedis]:
    with EmbeddedRedis(small_disk, SERVERS[server_name]) as server:
        yield server


async def fill(url: str) -> None:
    """Write until no write is taken any more."""
    async with Redis.from_url(url) as redis:

        async def is_full() -> bool:
            try:
                await redis.set("filler", os.urandom(100_000), px=60_000)
            except Exception as error:
                return "MISCONF" in str(error)
            return False

        await wait_until(is_full, "the disk is full")


async def test_a_full_disk(server_there: EmbeddedRedis, small_disk: Path) -> None:
    broker = RedisBroker.from_url(server_there.url, "x")
    async with open_house(broker) as house:
        await house.start_replica()
        job_id = (await house.http.post("/v1/jobs", json=chat("a !hold b"))).json()["id"]
        await wait_until(lambda: bool(house.engine.seen), "it is being answered")
        await fill(server_there.url)

        for path in ("/v1/jobs", "/v1/chat/completions"):
            refused = await house.http.post(path, json=chat("c d"))
            assert refused.status_code == 503
            assert int(refused.headers["Retry-After"]) >= 1
            assert refused.json()["error"]["code"] == "queue_cannot_write"
            assert "disk is full" in refused.json()["error"]["message"]
            assert str(small_disk) not in refused.text
        not_ready = await house.http.get("/readyz")
        assert (not_ready.status_code, not_ready.json()["reason"]) == (503, "queue_cannot_write")
        assert (await house.http.get("/healthz")).status_code == 200

        house.engine.release.set()  # what is under way is kept by the replica
        (small_disk / "ballast").unlink()

        async def is_answered() -> bool:
            answer = await house.http.get(f"/v1/jobs/{job_id}")
            return bool(answer.status_code == 200 and answer.json()["text"] == "a !hold b")

        async def is_ready() -> bool:
            return (await house.http.get("/readyz")).status_code == 200

        await wait_until(is_answered, "the job that was under way is answered", 20)
        await wait_until(is_ready, "it is ready again", 20)
        assert (await house.http.post("/v1/chat/completions", json=chat("c d"))).status_code == 200
