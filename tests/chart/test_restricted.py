"""Every pod of the chart passes the restricted Pod Security profile; and the check of that can fail."""

from __future__ import annotations

from copy import deepcopy
from typing import Any

import pytest

from support import pod_security
from support.chart import Objects, pods, template
from visionchat_operator.pods import USER


def judged(objects: Objects) -> dict[str, list[str]]:
    found = {}
    for name, pod in pods(objects).items():
        token = "operator" in name
        found[name] = [*pod_security.faults(pod), *pod_security.laxities(pod, token)]
    return found


CLEAN: dict[str, list[str]] = {
    "Deployment visionchat-operator": [],
    "StatefulSet visionchat-redis": [],
    "Pod visionchat-test": [],
}


def test_by_default(by_default: Objects) -> None:
    assert judged(by_default) == CLEAN


def test_with_everything_on(everything: Objects) -> None:
    assert judged(everything) == CLEAN


def test_without_a_claim() -> None:
    assert judged(template({"redis.persistence.enabled": False})) == CLEAN


def good() -> dict[str, Any]:
    container = {
        "name": "c",
        "securityContext": {
            "allowPrivilegeEscalation": False,
            "capabilities": {"drop": ["ALL"]},
            "readOnlyRootFilesystem": True,
        },
        "resources": {"requests": {}, "limits": {}},
        "volumeMounts": [{"name": "tmp", "mountPath": "/tmp"}],
    }
    context = {"runAsNonRoot": True, "runAsUser": USER, "seccompProfile": {"type": "RuntimeDefault"}}
    return {
        "enableServiceLinks": False,
        "automountServiceAccountToken": False,
        "securityContext": context,
        "containers": [container],
        "volumes": [{"name": "tmp", "emptyDir": {}}],
    }


def test_a_good_pod_passes() -> None:
    assert [*pod_security.faults(good()), *pod_security.laxities(good())] == []


@pytest.mark.parametrize(
    ("place", "value", "says"),
    [
        ("hostNetwork", True, "hostNetwork is set"),
        ("hostPID", True, "hostPID is set"),
        ("hostIPC", True, "hostIPC is set"),
        ("volumes.0.hostPath", {"path": "/"}, "volume tmp: hostPath"),
        ("securityContext.runAsUser", 0, "pod: runs as root"),
        ("securityContext.runAsNonRoot", False, "c: runAsNonRoot is not true"),
        ("securityContext.seccompProfile", {"type": "Unconfined"}, "c: seccompProfile is neither"),
        ("securityContext.sysctls", [{"name": "kernel.msgmax", "value": "1"}], "sysctl kernel.msgmax"),
        ("containers.0.securityContext.privileged", True, "c: privileged"),
        ("containers.0.securityContext.allowPrivilegeEscalation", None, "c: allowPrivilegeEscalation is not false"),
        ("containers.0.securityContext.runAsUser", 0, "c: runs as root"),
        ("containers.0.securityContext.procMount", "Unmasked", "c: procMount is not Default"),
        ("containers.0.securityContext.capabilities", {"drop": ["NET_RAW"]}, "c: does not drop all capabilities"),
        ("containers.0.securityContext.capabilities", {"drop": ["ALL"], "add": ["CHOWN"]}, "c: adds CHOWN"),
        ("containers.0.ports", [{"hostPort": 80}], "c: hostPort 80"),
        ("initContainers", [{"name": "i"}], "i: runs as root|i: allowPrivilegeEscalation is not false"),
        ("enableServiceLinks", True, "enableServiceLinks is not false"),
        ("automountServiceAccountToken", True, "automountServiceAccountToken is not False"),
        ("containers.0.securityContext.readOnlyRootFilesystem", False, "c: the root can be written"),
        ("containers.0.resources", {}, "c: no requests and limits"),
        ("containers.0.volumeMounts", [], "c: /tmp cannot be written"),
    ],
)
def test_what_is_lax_is_found(place: str, value: Any, says: str) -> None:
    pod: Any = good()
    *path, last = place.split(".")
    at = pod
    for word in path:
        at = at[int(word) if word.isdigit() else word]
    at[last] = deepcopy(value)
    found = [*pod_security.faults(pod), *pod_security.laxities(pod)]
    assert any(fault.startswith(tuple(says.split("|"))) for fault in found), found
