"""A pod's process and the operator's side of it, on a real Ray: the application comes, its number of replicas follows.

One head on loopback stands for the whole cluster: it offers the places of two replicas besides the gateway's.
"""

from __future__ import annotations

import asyncio
import json
import secrets
import subprocess
from collections.abc import Iterator
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import pytest
from aiohttp import ClientError, ClientSession
from redis import Redis
from redis.exceptions import RedisError

from support.control_plane import free_ports
from support.ray_process import Head, ray_head
from support.redis_servers import launching, make_certificates, with_tls, with_tls_spoken
from support.waiting import wait_until
from visionchat_operator.api import VisionChatSpec
from visionchat_operator.environment import settings
from visionchat_operator.ray_head import RayHead, RayUnavailable
from visionchat_operator.world import Key
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
def head(redis_url: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Head]:
    spec = VisionChatSpec.model_validate({"model": {"id": "tiny"}, "cpusPerReplica": 1})
    folder = tmp_path_factory.mktemp("ray")
    told = {**settings(KEY, spec), "VISIONCHAT_REDIS_URL": redis_url, "POD_NAME": "demo-worker-0"}
    with ray_head({**told, **ray(folder)}, folder) as head:
        yield head


def ray(folder: Path) -> dict[str, str]:
    (folder / "token").write_text(TOKEN)
    return {
        "RAY_AUTH_MODE": "token",
        "RAY_AUTH_TOKEN_PATH": str(folder / "token"),
        "RAY_external_storage_namespace": "test.demo",
    }


async def test_the_application_comes_and_its_number_of_replicas_follows(head: Head, redis_url: str) -> None:
    async with ClientSession() as http:
        ray = RayHead(http, head.dashboard)
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
        await wait_until(lambda: _is_ready(http, head.api), "the gateway answers", seconds=60)

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


async def test_a_replica_that_is_scaled_away_ends_its_job_first(head: Head, redis_url: str) -> None:
    """Two are answering and a third question waits when one replica is taken away: nobody is asked twice."""
    async with ClientSession() as http:
        ray, broker = RayHead(http, head.dashboard), RedisBroker.from_url(redis_url, "test.demo")
        await wait_until(lambda: _answers(ray), "the head answers", seconds=90)
        await ray.deploy(KEY, TOKEN, 1)
        await wait_until(lambda: _is_deployed(ray), "the application is there", seconds=120)
        await ray.scale(KEY, TOKEN, 2)
        await wait_until(lambda: _reports(broker, 2), "two replicas report", seconds=120)
        await wait_until(lambda: _is_ready(http, head.api), "the gateway answers", seconds=60)

        asked = [asyncio.create_task(_long_answer(http, head.api, number)) for number in range(3)]
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


@pytest.mark.parametrize("kind", ["TLS", "Sentinels"])
async def test_the_heads_state_is_in_any_redis(kind: str, tmp_path: Path) -> None:
    binary, _ = next(iter(find_servers()))
    secure = with_tls_spoken()
    if kind == "TLS" and secure is None:
        pytest.skip("no redis-server on the PATH speaks TLS; the one that Linux distributions package does")
    with launching(secure or binary, tmp_path) as launch:
        options: dict[str, Any] = {"password": "p@ss/w:rd%"}
        told = {"VISIONCHAT_REDIS_PASSWORD": "p@ss/w:rd%", **ray(tmp_path)}
        if kind == "TLS":
            certificates = make_certificates(tmp_path)
            port = launch(*with_tls(certificates), 'requirepass "p@ss/w:rd%"')
            options |= {"ssl": True, "ssl_ca_certs": str(certificates.authority)}
            url, told["VISIONCHAT_REDIS_CA_FILE"] = f"rediss://127.0.0.1:{port}", str(certificates.authority)
        else:
            port = launch("port {port}", 'requirepass "p@ss/w:rd%"')
            monitor = f"sentinel monitor main 127.0.0.1 {port} 1", 'sentinel auth-pass main "p@ss/w:rd%"'
            sentinel = launch("port {port}", *monitor, sentinel=True)
            await wait_until(lambda: _pongs(sentinel), "the Sentinel answers")
            url = f"redis+sentinel://127.0.0.1:1,127.0.0.1:{sentinel}/main/0"
        await wait_until(lambda: _pongs(port, **options), "Redis answers")
        async with ClientSession() as http, AsyncExitStack() as stack:
            # The head asks the Sentinels in an event loop of its own.
            head = await asyncio.to_thread(
                stack.enter_context, ray_head({**told, "VISIONCHAT_REDIS_URL": url}, tmp_path)
            )
            await wait_until(lambda: _answers(RayHead(http, head.dashboard)), "the head answers", seconds=90)
            with Redis("127.0.0.1", port, **options) as redis:
                assert redis.keys("RAYtest.demo@*")


def _pongs(port: int, **options: Any) -> bool:
    try:
        with Redis("127.0.0.1", port, retry=None, **options) as redis:
            return bool(redis.ping())
    except RedisError:
        return False


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
