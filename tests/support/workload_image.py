"""Images without a registry, as archives that containerd imports: one layer, a few files, empty folders.

The workload's image holds mount points only: its pods see the host's programs, Python and this repository read-only.
So a test needs no image of some gigabytes, and runs the code that is being worked on.
"""

from __future__ import annotations

import hashlib
import io
import json
import platform
import sys
import tarfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
CODE = "/opt/visionchat"
PAUSE, WORKLOAD = "visionchat.test/pause:1", "visionchat.test/workload:1"
USER = 10001
PASSWD = f"root:x:0:0::/tmp:/bin/sh\nvisionchat:x:{USER}:{USER}::/tmp:/bin/sh\n"
FOLDERS = ("usr", "tmp", "root", "etc", "proc", "sys", "dev", "run", "var", CODE.lstrip("/"))
LINKS = {"bin": "usr/bin", "sbin": "usr/sbin", "lib": "usr/lib", "lib64": "usr/lib64"}


def pause(program: Path) -> bytes:
    """The archive of the image of which every pod's first container is made."""
    layer = _layer(files={"pause": program.read_bytes()})
    return _archive(PAUSE, layer, {"Entrypoint": ["/pause"]})


def workload() -> bytes:
    """The archive of the image for everything else; its pods need `volumes` and `mounts`."""
    path = f"{sys.prefix}/bin:/usr/local/bin:/usr/bin:/usr/sbin"
    env = {"PATH": path, "PYTHONPATH": f"{CODE}/serve:{CODE}/operator", "PYTHONDONTWRITEBYTECODE": "1"}
    layer = _layer(FOLDERS, LINKS, {"etc/passwd": PASSWD.encode(), "etc/group": f"visionchat:x:{USER}:\n".encode()})
    return _archive(WORKLOAD, layer, {"Env": [f"{name}={value}" for name, value in env.items()], "User": str(USER)})


def _seen() -> dict[str, Path]:
    """Volume's name to the folder of the host: programs, Python, what is installed for it, and this repository."""
    found = {"usr": Path("/usr"), "python": Path(sys.base_prefix), "venv": Path(sys.prefix)}
    return {name: path for name, path in found.items() if name == "usr" or not path.is_relative_to("/usr")}


def volumes() -> list[dict[str, Any]]:
    places = {**_seen(), "code": ROOT}
    return [{"name": f"host-{name}", "hostPath": {"path": str(path)}} for name, path in places.items()]


def mounts() -> list[dict[str, Any]]:
    places = {name: str(path) for name, path in _seen().items()} | {"code": CODE}
    return [{"name": f"host-{name}", "mountPath": path, "readOnly": True} for name, path in places.items()]


# --- the archive ---


def _layer(folders: tuple[str, ...] = (), links: Mapping[str, str] = {}, files: Mapping[str, bytes] = {}) -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as tar:
        for name in folders:
            entry = tarfile.TarInfo(name)
            entry.type, entry.mode = tarfile.DIRTYPE, 0o1777 if name == "tmp" else 0o755
            tar.addfile(entry)
        for name, target in links.items():
            entry = tarfile.TarInfo(name)
            entry.type, entry.linkname = tarfile.SYMTYPE, target
            tar.addfile(entry)
        for name, content in files.items():
            _add(tar, name, content, 0o755)
    return buffer.getvalue()


def _archive(name: str, layer: bytes, config: dict[str, Any]) -> bytes:
    """An OCI image layout, see the image specification."""
    blobs: dict[str, bytes] = {}

    def blob(content: bytes, kind: str) -> dict[str, Any]:
        digest = hashlib.sha256(content).hexdigest()
        blobs[f"blobs/sha256/{digest}"] = content
        media = f"application/vnd.oci.image.{kind}"
        return {"mediaType": media, "digest": f"sha256:{digest}", "size": len(content)}

    filled = blob(layer, "layer.v1.tar")
    described = {
        "architecture": {"x86_64": "amd64", "aarch64": "arm64"}.get(platform.machine(), platform.machine()),
        "os": "linux",
        "config": config,
        "rootfs": {"type": "layers", "diff_ids": [filled["digest"]]},
    }
    parts = {"config": blob(json.dumps(described).encode(), "config.v1+json"), "layers": [filled]}
    manifest = {"schemaVersion": 2, "mediaType": "application/vnd.oci.image.manifest.v1+json", **parts}
    entry = blob(json.dumps(manifest).encode(), "manifest.v1+json")
    entry["annotations"] = {"io.containerd.image.name": name, "org.opencontainers.image.ref.name": name}
    index = {"schemaVersion": 2, "manifests": [entry]}
    files = {"oci-layout": b'{"imageLayoutVersion":"1.0.0"}', "index.json": json.dumps(index).encode(), **blobs}
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as tar:
        for path, content in files.items():
            _add(tar, path, content, 0o644)
    return buffer.getvalue()


def _add(tar: tarfile.TarFile, name: str, content: bytes, mode: int) -> None:
    entry = tarfile.TarInfo(name)
    entry.size, entry.mode = len(content), mode
    tar.addfile(entry, io.BytesIO(content))
