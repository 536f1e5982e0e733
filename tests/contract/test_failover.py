"""The head's process behind Sentinels: what it becomes is ended when another Redis takes over.

The process is the real one; what it becomes is a stand-in for `ray`, because Ray's ports are fixed.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path

from redis import Redis
from redis.exceptions import RedisError

from support.control_plane import environment
from support.redis_servers import launching
from support.waiting import wait_until
from visionchat_serve.redis_server import find_servers

RAY = """#!/bin/sh
echo "$RAY_REDIS_ADDRESS" > {place}
exec sleep 100
"""


async def test_ray_is_ended_after_a_failover_and_starts_with_the_new_master(tmp_path: Path) -> None:
    place = tmp_path / "place"
    (tmp_path / "ray").write_text(RAY.format(place=place))
    (tmp_path / "ray").chmod(0o755)
    binary, _ = next(iter(find_servers()))
    with launching(binary, tmp_path) as launch, ExitStack() as stack:
        first = launch("port {port}")
        second = launch("port {port}", f"replicaof 127.0.0.1 {first}")
        for port in (first, second):
            await wait_until(answers(port), "a server answers")
        quick = "sentinel down-after-milliseconds main 300", "sentinel failover-timeout main 2000"
        sentinel = launch("port {port}", f"sentinel monitor main 127.0.0.1 {first} 1", *quick, sentinel=True)
        await wait_until(answers(sentinel), "the Sentinel answers")
        with Redis(port=sentinel) as watch:
            await wait_until(lambda: bool(watch.sentinel_slaves("main")), "it knows the second server", seconds=30)
        told = {
            **environment(),
            "PATH": f"{tmp_path}{os.pathsep}{os.environ['PATH']}",
            "PYTHONPATH": os.pathsep.join(sys.path),
            "VISIONCHAT_REDIS_URL": f"redis+sentinel://127.0.0.1:{sentinel}/main/0",
            "POD_IP": "127.0.0.1",
        }

        def head() -> subprocess.Popen[bytes]:
            place.unlink(missing_ok=True)
            process = subprocess.Popen([sys.executable, "-m", "visionchat_serve.ray_node", "head"], env=told)
            stack.callback(process.wait)
            stack.callback(process.kill)
            return process

        before = head()
        await wait_until(lambda: place.exists() and bool(place.read_text()), "it has become Ray", seconds=30)
        assert place.read_text().strip() == f"127.0.0.1:{first}"
        with Redis(port=first, retry=None) as master:
            master.shutdown(nosave=True)
        await wait_until(lambda: before.poll() is not None, "it is ended", seconds=30)
        assert before.returncode == -signal.SIGTERM
        head()
        await wait_until(lambda: place.exists() and bool(place.read_text()), "it has become Ray again", seconds=30)
        assert place.read_text().strip() == f"127.0.0.1:{second}"


def answers(port: int) -> Callable[[], bool]:
    def ping() -> bool:
        try:
            with Redis("127.0.0.1", port, retry=None) as redis:
                return bool(redis.ping())
        except RedisError:
            return False

    return ping
