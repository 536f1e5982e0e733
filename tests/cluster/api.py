"""`make cluster-api`: a real API server on loopback with the CRD, until Ctrl-C. Prints where its kubeconfig is."""

from __future__ import annotations

import signal
import sys
import tempfile
from pathlib import Path

sys.path[:0] = [str(Path(__file__).resolve().parents[1])]

from support.control_plane import control_plane  # noqa: E402
from visionchat_operator.crd import custom_resource_definition  # noqa: E402


def main() -> int:
    with tempfile.TemporaryDirectory(prefix="visionchat-api-") as folder, control_plane(Path(folder)) as plane:
        plane.api.create("/apis/apiextensions.k8s.io/v1/customresourcedefinitions", custom_resource_definition())
        print(f"KUBECONFIG={plane.kubeconfig}", flush=True)
        print(
            "Ctrl-C stops it; `visionchat-operator run --kubeconfig FILE` looks after it", file=sys.stderr, flush=True
        )
        signal.sigwait({signal.SIGINT, signal.SIGTERM})
    return 0


if __name__ == "__main__":
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT, signal.SIGTERM})
    sys.exit(main())
