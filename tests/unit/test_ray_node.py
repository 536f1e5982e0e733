"""What a pod's process becomes, and how a model comes onto its claim."""

from __future__ import annotations

from pathlib import Path

import pytest

from visionchat_operator import pods
from visionchat_serve import ray_node
from visionchat_serve.errors import ConfigError
from visionchat_serve.fetch import fetch

POD = {"POD_IP": "10.0.0.7", "RAY_HEAD_ADDRESS": "demo-head:6379", "VISIONCHAT_CPUS": "4"}


def test_a_worker_offers_its_cpus_and_one_slot() -> None:
    run, extra = ray_node.command("worker", POD)
    assert {"--num-cpus=4", "--address=demo-head:6379", '--resources={"visionchat_replica": 1}'} <= set(run)
    assert "--block" in run
    assert extra == {}


def test_the_head_runs_no_model_and_keeps_its_state_in_redis() -> None:
    url = "redis://user:p%40ss@redis.example:6380/0"
    run, extra = ray_node.command("head", POD | {"VISIONCHAT_REDIS_URL": url})
    assert {"--head", "--num-cpus=0", "--redis-password=p@ss", "--redis-username=user"} <= set(run)
    assert extra == {"RAY_REDIS_ADDRESS": "redis.example:6380"}
    _, extra = ray_node.command("head", POD | {"VISIONCHAT_REDIS_URL": "rediss://redis.example"})
    assert extra == {"RAY_REDIS_ADDRESS": "rediss://redis.example:6379"}


def test_the_head_is_told_who_vouches_for_its_redis() -> None:
    told = {"VISIONCHAT_REDIS_URL": "rediss://redis.example", "VISIONCHAT_REDIS_CA_FILE": "/etc/ca.crt"}
    _, extra = ray_node.command("head", POD | told)
    assert extra == {"RAY_REDIS_ADDRESS": "rediss://redis.example:6379", "RAY_REDIS_CA_CERT": "/etc/ca.crt"}
    run, _ = ray_node.command("head", POD | told | {"VISIONCHAT_REDIS_PASSWORD": "p@ss/w:rd%"})
    assert "--redis-password=p@ss/w:rd%" in run
    with pytest.raises(ConfigError, match="redis_ca_file"):
        ray_node.command("head", POD | told | {"VISIONCHAT_REDIS_URL": "redis://redis.example"})


def test_sentinels_that_are_away_are_named_in_the_error() -> None:
    with pytest.raises(ConfigError, match="Sentinels"):
        ray_node.command("head", POD | {"VISIONCHAT_REDIS_URL": "redis+sentinel:///main"})


def test_a_head_without_redis_says_what_is_missing() -> None:
    with pytest.raises(ConfigError, match="VISIONCHAT_REDIS_URL"):
        ray_node.command("head", POD)


def test_operator_and_data_plane_name_rays_resources_alike() -> None:
    assert (ray_node.SLOT, ray_node.GATEWAY) == (pods.SLOT, pods.GATEWAY)


def test_a_model_is_fetched_whole_and_once(tmp_path: Path) -> None:
    asked = []

    def download(model: str, revision: str | None, folder: Path) -> None:
        asked.append((model, revision))
        (folder / "config.json").write_text("{}")

    assert fetch("a/b", tmp_path / "m", "v1", download)
    assert not fetch("a/b", tmp_path / "m", "v1", download)
    assert asked == [("a/b", "v1")]
    assert [path.name for path in tmp_path.iterdir()] == ["m"]


def test_a_model_that_is_fetched_in_part_is_not_there(tmp_path: Path) -> None:
    def download(model: str, revision: str | None, folder: Path) -> None:
        (folder / "weights").write_text("half")

    with pytest.raises(FileNotFoundError, match="no config"):
        fetch("a/b", tmp_path / "m", None, download)
    assert not (tmp_path / "m").exists()
