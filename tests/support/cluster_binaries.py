"""The programs of the test cluster: etcd and Kubernetes, found or built.

Looked for in `KUBEBUILDER_ASSETS`, then in the user's cache, else built into it by the Go client from the modules that
`tests/cluster/*/go.mod` names, one version for all. Building takes minutes, once.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path

import pytest

MODULES = Path(__file__).resolve().parents[1] / "cluster"
KUBERNETES = "v1.37.2"
_STAMP = "k8s.io/component-base/version"
_LDFLAGS = f"-s -w -X {_STAMP}.gitVersion={KUBERNETES} -X {_STAMP}.gitMajor=1 -X {_STAMP}.gitMinor=37"
_PACKAGES = {"etcd": ("etcd", "go.etcd.io/etcd/server/v3")} | {
    name: ("kubernetes", f"k8s.io/kubernetes/cmd/{name}")
    for name in ("kube-apiserver", "kube-controller-manager", "kube-scheduler", "kubectl")
}


def cache_folder() -> Path:
    """By version, so that another one does not find old programs."""
    root = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    return root / "visionchat" / f"kubernetes-{KUBERNETES}"


def find(name: str) -> Path | None:
    assets = os.environ.get("KUBEBUILDER_ASSETS")
    for folder in (Path(assets) if assets else None, cache_folder()):
        if folder is not None and os.access(folder / name, os.X_OK):
            return folder / name
    return None


def binaries(names: Sequence[str]) -> dict[str, Path]:
    """Paths by name. Builds what is missing; skips the test, saying why, where that is not possible."""
    found = {name: find(name) for name in names}
    missing = [name for name, path in found.items() if path is None]
    if missing and shutil.which("go") is None:
        pytest.skip(
            f"{', '.join(missing)} not found in KUBEBUILDER_ASSETS or {cache_folder()}, and no `go` to build it"
        )
    return {name: path or _build(name) for name, path in found.items()}


def _build(name: str) -> Path:
    module, package = _PACKAGES[name]
    folder = cache_folder()
    folder.mkdir(parents=True, exist_ok=True)
    with open(folder / ".lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # two runs at once build once
        if (built := find(name)) is not None:
            return built
        partial = folder / f"{name}.partial"
        command = ["go", "build", "-trimpath", "-ldflags", _LDFLAGS, "-o", str(partial), package]
        env = {**os.environ, "CGO_ENABLED": "0"}
        subprocess.run(command, cwd=MODULES / module, env=env, check=True, timeout=3600)
        return partial.rename(folder / name)
