"""Thread limits that are true: in this process's environment, and in real processes with numpy and torch."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from visionchat_serve import cpu
from visionchat_serve.errors import ConfigError

SERVE = Path(cpu.__file__).parents[1]


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


def python(code: str, *before: str) -> list[str]:
    """Lines that a new process prints."""
    clean = {name: value for name, value in os.environ.items() if name not in cpu._VARIABLES}
    environment = clean | {"PYTHONPATH": str(SERVE)}
    command = [*before, sys.executable, "-c", code]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout.split()


def test_importing_it_imports_nothing_heavy() -> None:
    code = (
        "import sys; from visionchat_serve import cpu; print({'numpy', 'torch', 'ray', 'pydantic'} & set(sys.modules))"
    )
    assert python(code) == ["set()"]


BUSY = """
from visionchat_serve import cpu
{first}
cpu.limit_threads(1)
import numpy, torch
report = cpu.assert_threads(1)
a = numpy.ones((700, 700)); a @ a
b = torch.ones(700, 700); b @ b; torch.nn.functional.gelu(torch.ones(2000, 500))
assert (report.torch_threads, report.torch_interop_threads, report.blas_threads) == (1, 1, 1), report
import os
idle = {idle}
print(len(os.listdir("/proc/self/task")) - idle, report.niceness, report.memory_nodes is not None)
"""


def test_one_thread_means_one_thread() -> None:
    """Counted by the kernel, after work that would use every CPU."""
    assert python(BUSY.format(first="", idle=0)) == ["1", str(os.getpriority(os.PRIO_PROCESS, 0)), "True"]


def test_a_numpy_that_was_there_first_is_limited_too() -> None:
    """As in Ray's workers. The pool that it made at its import stays, asleep."""
    first = "import numpy; pool = len(__import__('os').listdir('/proc/self/task')) - 1"
    assert python(BUSY.format(first=first, idle="pool"))[0] == "1"


@pytest.mark.skipif(1 not in os.sched_getaffinity(0), reason="needs a second CPU")
def test_a_process_on_one_cpu_has_one() -> None:
    code = "from visionchat_serve import cpu; b = cpu.available_cpus(); print(b.whole, b.cpus, b.reason)"
    assert python(code, "taskset", "-c", "1") == ["1", "(1,)", "Affinity"]
