"""`make bench-pinning`: one replica on shared CPUs and on a CPU of its own, alone and beside a busy neighbour.

    python tests/bench/pinning.py [--rounds N] [--max-tokens N]

On a real kubelet with the static CPU manager, started for it (root; nothing else should run). One question at a time,
a new picture each time. Prints a table, gains or none.
"""

from __future__ import annotations

import argparse
import io
import statistics
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from PIL import Image, ImageDraw

sys.path[:0] = [str(Path(__file__).resolve().parents[1])]

from support import cluster_parts as parts  # noqa: E402
from support.cluster_fixtures import Chats, eventually  # noqa: E402
from support.pod_costs import pod_costs  # noqa: E402
from support.real_cluster import RealCluster, real_cluster  # noqa: E402
from support.workload_image import WORKLOAD, mounts, volumes  # noqa: E402
from visionchat_serve.client import Timing, ask  # noqa: E402

NAMESPACE = parts.SYSTEM
BUSY = "import os\nfor _ in range(1):\n    os.fork()\nwhile True:\n    sum(range(10000))"
UNCACHED = {"env": [{"name": "VISIONCHAT_CACHE_TTL_SECONDS", "value": "0"}]}


@dataclass(frozen=True, slots=True)
class Row:
    mode: str
    neighbour: str
    first_ms: list[float]
    tokens_per_second: list[float]
    switches_per_second: float
    throttled_share: float

    def __str__(self) -> str:
        first, speed = self.first_ms, self.tokens_per_second
        return (
            f"| {self.mode} | {self.neighbour} | {statistics.median(first):.0f} | {_p95(first):.0f} "
            f"| {statistics.median(speed):.1f} | {min(speed):.1f} | {self.switches_per_second:.0f} "
            f"| {self.throttled_share:.1%} |"
        )


HEAD = (
    "| CPUs | neighbour | first token p50, ms | p95, ms | tokens/s p50 | slowest | context switches/s | throttled |\n"
    "|---|---|---:|---:|---:|---:|---:|---:|"
)


def _p95(values: list[float]) -> float:
    return sorted(values)[max(0, round(0.95 * len(values)) - 1)]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=60)
    parser.add_argument("--max-tokens", type=int, default=60)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder, real_cluster(Path(folder) / "cluster") as cluster:
        parts.fill(cluster)
        chats = Chats(cluster.api, NAMESPACE)
        print(HEAD, flush=True)
        for mode in ("Never", "Always"):
            _apply(cluster, chats, mode)
            for busy in (False, True):
                with_neighbour(cluster, busy)
                print(measure(cluster, chats, mode, busy, args.rounds, args.max_tokens, Path(folder)), flush=True)


def _apply(cluster: RealCluster, chats: Chats, mode: str) -> None:
    cluster.apply(parts.visionchat(NAMESPACE, pinning={"mode": mode}, podTemplate=UNCACHED))
    wanted = {"Never": ("False", "NotAsked"), "Always": ("True", "Pinned")}[mode]
    eventually(lambda: chats.ready(1) and chats.condition("CPUPinned") == wanted, f"pinning {mode}", 240)


def with_neighbour(cluster: RealCluster, busy: bool) -> None:
    """Two processes that never rest, in a pod without limits; or nobody."""
    cluster.kubectl("-n", NAMESPACE, "delete", "pod", "neighbour", "--ignore-not-found", "--grace-period=1")
    if not busy:
        return
    container = {"name": "busy", "image": WORKLOAD, "command": ["python", "-c", BUSY], "volumeMounts": mounts()}
    container["resources"] = {"requests": {"cpu": "10m"}}
    metadata = {"name": "neighbour", "namespace": NAMESPACE}
    spec = {"containers": [container], "volumes": volumes()}
    cluster.apply({"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec})
    cluster.kubectl("-n", NAMESPACE, "wait", "--for=condition=Ready", "pod/neighbour", "--timeout=60s", seconds=70)


def measure(
    cluster: RealCluster, chats: Chats, mode: str, busy: bool, rounds: int, max_tokens: int, folder: Path
) -> Row:
    service = cluster.api.get(f"/api/v1/namespaces/{NAMESPACE}/services/demo")
    url = f"http://{service['spec']['clusterIP']}"
    (replica,) = chats.status()["replicaList"]
    uid = cluster.api.get(f"/api/v1/namespaces/{NAMESPACE}/pods/{replica['pod']}")["metadata"]["uid"]
    before, began, timings = pod_costs(uid), time.monotonic(), []
    for number in range(rounds):
        picture = folder / "picture.png"
        picture.write_bytes(draw(number))
        timing = Timing()
        options: dict[str, Any] = {"max_tokens": max_tokens, "temperature": 1.6, "seed": number}
        list(ask(url, [picture], "Describe the picture.", timing, **options))
        timings.append(timing)
    after, seconds = pod_costs(uid), time.monotonic() - began
    periods = after.periods - before.periods
    return Row(
        "its own" if mode == "Always" else "shared",
        "busy" if busy else "none",
        [1000 * t.first_token for t in timings if t.first_token is not None],
        [t.tokens_per_second for t in timings if t.tokens_per_second is not None],
        (after.switches - before.switches) / seconds,
        (after.throttled - before.throttled) / periods if periods else 0.0,
    )


def draw(number: int) -> bytes:
    """Another picture for each number: none is known to the replica from an earlier question."""
    image = Image.new("RGB", (512, 384), (255, 255, number % 256))
    ImageDraw.Draw(image).ellipse((20 + number % 200, 60, 190 + number % 200, 230), fill="red")
    file = io.BytesIO()
    image.save(file, "PNG")
    return file.getvalue()


if __name__ == "__main__":
    main()
