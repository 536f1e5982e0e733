"""The integration tier runs the real parts: Redis, Ray, the tiny model."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import openai
import pytest

from support.server import Server, running


@pytest.fixture(scope="session")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """One `visionchat serve` for all tests that leave it as they found it."""
    with running(tmp_path_factory.mktemp("data")) as server:
        yield server


@pytest.fixture
def client(server: Server) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"{server.url}/v1", api_key="unused", max_retries=0, timeout=60) as client:
        yield client


@pytest.fixture(scope="session")
def pictures_folder() -> Path:
    return Path(__file__).parents[1] / "data" / "pictures"
