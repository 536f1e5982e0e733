"""Dashboards and alerts name only metrics that exist."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any

import pytest
import yaml

from support.chart import CHART
from visionchat_operator.metrics import OperatorMetrics
from visionchat_serve.messages import QueueLoad
from visionchat_serve.metrics import Metrics

LANGUAGE = {
    "by", "on", "and", "or", "unless", "sum", "max", "min", "avg", "rate", "increase", "histogram_quantile",
}  # fmt: skip
SERIES = {"counter": ("_total",), "histogram": ("_bucket", "_sum", "_count"), "gauge": ("",)}


def metrics_in_the_code() -> set[str]:
    from prometheus_client import generate_latest

    pages = Metrics().page(QueueLoad(0, 0, 0, 0, None), []), generate_latest(OperatorMetrics().registry)
    found = re.findall(r"^# TYPE (\S+) (\S+)$", b"".join(pages).decode(), re.MULTILINE)
    names = {(name.removesuffix("_total"), kind) for name, kind in found if not name.endswith("_created")}
    return {name + end for name, kind in names for end in SERIES[kind]}


def dashboards() -> dict[str, dict[str, Any]]:
    return {file.stem: json.loads(file.read_text()) for file in sorted((CHART / "files" / "dashboards").glob("*.json"))}


def expressions() -> Iterator[tuple[str, str]]:
    for name, board in dashboards().items():
        for panel in board["panels"]:
            yield from ((f"{name}: {panel['title']}", target["expr"]) for target in panel["targets"])
        for variable in board["templating"]["list"]:
            if variable["type"] == "query":
                yield f"{name}: {variable['name']}", re.sub(r"label_values\((.*), \w+\)", r"\1", variable["query"])
    for group in yaml.safe_load((CHART / "files" / "alerts.yaml").read_text())["groups"]:
        yield from ((rule["alert"], rule["expr"]) for rule in group["rules"])


def metrics_in(expression: str) -> set[str]:
    """Names that are neither words of the language, labels, nor durations."""
    bare = re.sub(r"\{[^}]*\}|\[[^\]]*\]|\"[^\"]*\"", " ", expression)
    bare = re.sub(r"\b(by|on|without|ignoring)\s*\([^)]*\)", " ", bare)
    return set(re.findall(r"\b[a-zA-Z_][a-zA-Z0-9_]*\b", bare)) - LANGUAGE


def test_what_is_written_in_promql_is_read() -> None:
    assert metrics_in('sum by (a) (rate(visionchat_x_total{y="z"}[5m])) / nothing > 0.2') == {
        "visionchat_x_total",
        "nothing",
    }


@pytest.mark.parametrize(("where", "expression"), list(expressions()))
def test_each_metric_exists(where: str, expression: str) -> None:
    named = metrics_in(expression)
    assert named
    assert named <= metrics_in_the_code()


def test_each_metric_of_ours_is_on_a_dashboard() -> None:
    shown = {name for _, expression in expressions() for name in metrics_in(expression)}
    families = {re.sub(r"_(total|bucket|sum|count)$", "", name) for name in metrics_in_the_code()}
    assert families == {re.sub(r"_(total|bucket)$", "", name) for name in shown}


def test_dashboards_are_told_apart() -> None:
    boards = dashboards().values()
    assert len({board["uid"] for board in boards}) == len(boards) == 2
    for board in boards:
        ids = [panel["id"] for panel in board["panels"]]
        assert len(set(ids)) == len(ids)
