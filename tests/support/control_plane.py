"""A real Kubernetes API server with its etcd, on loopback, for as long as a test session lasts.

No kubelet: `played_node` plays one where a test needs pods to become ready. The audit log tells who wrote what.
"""

from __future__ import annotations

import json
import os
import socket
import ssl
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import yaml
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import rsa

from support.cluster_binaries import binaries
from support.daemons import Daemons

TOKEN = "test-admin"
AUDIT_POLICY = {
    "apiVersion": "audit.k8s.io/v1",
    "kind": "Policy",
    "omitStages": ["RequestReceived"],
    "rules": [{"level": "Metadata"}],
}
READY_SECONDS = 60
LOOPBACK = "127.0.0.1"
FOR_PODS = ("--allow-privileged", "--kubelet-preferred-address-types=InternalIP")


class ControlPlane:
    """`url`, `kubeconfig` and `audit_log`; `api` is a client with all rights.

    On another `address` than loopback, pods reach the API server as well: as the Service `kubernetes`.
    """

    def __init__(self, folder: Path, address: str = LOOPBACK) -> None:
        self.folder, self.address = folder, address
        self.daemons = Daemons(folder)
        self.audit_log = folder / "audit.log"
        self.kubeconfig = folder / "kubeconfig"

    def start(self, extra: Sequence[str] = ()) -> None:
        """etcd, then the API server; with `kube-controller-manager` in `extra`, that too."""
        paths = binaries(["etcd", "kube-apiserver", *extra])
        client, peer, secure = free_ports(3)
        self.url = f"https://{self.address}:{secure}"
        self._write_files()
        etcd = f"http://127.0.0.1:{client}"
        self.daemons.start([
            str(paths["etcd"]), "--data-dir", str(self.folder / "etcd"), "--unsafe-no-fsync", "--log-level", "error",
            "--listen-client-urls", etcd, "--advertise-client-urls", etcd,
            "--listen-peer-urls", f"http://127.0.0.1:{peer}", "--initial-advertise-peer-urls", f"http://127.0.0.1:{peer}",
            "--initial-cluster", f"default=http://127.0.0.1:{peer}",
        ])  # fmt: skip
        key = str(self.folder / "sa.key")
        own = ["--endpoint-reconciler-type", "none"] if self.address == LOOPBACK else FOR_PODS
        self.daemons.start([
            str(paths["kube-apiserver"]), "--etcd-servers", etcd, "--bind-address", self.address, *own,
            "--advertise-address", self.address, "--secure-port", str(secure), "--cert-dir", str(self.folder / "pki"),
            "--service-account-key-file", key, "--service-account-signing-key-file", key,
            "--service-account-issuer", "https://kubernetes.default.svc",
            "--service-cluster-ip-range", "198.18.128.0/20",
            "--authorization-mode", "Node,RBAC", "--token-auth-file", str(self.folder / "tokens.csv"),
            "--audit-policy-file", str(self.folder / "audit.yaml"), "--audit-log-path", str(self.audit_log),
        ])  # fmt: skip
        self.api = Api(self.url, TOKEN)
        self._wait_until_ready()
        if "kube-controller-manager" in extra:
            self.run_controllers()

    def run_controllers(self, names: str = "*") -> None:
        """The controller manager with these controllers; custom resources should be there already."""
        (path,) = binaries(["kube-controller-manager"]).values()
        self.daemons.start([
            str(path), "--kubeconfig", str(self.kubeconfig), "--leader-elect=false", f"--controllers={names}",
            "--use-service-account-credentials", "--service-account-private-key-file", str(self.folder / "sa.key"),
            "--root-ca-file", str(self.folder / "pki" / "apiserver.crt"), "--secure-port", "0",
        ])  # fmt: skip

    def stop(self) -> None:
        """The last that was started first: an API server without its etcd hangs for minutes."""
        self.daemons.stop()

    def write_kubeconfig(self, path: Path, token: str) -> Path:
        user, cluster = {"token": token}, {"server": self.url, "insecure-skip-tls-verify": True}
        config = {
            "apiVersion": "v1",
            "kind": "Config",
            "clusters": [{"name": "test", "cluster": cluster}],
            "users": [{"name": "test", "user": user}],
            "contexts": [{"name": "test", "context": {"cluster": "test", "user": "test"}}],
            "current-context": "test",
        }
        path.write_text(yaml.safe_dump(config))
        return path

    def audit(self) -> Iterator[dict[str, Any]]:
        """Every request so far."""
        with open(self.audit_log, encoding="utf-8") as log:
            for line in log:
                if line.endswith("\n"):
                    yield json.loads(line)

    def _write_files(self) -> None:
        self.folder.mkdir(parents=True, exist_ok=True)
        key = rsa.generate_private_key(public_exponent=65537, key_size=2048)
        pem = key.private_bytes(
            serialization.Encoding.PEM, serialization.PrivateFormat.TraditionalOpenSSL, serialization.NoEncryption()
        )
        (self.folder / "sa.key").write_bytes(pem)
        (self.folder / "tokens.csv").write_text(f'{TOKEN},admin,1,"system:masters"\n')
        (self.folder / "audit.yaml").write_text(yaml.safe_dump(AUDIT_POLICY))
        self.write_kubeconfig(self.kubeconfig, TOKEN)

    def _wait_until_ready(self) -> None:
        deadline = time.monotonic() + READY_SECONDS
        while time.monotonic() < deadline:
            self.daemons.check()
            if self.api.is_ready():
                return
            time.sleep(0.1)
        raise AssertionError(f"the API server was not ready within {READY_SECONDS} s")


