"""A pod's process and the operator's side of it, on a real Ray: the application comes, its number of replicas follows.

One head on loopback stands for the whole cluster: it offers the places of two replicas besides the gateway's. Its ports
are free ones instead of the fixed ones of a pod.
"""

from __future__ import annotations

import asyncio
import json
import os
import secrets
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from aiohttp import ClientError, ClientSession

from support.control_plane import environment, free_ports
from support.waiting import wait_until
from visionchat_operator.api import VisionChatSpec
from visionchat_operator.environment import settings
from visionchat_operator.ray_head import RayHead, RayUnavailable
from visionchat_operator.world import Key
from visionchat_serve import ray_node
from visionchat_serve.redis_broker import RedisBroker
from visionchat_serve.redis_server import find_servers

from .test_draining import BODY as LONG_ANSWER
from .test_draining import TOKENS

KEY = Key("test", "demo")
TOKEN = secrets.token_hex(32)


@pytest.fixture(scope="module")
def redis_url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Over TCP, because Ray knows no other way."""
    binary, _ = next(iter(find_servers()))
    (port,) = free_ports(1)
    folder = tmp_path_factory.mktemp("redis")
    command = [str(binary), "--port", str(port), "--bind", "127.0.0.1", "--dir", str(folder), "--save", ""]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL)
    yield f"redis://127.0.0.1:{port}/0"
    process.terminate()
    process.wait(10)


@pytest.fixture(scope="module")
def head(redis_url: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, int]]:
    """Addresses of the head's REST API and of the gateway."""
    spec = VisionChatSpec.model_validate({"model": {"id": "tiny"}, "cpusPerReplica": 1})
    temporary = tempfile.mkdtemp(prefix="vc-ray-", dir="/tmp")  # short: Ray's sockets are in it
    gcs, dashboard, api, *others = free_ports(3 + len(ray_node.PORTS) - 2)
    folder = tmp_path_factory.mktemp("ray")
    (folder / "token").write_text(TOKEN)
    told = {
        **settings(KEY, spec),
        "VISIONCHAT_REDIS_URL": redis_url,
        "VISIONCHAT_HOST": "127.0.0.1",
        "VISIONCHAT_PORT": str(api),
        "POD_IP": "127.0.0.1",
        "POD_NAME": "demo-worker-0",
        "RAY_AUTH_MODE": "token",
        "RAY_AUTH_TOKEN_PATH": str(folder / "token"),
        "RAY_external_storage_namespace": "test.demo",
    }
    run, extra = ray_node.command("head", told)
    moved = dict(zip([flag.partition("=")[0] for flag in ray_node.PORTS[:-2]], others, strict=True))
    moved |= {"--port": gcs, "--dashboard-port": dashboard}
    flags = [f"{name}={moved[name]}" if (name := flag.partition("=")[0]) in moved else flag for flag in run]
    places = f'{{"{ray_node.GATEWAY}": 1, "{ray_node.SLOT}": 2}}'
    flags = [f"--resources={places}" if flag.startswith("--resources") else flag for flag in flags]
    flags = [flag for flag in flags if not flag.startswith(("--min-worker-port", "--max-worker-port"))]
    flags += [f"--temp-dir={temporary}", "--dashboard-host=127.0.0.1"]
    python = os.pathsep.join(sys.path)
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    env = {**environment(), **told, **extra, "PYTHONPATH": python, "PATH": path}
    with open(folder / "log", "wb") as log:
        process = subprocess.Popen(flags, env=env, stdout=log, stderr=log, start_new_session=True)
    yield f"http://127.0.0.1:{dashboard}", api
    process.send_signal(signal.SIGTERM)
    try:
        process.wait(60)
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
        shutil.rmtree(temporary, ignore_errors=True)


