"""Thread limits that are true, in real processes with numpy and torch."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from visionchat_serve import cpu

SERVE = Path(cpu.__file__).parents[1]


def python(code: str, *before: str) -> list[str]:
    """Lines that a new process prints."""
    clean = {name: value for name, value in os.environ.items() if name not in cpu._VARIABLES}
    environment = clean | {"PYTHONPATH": str(SERVE)}
    command = [*before, sys.executable, "-c", code]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout.split()


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
