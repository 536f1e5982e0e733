"""`make cluster` and `make cluster-down`: a real Kubernetes on this machine with a VisionChat in it, and its end.

    python tests/cluster/cluster.py up|down [--policy static|none]

Needs root, and the Debian packages that it installs if it may.
"""

from __future__ import annotations

import argparse
import shutil
import subprocess
import sys
from pathlib import Path

sys.path[:0] = [str(Path(__file__).resolve().parents[1])]

from support import cluster_parts as parts  # noqa: E402
from support.chart import RELEASE  # noqa: E402
from support.cluster_binaries import binaries  # noqa: E402
from support.cluster_fixtures import Chats, eventually  # noqa: E402
from support.real_cluster import RealCluster  # noqa: E402
from support.real_node import missing, packages  # noqa: E402

FOLDER = Path("/var/tmp/visionchat-cluster")
PICTURE = "tests/data/pictures/circle-and-square.png"
HOW = """\
A VisionChat named `demo` answers. Ask it, look at it, take everything away:

  .venv/bin/visionchat ask --url {url} {picture} "What do you see?"
  export KUBECONFIG={kubeconfig}
  {kubectl} get visionchats,pods --all-namespaces
  make cluster-down
"""


def install() -> None:
    """The packages that are missing, by apt. Ends the program where that is not possible."""
    if (names := packages()) and shutil.which("apt-get") is not None and missing() is not None:
        subprocess.run(["apt-get", "install", "--yes", "--no-install-recommends", *names], check=True)
    if (why := missing()) is not None:
        sys.exit(f"no cluster can be started here: {why}")


def up(policy: str) -> None:
    install()
    cluster = RealCluster(FOLDER, policy)
    try:
        cluster.start()
        print("the node is ready", flush=True)
        parts.fill(cluster)
        print("the chart is installed; Redis and the operator run", flush=True)
        show(cluster)
    except BaseException:
        cluster.stop()
        raise
    address = cluster.api.get(f"/api/v1/namespaces/{parts.SYSTEM}/services/demo")["spec"]["clusterIP"]
    (kubectl,) = binaries(["kubectl"]).values()
    print(HOW.format(url=f"http://{address}", picture=PICTURE, kubeconfig=cluster.kubeconfig, kubectl=kubectl))


def show(cluster: RealCluster) -> None:
    """Apply a VisionChat, wait until it answers, and let the chart's own test ask it."""
    cluster.apply(parts.visionchat(parts.SYSTEM))
    print("a VisionChat is applied", flush=True)
    eventually(lambda: Chats(cluster.api, parts.SYSTEM).condition("Ready")[0] == "True", "the VisionChat is ready", 300)
    print(parts.helm_says(cluster, "test", RELEASE, "--namespace", parts.SYSTEM), flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("action", choices=("up", "down"))
    parser.add_argument("--policy", choices=("static", "none"), default="static", help="the kubelet's CPU manager")
    args = parser.parse_args()
    up(args.policy) if args.action == "up" else RealCluster(FOLDER).stop()


if __name__ == "__main__":
    main()