async def test_the_application_comes_and_its_number_of_replicas_follows(head: tuple[str, int], redis_url: str) -> None:
    url, api = head
    async with ClientSession() as http:
        ray = RayHead(http, url)
        await wait_until(lambda: _answers(ray), "the head answers", seconds=90)
        with pytest.raises(RayUnavailable, match=r"401|403"):
            await ray.state(KEY, "wrong")
        assert not (await ray.state(KEY, TOKEN)).deployed
        await ray.deploy(KEY, TOKEN, 1)

        async def has(running: int, target: int) -> bool:
            await asyncio.sleep(0.2)  # a hundred questions a second would keep the head busy
            state = await ray.state(KEY, TOKEN)
            return state.deployed and state.target == target and len(state.running) == running

        await wait_until(lambda: has(1, 1), "one replica runs", seconds=120)
        broker = RedisBroker.from_url(redis_url, "test.demo")
        await wait_until(lambda: _reports(broker, 1), "it reports itself", seconds=60)
        (report,) = await broker.reports()
        assert (report.pod, report.threads, report.running) == ("demo-worker-0", 1, 0)
        await wait_until(lambda: _is_ready(http, api), "the gateway answers", seconds=60)

        await ray.scale(KEY, TOKEN, 2)
        await wait_until(lambda: _reports(broker, 2), "two replicas report", seconds=120)
        # The same again changes nothing. With another number it would be a new deployment, which takes its time and
        # then undoes whatever was scaled meanwhile.
        await ray.deploy(KEY, TOKEN, 1)
        assert await has(1, 2), "both are on the one node"
        await ray.scale(KEY, TOKEN, 0)
        await wait_until(lambda: _reports(broker, 0), "none is left", seconds=60)
        await wait_until(lambda: has(0, 0), "Serve says so too", seconds=60)
        await broker.close()


async def test_a_replica_that_is_scaled_away_ends_its_job_first(head: tuple[str, int], redis_url: str) -> None:
    """Two are answering and a third question waits when one replica is taken away: nobody is asked twice."""
    url, api = head
    async with ClientSession() as http:
        ray, broker = RayHead(http, url), RedisBroker.from_url(redis_url, "test.demo")
        await wait_until(lambda: _answers(ray), "the head answers", seconds=90)
        await ray.deploy(KEY, TOKEN, 1)
        await wait_until(lambda: _is_deployed(ray), "the application is there", seconds=120)
        await ray.scale(KEY, TOKEN, 2)
        await wait_until(lambda: _reports(broker, 2), "two replicas report", seconds=120)
        await wait_until(lambda: _is_ready(http, api), "the gateway answers", seconds=60)

        asked = [asyncio.create_task(_long_answer(http, api, number)) for number in range(3)]
        await wait_until(lambda: _leased(broker, 2), "both answer", seconds=60)
        await ray.scale(KEY, TOKEN, 1)
        answers = await asyncio.gather(*asked)
        assert [tokens for _, tokens in answers] == [TOKENS] * 3
        views = [await broker.describe(job_id) for job_id, _ in answers]
        assert [(view.status, view.attempt) for view in views] == [("succeeded", 1)] * 3
        await wait_until(lambda: _reports(broker, 1), "one is left", seconds=60)
        await broker.close()


async def _is_deployed(ray: RayHead) -> bool:
    await asyncio.sleep(0.2)
    return (await ray.state(KEY, TOKEN)).deployed


async def _leased(broker: RedisBroker, number: int) -> bool:
    return (await broker.load()).leased == number


async def _long_answer(http: ClientSession, port: int, number: int) -> tuple[str, int]:
    """The job's id and how many tokens the whole stream has."""
    body = {**LONG_ANSWER, "seed": number, "temperature": 1.0}
    chunks = []
    async with http.post(f"http://127.0.0.1:{port}/v1/chat/completions", json=body) as answer:
        assert answer.status == 200, await answer.text()
        async for line in answer.content:
            if line.startswith(b"data: {"):
                chunks.append(json.loads(line.removeprefix(b"data: ")))
    return chunks[0]["id"], chunks[-1]["usage"]["completion_tokens"]


async def _answers(ray: RayHead) -> bool:
    try:
        await ray.state(KEY, TOKEN)
    except RayUnavailable:
        await asyncio.sleep(0.5)
        return False
    return True


async def _reports(broker: RedisBroker, number: int) -> bool:
    return len(await broker.reports()) == number


async def _is_ready(http: ClientSession, port: int) -> bool:
    try:
        async with http.get(f"http://127.0.0.1:{port}/healthz") as answer:
            return answer.status == 200
    except ClientError:
        return False
