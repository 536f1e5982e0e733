"""The Job that fetches a model tells how far it is, through a real Redis; it never fails for want of one."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from datetime import timedelta
from pathlib import Path

import pytest

from support.waiting import wait_until
from visionchat_serve.config import Settings
from visionchat_serve.fetch import fetch, partial, telling
from visionchat_serve.fetch_progress import FetchProgress
from visionchat_serve.redis_link import RedisLink
from visionchat_serve.redis_server import EmbeddedRedis

OFTEN = timedelta(milliseconds=20)


@pytest.fixture
def redis(tmp_path: Path) -> Iterator[EmbeddedRedis]:
    with EmbeddedRedis(tmp_path / "redis") as server:
        yield server


@asynccontextmanager
async def linked(url: str) -> AsyncIterator[RedisLink]:
    link = RedisLink(url)
    yield link
    await link.close()


async def test_what_is_there_is_told_while_the_rest_is_fetched(redis: EmbeddedRedis, tmp_path: Path) -> None:
    folder, go_on = tmp_path / "model", threading.Event()

    def download(model: str, revision: str | None, place: Path) -> None:
        (place / "half.safetensors").write_bytes(bytes(1_500_000))
        assert go_on.wait(20)
        (place / "config.json").write_text("{}")

    settings = Settings(redis_url=redis.url, namespace="n")
    working = telling(lambda: fetch("a/b", folder, None, download), folder, lambda: 3_000_000, settings, OFTEN)

    async def watch() -> None:
        async with linked(redis.url) as link:

            async def half() -> bool:
                return await FetchProgress.told(link, "n") == FetchProgress(1_500_000, 3_000_000)

            await wait_until(half, "half of it is told")
            assert await link.call(lambda client: client.ttl("visionchat:{n}:fetch")) > 0
            go_on.set()

    fetched, _ = await asyncio.gather(working, watch())
    assert fetched
    assert (folder / "config.json").exists()
    assert not partial(folder).exists()


async def test_nobody_has_told(redis: EmbeddedRedis) -> None:
    async with linked(redis.url) as link:
        assert await FetchProgress.told(link, "n") is None


@pytest.mark.parametrize("url", [None, "redis://127.0.0.1:1"])
async def test_a_queue_that_is_away_is_no_reason_to_fail(
    url: str | None, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    settings = Settings(redis_url=url, namespace="n")
    assert await telling(lambda: True, tmp_path, lambda: 0, settings, OFTEN)
    assert ("not told" in capsys.readouterr().err) == (url is not None)


async def test_a_hub_that_does_not_tell_the_size_is_no_reason_to_fail(redis: EmbeddedRedis, tmp_path: Path) -> None:
    def unknown() -> int:
        raise RuntimeError("no such page")

    assert await telling(lambda: True, tmp_path, unknown, Settings(redis_url=redis.url, namespace="n"), OFTEN)


async def test_what_goes_wrong_is_not_hidden(redis: EmbeddedRedis, tmp_path: Path) -> None:
    def work() -> bool:
        raise OSError("disk full")

    with pytest.raises(OSError, match="disk full"):
        await telling(work, tmp_path, lambda: 0, Settings(redis_url=redis.url, namespace="n"), OFTEN)


def test_how_people_read_it() -> None:
    assert str(FetchProgress(1_240_000_000, 4_300_000_000)) == "1.2 of 4.3 GB"
    assert str(FetchProgress(1_240_000_000, 0)) == "1.2 GB"
