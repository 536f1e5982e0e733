"""The commands as a person types them."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from support.server import Server


def visionchat(*arguments: str, **environ: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "visionchat_serve.cli", *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=150, env={**os.environ, **environ})


def test_ask_a_running_server(server: Server, pictures_folder: Path) -> None:
    picture = str(pictures_folder / "circle-and-square.png")
    ran = visionchat("ask", picture, "What do you see?", "--url", server.url)
    assert ran.returncode == 0, ran.stderr
    assert len(ran.stdout.split()) >= 3
    assert "first token after" in ran.stderr


def test_ask_starts_a_server_when_none_answers_and_stops_it(pictures_folder: Path, tmp_path: Path) -> None:
    picture = str(pictures_folder / "circle-and-square.png")
    ran = visionchat("ask", picture, "What do you see?", "--port", "0", "--data-dir", str(tmp_path))
    assert ran.returncode == 0, ran.stderr
    assert ran.stdout.strip()
    assert "stopped" in ran.stderr


@pytest.mark.parametrize(
    ("arguments", "environ", "code", "says"),
    [
        (("ask", "no-such.png", "what?"), {}, 2, "there is no picture"),
        (("ask",), {}, 2, "PICTURE"),
        (("serve", "--model", "/no/such/folder"), {}, 2, "there is no model folder"),
        (("serve", "--cpus", "999"), {}, 2, "999 CPUs were asked for"),
        (("serve", "--replicas", "0"), {}, 2, "replicas"),
        (("serve", "--config", "/no/such.yaml"), {}, 2, "cannot read the settings file"),
        (("serve",), {"VISIONCHAT_PROT": "1"}, 2, "unknown setting in environment: prot"),
        (("serve", "--port", "70000"), {}, 2, "port"),
        (("serve", "--redis", "redis://127.0.0.1:1/0", "--port", "0"), {}, 1, "queue"),
    ],
)
def test_wrong_use_says_what_to_do(arguments: tuple[str, ...], environ: dict[str, str], code: int, says: str) -> None:
    ran = visionchat(*arguments, **environ)
    assert ran.returncode == code, ran.stderr
    assert says in ran.stderr
    assert "Traceback" not in ran.stderr


def test_a_huge_file_is_not_read(tmp_path: Path) -> None:
    """A hole of a terabyte: whoever read it would run out of memory."""
    huge = tmp_path / "film.mkv"
    with huge.open("wb") as file:
        file.truncate(1 << 40)
    ran = visionchat("ask", str(huge), "What is this?", "--url", "http://127.0.0.1:1")
    assert ran.returncode == 2, ran.stderr
    assert "film.mkv" in ran.stderr
    assert "at most 50 MB" in ran.stderr
    assert "Traceback" not in ran.stderr


def test_a_taken_port_is_said_at_once(server: Server, tmp_path: Path) -> None:
    began = time.monotonic()
    ran = visionchat("serve", "--port", server.url.rpartition(":")[2], "--data-dir", str(tmp_path))
    assert ran.returncode == 2
    assert "choose another with --port" in ran.stderr
    assert time.monotonic() - began < 20


def test_ctrl_c_while_starting_ends_cleanly(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "visionchat_serve.cli", "serve", "--port", "0", "--data-dir", str(tmp_path)]
    process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
    assert process.stderr is not None
    for line in process.stderr:
        if "loading the model" in line:
            process.send_signal(signal.SIGINT)
            break
    rest = process.stderr.read()
    assert process.wait(60) in (0, 130), rest
    assert "Traceback" not in rest
