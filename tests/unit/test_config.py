"""defaults < YAML < environment < flags, and nothing unknown."""

from __future__ import annotations

from pathlib import Path

import pytest

from visionchat_serve.config import load_settings
from visionchat_serve.errors import ConfigError


def test_later_sources_win(tmp_path: Path) -> None:
    file = tmp_path / "settings.yaml"
    file.write_text("port: 1000\nreplicas: 3\nnamespace: from-file\n")
    env = {"VISIONCHAT_PORT": "2000", "VISIONCHAT_REPLICAS": "4", "HOME": "/"}
    settings = load_settings(file, env, {"port": 3000, "replicas": None})
    assert (settings.port, settings.replicas, settings.namespace) == (3000, 4, "from-file")
    assert settings.max_attempts == 3


def test_defaults_need_no_source() -> None:
    settings = load_settings(environ={})
    assert (settings.model, settings.host, settings.port) == ("tiny", "127.0.0.1", 8000)
    assert settings.served_name == "visionchat-tiny"


def test_a_folder_gives_the_model_its_name() -> None:
    assert load_settings(environ={}, flags={"model": "/m/Qwen3-VL-2B-Instruct"}).served_name == "Qwen3-VL-2B-Instruct"


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("prot: 1\n", "unknown setting in file .*: prot"),
        ("port: many\n", "setting port"),
        ("port: 99999\n", "setting port"),
        ("- a\n- b\n", "key: value"),
        ("a: [\n", "cannot read the settings file"),
    ],
)
def test_a_wrong_file_is_refused_with_the_reason(tmp_path: Path, text: str, says: str) -> None:
    file = tmp_path / "settings.yaml"
    file.write_text(text)
    with pytest.raises(ConfigError, match=says):
        load_settings(file, {})


def test_an_unknown_variable_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"unknown setting in environment: prot \(did you mean port\?\)"):
        load_settings(environ={"VISIONCHAT_PROT": "1"})


def test_a_missing_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="cannot read"):
        load_settings(tmp_path / "no.yaml", {})


def test_a_list_in_a_variable_is_separated_by_commas() -> None:
    settings = load_settings(environ={"VISIONCHAT_CORS_ORIGINS": "https://a.example, https://b.example"})
    assert settings.cors_origins == ("https://a.example", "https://b.example")


def test_lists_in_the_environment_are_separated_by_commas() -> None:
    settings = load_settings(environ={"VISIONCHAT_IMAGE_URL_HOSTS": "a.example, *.b.example:8443"})
    assert settings.image_url_hosts == ("a.example", "*.b.example:8443")


def test_what_kubernetes_tells_of_services_is_no_setting() -> None:
    """A Service named `visionchat` gives every pod of its namespace variables that look like settings of ours."""
    of_services = {
        "VISIONCHAT_SERVICE_HOST": "10.0.0.1",
        "VISIONCHAT_SERVICE_PORT": "8000",
        "VISIONCHAT_SERVICE_PORT_HTTP": "8000",
        "VISIONCHAT_PORT": "tcp://10.0.0.1:8000",
        "VISIONCHAT_PORT_8000_TCP": "tcp://10.0.0.1:8000",
        "VISIONCHAT_PORT_8000_TCP_PROTO": "tcp",
        "VISIONCHAT_PORT_8000_TCP_PORT": "8000",
        "VISIONCHAT_PORT_8000_TCP_ADDR": "10.0.0.1",
        "VISIONCHAT_REDIS_SERVICE_HOST": "10.0.0.2",
        "VISIONCHAT_REDIS_PORT": "tcp://10.0.0.2:6379",
        "VISIONCHAT_REDIS_PORT_6379_UDP_ADDR": "10.0.0.2",
    }
    assert load_settings(environ=of_services) == load_settings(environ={})


@pytest.mark.parametrize("variable", ["VISIONCHAT_PORT_8000", "VISIONCHAT_SERVICE", "VISIONCHAT_REDIS_PORT"])
def test_what_only_looks_a_little_like_it_is_still_refused(variable: str) -> None:
    with pytest.raises(ConfigError, match="unknown setting in environment"):
        load_settings(environ={variable: "8000"})
