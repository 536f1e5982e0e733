"""The Dockerfiles, linted by hadolint, and what they promise. No image is built here."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from support.chart import ROOT
from visionchat_operator.pods import USER
from visionchat_serve import __version__

FILES = [ROOT / "serve" / "Dockerfile", ROOT / "operator" / "Dockerfile"]


def hadolint(file: Path) -> subprocess.CompletedProcess[str]:
    """Without a file of exceptions."""
    program = Path(sys.executable).parent / "hadolint"
    command = [str(program), "--config", "/dev/null", "--no-color", str(file)]
    return subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.parent.name)
def test_hadolint_finds_nothing(file: Path) -> None:
    answer = hadolint(file)
    assert (answer.returncode, answer.stdout) == (0, "")


def test_hadolint_would_find_something(tmp_path: Path) -> None:
    bad = tmp_path / "Dockerfile"
    bad.write_text("FROM python\nRUN pip install torch\n")
    assert {"DL3006", "DL3013"} <= set(re.findall(r"DL\d+", hadolint(bad).stdout))


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.parent.name)
def test_they_run_as_a_number_and_pin_what_they_install(file: Path) -> None:
    text = file.read_text()
    last = text.rsplit("FROM ", 1)[1]
    assert f"USER {USER}:{USER}" in last
    assert "RUN" not in last  # what builds is not in the image
    assert len(re.findall(r"^FROM python:\$\{PYTHON\}", text, re.MULTILINE)) == 2
    installs = re.findall(r"pip install .*", text)
    assert installs
    assert all("--constraint constraints.txt" in line for line in installs)
    assert f":{__version__} ." in text


def test_the_builder_sees_only_what_the_images_are_made_of() -> None:
    lines = (ROOT / ".dockerignore").read_text().splitlines()
    assert lines[1] == "*"
    let_in = {line[1:] for line in lines if line.startswith("!")}
    copied = {
        source
        for file in FILES
        for line in re.findall(r"^COPY (?!--from)(.*)", file.read_text(), re.MULTILINE)
        for source in line.split()[:-1]
    }
    assert copied == let_in
