"""Thread limits: what this process and its libraries are told. The integration tier counts real threads."""

from __future__ import annotations

import os

import pytest

from visionchat_serve import cpu
from visionchat_serve.errors import ConfigError


@pytest.fixture
def environment(monkeypatch: pytest.MonkeyPatch) -> None:
    """What `limit_threads` writes is undone."""
    for name in (*cpu._VARIABLES, "TOKENIZERS_PARALLELISM"):
        monkeypatch.setenv(name, "7")


@pytest.mark.usefixtures("environment")
def test_every_library_is_told() -> None:
    told = cpu.limit_threads(3)
    assert {name: os.environ[name] for name in told} == told
    assert told["OMP_NUM_THREADS"] == told["OPENBLAS_NUM_THREADS"] == told["RAYON_NUM_THREADS"] == "3"
    assert told["TOKENIZERS_PARALLELISM"] == "false"


def test_no_threads_is_a_mistake() -> None:
    with pytest.raises(ConfigError, match="at least 1"):
        cpu.limit_threads(0)


def test_more_threads_than_cpus_are_refused() -> None:
    budget = cpu.CpuBudget((0, 1), 2, 1.5, 1, "Quota", "1 whole CPUs: CPUs 0-1 on 2 cores, a quota of 1.5")
    with pytest.raises(ConfigError, match=r"2 threads on 1 CPUs .* quota of 1\.5"):
        cpu.assert_threads(2, budget)