@contextmanager
def control_plane(folder: Path, extra: Sequence[str] = ()) -> Iterator[ControlPlane]:
    plane = ControlPlane(folder)
    try:
        plane.start(extra)
        yield plane
    finally:
        plane.stop()


class Api:
    """A small client, apart from the operator's own, so that tests do not check a fault with itself."""

    def __init__(self, url: str, token: str) -> None:
        context = ssl.create_default_context()
        context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
        headers = {"Authorization": f"Bearer {token}"}
        self._http = httpx.Client(base_url=url, headers=headers, verify=context, timeout=20, trust_env=False)

    def is_ready(self) -> bool:
        try:
            return self._http.get("/readyz").status_code == 200
        except httpx.HTTPError:
            return False

    def call(self, verb: str, path: str, body: Any = None, **options: Any) -> httpx.Response:
        headers = {"Content-Type": options.pop("content_type", "application/json"), **options.pop("headers", {})}
        content = None if body is None else json.dumps(body)
        return self._http.request(verb, path, content=content, headers=headers, **options)

    def get(self, path: str) -> Any:
        answer = self.call("GET", path)
        return None if answer.status_code == 404 else _body(answer)

    def create(self, path: str, body: Any) -> Any:
        return _body(self.call("POST", path, body))

    def merge(self, path: str, body: Any) -> Any:
        return _body(self.call("PATCH", path, body, content_type="application/merge-patch+json"))

    def delete(self, path: str, **options: Any) -> None:
        answer = self.call("DELETE", path, options or None)
        if answer.status_code not in (200, 202, 404, 409):
            _body(answer)

    def close(self) -> None:
        self._http.close()


def _body(answer: httpx.Response) -> Any:
    assert answer.is_success, f"{answer.request.method} {answer.request.url}: {answer.status_code} {answer.text[:2000]}"
    return answer.json()


def free_ports(number: int) -> list[int]:
    """Ports that nobody listens on just now."""
    sockets = [socket.socket() for _ in range(number)]
    try:
        for one in sockets:
            one.bind(("127.0.0.1", 0))
        return [one.getsockname()[1] for one in sockets]
    finally:
        for one in sockets:
            one.close()


def environment() -> dict[str, str]:
    """Ours for a child process, without a proxy between it and loopback."""
    return {k: v for k, v in os.environ.items() if not k.lower().endswith("_proxy")}
