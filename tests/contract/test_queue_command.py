"""`visionchat queue` on a real Redis."""

from __future__ import annotations

import asyncio
import json
from datetime import timedelta
from typing import Any

import pytest

from contract.queues import Queue
from visionchat_serve.cli import main
from visionchat_serve.messages import ReplicaReport

NOW = timedelta(0)
REPORT = ReplicaReport("r1", "torch", "tiny", "float32", "rev", 2, (0, 1), 4096, 1, 0.0)


class CommandLine:
    """Runs `visionchat queue` on the test's queue."""

    def __init__(self, queue: Queue, printed: pytest.CaptureFixture[str]) -> None:
        self._flags = ["--redis", str(queue.url), "--namespace", queue.namespace]
        self._printed = printed

    async def __call__(self, *arguments: str) -> tuple[int, str, str]:
        """Exit code, what was printed, what was said on stderr."""
        code = await asyncio.to_thread(main, ["queue", *arguments, *self._flags])
        out, err = self._printed.readouterr()
        return code, out, err

    async def json(self, *arguments: str) -> Any:
        code, out, err = await self(*arguments, "--json")
        assert (code, err) == (0, "")
        return json.loads(out)


@pytest.fixture
def visionchat(redis_queue: Queue, capsys: pytest.CaptureFixture[str]) -> CommandLine:
    return CommandLine(redis_queue, capsys)


async def test_stats(redis_queue: Queue, visionchat: CommandLine, make_job: Any) -> None:
    broker = redis_queue.open()
    for _ in range(3):
        await broker.submit(make_job(), [])
    await broker.claim("a", 1, NOW)
    await broker.report(REPORT, timedelta(seconds=30))
    stats = await visionchat.json("stats")
    counts = {key: stats[key] for key in ("waiting", "leased", "delayed", "backlog", "dead")}
    assert counts == {"waiting": 2, "leased": 1, "delayed": 0, "backlog": 3, "dead": 0}
    assert [replica["replica"] for replica in stats["replicas"]] == ["r1"]
    code, out, _ = await visionchat("stats")
    assert code == 0
    assert "waiting  2\n" in out
    assert "replica  r1: tiny by torch, 2 threads\n" in out


async def test_dead_jobs_are_listed_replayed_and_purged(
    redis_queue: Queue, visionchat: CommandLine, make_job: Any
) -> None:
    broker = redis_queue.open(max_attempts=1, lease=timedelta(milliseconds=1))
    assert (await visionchat("dead"))[1] == "no dead jobs\n"
    jobs = [make_job(images=1, owner="ann") for _ in range(2)]
    for job in jobs:
        await broker.submit(job, [b"p"])
        await broker.claim("a", 1, timedelta(seconds=5))
        while not any(view.id == job.id for view in await broker.dead(5)):
            await broker.claim("b", 1, NOW)
    dead = await visionchat.json("dead")
    assert [one["id"] for one in dead] == [job.id for job in reversed(jobs)]
    assert dead[0]["owner"] == "ann"
    assert "lost" in dead[0]["reason"]
    assert len(await visionchat.json("dead", "--limit", "1")) == 1

    [replayed] = await visionchat.json("replay", jobs[0].id)
    assert (await broker.describe(replayed["new_id"])).status == "queued"
    code, _, err = await visionchat("replay", jobs[0].id)
    assert (code, "not on the dead list" in err) == (1, True)
    assert await visionchat.json("purge") == {"purged": 1}
    assert await visionchat.json("dead") == []


async def test_cancel(redis_queue: Queue, visionchat: CommandLine, make_job: Any) -> None:
    broker, job = redis_queue.open(), make_job()
    await broker.submit(job, [])
    code, out, _ = await visionchat("cancel", job.id, "nobody")
    assert code == 0
    assert out == f"{job.id} is being stopped\nnobody is unknown or has ended already\n"
    assert (await broker.describe(job.id)).status == "cancelled"


async def test_wrong_use_and_a_queue_that_is_away(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        main(["queue", "dead", "--limit", "0"])
    assert caught.value.code == 2
    assert await asyncio.to_thread(main, ["queue", "stats", "--redis", "redis://127.0.0.1:1"]) == 1
    assert await asyncio.to_thread(main, ["queue", "stats", "--redis", "http://127.0.0.1:1"]) == 2
    said = capsys.readouterr().err
    assert "the queue does not answer" in said
    assert "127.0.0.1:1" in said  # whoever types the command may know where
