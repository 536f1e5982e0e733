"""The `restricted` Pod Security profile as a function of a pod's spec, and what we ask beyond it. Pure.

Written from the profile's public description; the API server's own check is asked in the apiserver tier.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

VOLUMES = {
    "configMap", "csi", "downwardAPI", "emptyDir", "ephemeral", "image", "persistentVolumeClaim", "projected", "secret",
}  # fmt: skip
SECCOMP = {"RuntimeDefault", "Localhost"}
SYSCTLS = {
    "kernel.shm_rmid_forced", "net.ipv4.ip_local_port_range", "net.ipv4.ip_local_reserved_ports",
    "net.ipv4.ip_unprivileged_port_start", "net.ipv4.ping_group_range", "net.ipv4.tcp_fin_timeout",
    "net.ipv4.tcp_keepalive_intvl", "net.ipv4.tcp_keepalive_probes", "net.ipv4.tcp_keepalive_time",
    "net.ipv4.tcp_rmem", "net.ipv4.tcp_syncookies", "net.ipv4.tcp_wmem",
}  # fmt: skip

Pod = dict[str, Any]


def containers(pod: Pod) -> Iterator[dict[str, Any]]:
    for kind in ("initContainers", "containers", "ephemeralContainers"):
        yield from pod.get(kind, ())


def faults(pod: Pod) -> Iterator[str]:
    """What `restricted` forbids."""
    yield from (f"{field} is set" for field in ("hostNetwork", "hostPID", "hostIPC") if pod.get(field))
    for volume in pod.get("volumes", ()):
        yield from (f"volume {volume['name']}: {kind}" for kind in volume.keys() - VOLUMES - {"name"})
    context = pod.get("securityContext", {})
    yield from (f"sysctl {s['name']}" for s in context.get("sysctls", ()) if s["name"] not in SYSCTLS)
    if context.get("runAsUser") == 0:
        yield "pod: runs as root"
    for container in containers(pod):
        own = container.get("securityContext", {})
        yield from (f"{container['name']}: {fault}" for fault in _container_faults(container, own, context))


def _container_faults(container: dict[str, Any], own: dict[str, Any], pod: dict[str, Any]) -> Iterator[str]:
    if own.get("privileged"):
        yield "privileged"
    if own.get("allowPrivilegeEscalation") is not False:
        yield "allowPrivilegeEscalation is not false"
    if own.get("runAsNonRoot", pod.get("runAsNonRoot")) is not True:
        yield "runAsNonRoot is not true"
    if own.get("runAsUser") == 0:
        yield "runs as root"
    if (own.get("seccompProfile") or pod.get("seccompProfile") or {}).get("type") not in SECCOMP:
        yield "seccompProfile is neither RuntimeDefault nor Localhost"
    if own.get("procMount", "Default") != "Default":
        yield "procMount is not Default"
    yield from _capability_faults(own.get("capabilities", {}))
    yield from (f"hostPort {port['hostPort']}" for port in container.get("ports", ()) if port.get("hostPort"))


def _capability_faults(capabilities: dict[str, list[str]]) -> Iterator[str]:
    if "ALL" not in capabilities.get("drop", ()):
        yield "does not drop all capabilities"
    yield from (f"adds {name}" for name in capabilities.get("add", ()) if name != "NET_BIND_SERVICE")


def laxities(pod: Pod, token: bool = False) -> Iterator[str]:
    """What we ask beyond the profile. `token`: the pod talks to the API server."""
    if pod.get("enableServiceLinks") is not False:
        yield "enableServiceLinks is not false"
    if pod.get("automountServiceAccountToken") is not token:
        yield f"automountServiceAccountToken is not {token}"
    if not isinstance(pod.get("securityContext", {}).get("runAsUser"), int):
        yield "runAsUser is no number"
    for container in containers(pod):
        if container.get("securityContext", {}).get("readOnlyRootFilesystem") is not True:
            yield f"{container['name']}: the root can be written"
        if not {"requests", "limits"} <= container.get("resources", {}).keys():
            yield f"{container['name']}: no requests and limits"
        if "/tmp" not in {mount["mountPath"] for mount in container.get("volumeMounts", ())}:
            yield f"{container['name']}: /tmp cannot be written"
