"""Ray's head as its pod's process starts it, on loopback: free ports instead of a pod's fixed ones."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from support.control_plane import environment, free_ports
from visionchat_serve import ray_node


@dataclass(frozen=True)
class Head:
    """`dashboard`: where Serve's REST API is; `api`: the gateway's port."""

    dashboard: str
    api: int
    log: Path


@contextmanager
def ray_head(told: Mapping[str, str], folder: Path, replicas: int = 2) -> Iterator[Head]:
    """`told` is what the pod is told. The head offers places for so many replicas besides the gateway's."""
    temporary = tempfile.mkdtemp(prefix="vc-ray-", dir="/tmp")  # short: Ray's sockets are in it
    gcs, dashboard, api, *others = free_ports(3 + len(ray_node.PORTS) - 2)
    told = {**told, "VISIONCHAT_HOST": "127.0.0.1", "VISIONCHAT_PORT": str(api), "POD_IP": "127.0.0.1"}
    run, extra = ray_node.command("head", told)
    moved = dict(zip([flag.partition("=")[0] for flag in ray_node.PORTS[:-2]], others, strict=True))
    moved |= {"--port": gcs, "--dashboard-port": dashboard}
    flags = [f"{name}={moved[name]}" if (name := flag.partition("=")[0]) in moved else flag for flag in run]
    places = f'{{"{ray_node.GATEWAY}": 1, "{ray_node.SLOT}": {replicas}}}'
    flags = [f"--resources={places}" if flag.startswith("--resources") else flag for flag in flags]
    flags = [flag for flag in flags if not flag.startswith(("--min-worker-port", "--max-worker-port"))]
    flags += [f"--temp-dir={temporary}", "--dashboard-host=127.0.0.1"]
    python = os.pathsep.join(sys.path)
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    env = {**environment(), **told, **extra, "PYTHONPATH": python, "PATH": path}
    with open(folder / "ray.log", "wb") as log:
        process = subprocess.Popen(flags, env=env, stdout=log, stderr=log, start_new_session=True)
    try:
        yield Head(f"http://127.0.0.1:{dashboard}", api, folder / "ray.log")
    finally:
        process.send_signal(signal.SIGTERM)
        try:
            process.wait(60)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
        shutil.rmtree(temporary, ignore_errors=True)
