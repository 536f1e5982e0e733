"""The programs of the test cluster, found or built: etcd, Kubernetes, containerd, CoreDNS, Helm.

Looked for in `KUBEBUILDER_ASSETS`, then in the user's cache, else built into it by the Go client from the modules that
`tests/cluster/*/go.mod` names. Building takes minutes, once for each version.
"""

from __future__ import annotations

import fcntl
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest

MODULES = Path(__file__).resolve().parents[1] / "cluster"


@dataclass(frozen=True, slots=True)
class Family:
    """Programs that one go.mod names: their module, and each one's package below it."""

    module: str
    packages: dict[str, str]
    flags: tuple[str, ...] = ()


def _commands(*names: str) -> dict[str, str]:
    return {name: f"/cmd/{name}" for name in names}


FAMILIES = {
    "etcd": Family("go.etcd.io/etcd/server/v3", {"etcd": ""}),
    "kubernetes": Family(
        "k8s.io/kubernetes",
        _commands("kube-apiserver", "kube-controller-manager", "kube-scheduler", "kubectl", "kubelet", "kube-proxy"),
    ),
    "containerd": Family(
        "github.com/containerd/containerd/v2",
        _commands("containerd", "containerd-shim-runc-v2", "ctr"),
        ("-tags", "no_btrfs no_zfs no_devmapper no_dynamic_plugins"),
    ),
    "coredns": Family("github.com/coredns/coredns", {"coredns": ""}),
    "helm": Family("helm.sh/helm/v4", _commands("helm")),
    "pause": Family("visionchat.dev/tests/pause", {"pause": ""}),
}
_FAMILY_OF = {program: name for name, family in FAMILIES.items() for program in family.packages}


def version(family: str) -> str:
    """As its go.mod pins it, e.g. `v1.37.2`; our own program has none."""
    text, module = (MODULES / family / "go.mod").read_text(), FAMILIES[family].module
    if text.startswith(f"module {module}\n"):
        return "v0"
    found = re.search(rf"^\s*(?:require )?{re.escape(module)} (v\S+)", text, re.MULTILINE)
    assert found is not None, f"{family}/go.mod names no version of {module}"
    return found[1]


def cache_folder(family: str) -> Path:
    """By version, so that another one does not find old programs."""
    root = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    return root / "visionchat" / f"{family}-{version(family)}"


def find(name: str) -> Path | None:
    assets = os.environ.get("KUBEBUILDER_ASSETS")
    for folder in (Path(assets) if assets else None, cache_folder(_FAMILY_OF[name])):
        if folder is not None and os.access(folder / name, os.X_OK):
            return folder / name
    return None


def binaries(names: Sequence[str]) -> dict[str, Path]:
    """Paths by name. Builds what is missing; skips the test, saying why, where that is not possible."""
    found = {name: find(name) for name in names}
    missing = [name for name, path in found.items() if path is None]
    if missing and shutil.which("go") is None:
        cache = cache_folder(_FAMILY_OF[missing[0]]).parent
        pytest.skip(f"{', '.join(missing)} not found in KUBEBUILDER_ASSETS or {cache}, and no `go` to build it")
    return {name: path or _build(name) for name, path in found.items()}


def _build(name: str) -> Path:
    family = FAMILIES[_FAMILY_OF[name]]
    folder = cache_folder(_FAMILY_OF[name])
    folder.mkdir(parents=True, exist_ok=True)
    with open(folder / ".lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # two runs at once build once
        if (built := find(name)) is not None:
            return built
        partial = folder / f"{name}.partial"
        package = family.module + family.packages[name]
        flags = ["-trimpath", "-ldflags", _linked(_FAMILY_OF[name]), *family.flags]
        env = {**os.environ, "CGO_ENABLED": "0"}
        command = ["go", "build", *flags, "-o", str(partial), package]
        subprocess.run(command, cwd=MODULES / _FAMILY_OF[name], env=env, check=True, timeout=3600)
        return partial.rename(folder / name)


def _linked(family: str) -> str:
    """Kubernetes' programs say v0.0.0 without this stamp, and then refuse each other."""
    if family != "kubernetes":
        return "-s -w"
    stamp, full = "k8s.io/component-base/version", version(family)
    major, minor, _ = full.removeprefix("v").split(".")
    return f"-s -w -X {stamp}.gitVersion={full} -X {stamp}.gitMajor={major} -X {stamp}.gitMinor={minor}"


if __name__ == "__main__":
    for program, path in binaries(sys.argv[1:] or list(_FAMILY_OF)).items():
        print(program, path)
