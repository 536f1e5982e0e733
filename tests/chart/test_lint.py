"""helm's own judgement, the pages that are generated, and the versions."""

from __future__ import annotations

import yaml

from support.chart import CHART, EVERYTHING, ROOT, helm
from visionchat_serve import __version__


def test_lint_of_the_defaults() -> None:
    answer = helm("lint", "--strict", str(CHART))
    assert answer.returncode == 0, answer.stdout


def test_lint_with_everything_on() -> None:
    answer = helm("lint", "--strict", "--values", str(EVERYTHING), str(CHART))
    assert answer.returncode == 0, answer.stdout


def test_it_is_packed_as_one_file_for_a_registry(tmp_path: object) -> None:
    answer = helm("package", str(CHART), "--destination", str(tmp_path))
    assert f"visionchat-{__version__}.tgz" in answer.stdout, answer.stderr


def test_the_chart_is_the_products_version() -> None:
    chart = yaml.safe_load((CHART / "Chart.yaml").read_text())
    assert chart["version"] == chart["appVersion"] == __version__


def test_names_are_made_by_helpers_alone() -> None:
    """A template that put a name together itself would not follow fullnameOverride."""
    for file in sorted((CHART / "templates").rglob("*.yaml")):
        assert ".Release.Name }}-" not in file.read_text(), file
        assert "visionchat.fullname" not in file.read_text(), file


def test_the_picture_of_the_test_is_the_repositorys() -> None:
    name = "circle-and-square.png"
    assert (CHART / "files" / name).read_bytes() == (ROOT / "tests" / "data" / "pictures" / name).read_bytes()
