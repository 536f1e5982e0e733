"""`visionchat doctor` on a real Redis."""

from __future__ import annotations

import json

import pytest
from redis import Redis

from visionchat_serve.cli import main
from visionchat_serve.redis_server import EmbeddedRedis


def doctor(printed: pytest.CaptureFixture[str], *flags: str) -> tuple[int, list[dict[str, object]]]:
    """Exit code, and what was found about Redis."""
    code = main(["doctor", "--json", *flags])
    return code, [one for one in json.loads(printed.readouterr().out) if one["check"] == "redis"]


def test_the_embedded_redis_is_safe(own_server: EmbeddedRedis, capsys: pytest.CaptureFixture[str]) -> None:
    _, findings = doctor(capsys, "--redis", own_server.url)
    assert [one["level"] for one in findings] == ["good"]


def test_a_redis_that_forgets(own_server: EmbeddedRedis, capsys: pytest.CaptureFixture[str]) -> None:
    with Redis.from_url(own_server.url) as redis:
        redis.config_set("appendonly", "no")
        redis.config_set("maxmemory-policy", "allkeys-lru")
    code, findings = doctor(capsys, "--redis", own_server.url, "--on", "gke")
    assert (code, [one["level"] for one in findings]) == (1, ["problem", "problem"])
    assert all(list(one["how"]) == ["gke"] for one in findings)


def test_a_password_from_the_environment(
    own_server: EmbeddedRedis, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    with Redis.from_url(own_server.url) as redis:
        redis.config_set("requirepass", "a/b:c")
        code, findings = doctor(capsys, "--redis", own_server.url)
        assert (code, [one["level"] for one in findings]) == (1, ["problem"])
        monkeypatch.setenv("VISIONCHAT_REDIS_PASSWORD", "a/b:c")
        _, findings = doctor(capsys, "--redis", own_server.url)
        assert [one["level"] for one in findings] == ["good"]
        redis.execute_command("AUTH", "a/b:c")
        redis.config_set("requirepass", "")


def test_a_redis_that_is_away(own_server: EmbeddedRedis, capsys: pytest.CaptureFixture[str]) -> None:
    own_server.stop()
    code, findings = doctor(capsys, "--redis", own_server.url)
    assert (code, [one["level"] for one in findings]) == (1, ["problem"])


def test_an_address_that_makes_no_sense(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["doctor", "--redis", "http://queue"]) == 2
    assert "redis_url: it must begin with redis://" in capsys.readouterr().err
