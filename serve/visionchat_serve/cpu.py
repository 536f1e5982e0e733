"""The threads of a replica: exactly as many as it has whole CPUs, in every library, and proof of it.

    limit_threads(n)    first of all, before numpy or torch is imported: libraries read the environment when they start
    assert_threads(n)   after they are imported: set, measure, report; refuse to run with another number

Neither sets the CPU affinity: the kubelet's cpuset owns it. What is sized by argument is the caller's: OpenVINO's and
ONNX Runtime's threads, and Python's own pools, which count the machine's CPUs (`asyncio.to_thread`,
`ThreadPoolExecutor()`). Standard library only; torch is looked at only when somebody else has imported it.
"""

from __future__ import annotations

import ctypes
import os
import sys
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from visionchat_serve.cgroup import Throttling, read_cgroup, read_text
from visionchat_serve.cpu_budget import CpuBudget, available_cpus
from visionchat_serve.errors import ConfigError, EngineFailure

__all__ = ["CpuBudget", "ThreadReport", "assert_threads", "available_cpus", "limit_threads"]

_VARIABLES = (
    "OMP_NUM_THREADS",
    "MKL_NUM_THREADS",
    "OPENBLAS_NUM_THREADS",
    "NUMEXPR_NUM_THREADS",
    "NUMEXPR_MAX_THREADS",
    "VECLIB_MAXIMUM_THREADS",
    "RAYON_NUM_THREADS",
)
_WAITING = {"OMP_WAIT_POLICY": "PASSIVE", "KMP_BLOCKTIME": "0"}  # GNU's and LLVM's OpenMP
_BLAS_NAMES = (
    ("openblas_set_num_threads", "openblas_get_num_threads"),
    ("openblas_set_num_threads64_", "openblas_get_num_threads64_"),
    ("scipy_openblas_set_num_threads", "scipy_openblas_get_num_threads"),
    ("scipy_openblas_set_num_threads64_", "scipy_openblas_get_num_threads64_"),
)


@dataclass(frozen=True, slots=True)
class ThreadReport:
    """What is really so, for logs, heartbeat and metrics. None: that library is not loaded, or the kernel is silent."""

    threads: int
    torch_threads: int | None
    torch_interop_threads: int | None
    blas_threads: int | None
    process_threads: int | None
    whole_cpus: int
    affinity: tuple[int, ...]
    cpuset: tuple[int, ...] | None
    memory_nodes: str | None
    quota: float | None
    throttling: Throttling | None
    niceness: int


def limit_threads(threads: int) -> dict[str, str]:
    """Tell every library by the environment, also those of child processes; returns what was set.

    A numpy that is here already (Ray's workers import it) has read the environment before: it is told directly.
    """
    if threads < 1:
        raise ConfigError(f"{threads} threads were asked for; at least 1 is needed")
    # Tokenizers would start a pool of its own for batches, which we do not have.
    wanted = dict.fromkeys(_VARIABLES, str(threads)) | {"TOKENIZERS_PARALLELISM": "false"}
    # A thread that spins while it waits keeps the one it waits for from its core as soon as anybody else wants a
    # core too: beside one busy neighbour, tokens took ten times as long. Who pins cores of their own may say ACTIVE.
    wanted |= {name: os.environ.get(name, value) for name, value in _WAITING.items()}
    os.environ.update(wanted)
    _limit_blas(threads)
    return wanted


def assert_threads(threads: int, budget: CpuBudget | None = None) -> ThreadReport:
    """Set what can be set late, then measure. Raises `ConfigError` when there are not that many CPUs, and
    `EngineFailure` when a library still uses another number."""
    budget = available_cpus() if budget is None else budget
    if threads > budget.whole:
        raise ConfigError(f"{threads} threads on {budget.whole} CPUs would fight each other; {budget.message}")
    torch = sys.modules.get("torch")
    if torch is not None:
        _limit_torch(torch, threads)
    _limit_blas(threads)
    report = _measure(threads, budget, torch)
    if report.torch_threads not in (None, threads):
        raise EngineFailure(f"torch uses {report.torch_threads} threads instead of {threads}")
    if (report.blas_threads or 0) > threads:  # fewer is possible: the wheels are built for at most 64
        raise EngineFailure(f"numpy's BLAS uses {report.blas_threads} threads instead of {threads}")
    return report


def _limit_torch(torch: Any, threads: int) -> None:
    torch.set_num_threads(threads)
    if torch.get_num_interop_threads() != 1:
        # only possible before the first parallel work; an idle pool does no harm, and the report shows it
        with suppress(RuntimeError):
            torch.set_num_interop_threads(1)


def _measure(threads: int, budget: CpuBudget, torch: Any) -> ThreadReport:
    cgroup = read_cgroup()
    status = dict(line.split(":\t", 1) for line in _status_lines() if ":\t" in line)
    return ThreadReport(
        threads=threads,
        torch_threads=None if torch is None else torch.get_num_threads(),
        torch_interop_threads=None if torch is None else torch.get_num_interop_threads(),
        blas_threads=next((get() for _, get in _blas()), None),
        process_threads=int(status["Threads"]) if "Threads" in status else None,
        whole_cpus=budget.whole,
        affinity=tuple(sorted(os.sched_getaffinity(0))),
        cpuset=None if cgroup.cpus is None else tuple(sorted(cgroup.cpus)),
        memory_nodes=status.get("Mems_allowed_list"),
        quota=cgroup.quota,
        throttling=cgroup.throttling,
        niceness=os.getpriority(os.PRIO_PROCESS, 0),
    )


def _status_lines() -> list[str]:
    return (read_text(Path("/proc/self/status")) or "").splitlines()


def _limit_blas(threads: int) -> None:
    for set_threads, _ in _blas():
        set_threads(threads)


def _blas() -> Iterator[tuple[Any, Any]]:
    """Setter and getter of every OpenBLAS in this process, by the names that wheels give them."""
    maps = (read_text(Path("/proc/self/maps")) or "").splitlines()
    for path in sorted({line.split(maxsplit=5)[-1] for line in maps if "openblas" in line}):
        if not Path(path).exists():
            continue  # replaced on disk since: loading it again would load another one
        library = ctypes.CDLL(path)  # it is loaded already: this only takes hold of it
        for set_name, get_name in _BLAS_NAMES:
            if hasattr(library, set_name) and hasattr(library, get_name):
                yield library[set_name], library[get_name]
