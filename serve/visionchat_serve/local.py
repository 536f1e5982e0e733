"""The whole product on one machine: embedded Redis, a local Ray, the Serve application. Used by the command line.

Starts the parts in order, says what it is doing, and stops them in reverse order, leaving no process behind.
HTTP listens on loopback unless told otherwise, Redis on a private socket. Ray's own ports listen everywhere, as Ray
does, and ask for a token that is made up at each start.
"""

from __future__ import annotations

import asyncio
import logging
import os
import secrets
import socket
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from visionchat_serve.config import Settings
from visionchat_serve.connection import check_queue
from visionchat_serve.errors import ConfigError, VisionChatError

Say = Callable[[str], None]

OBJECT_STORE_BYTES = 80_000_000  # Ray's smallest; nothing of ours goes through it
# Ray beside a model that wants the CPUs: nobody looks at its statistics here, and nobody reads the logs that it would
# gather. Idle, it took 5 % of a CPU.
QUIET_RAY = {
    "RAY_SERVE_CONTROL_LOOP_INTERVAL_S": "0.5",
    "RAY_enable_metrics_collection": "false",
    "RAY_event_stats": "false",
    "RAY_task_events_report_interval_ms": "0",
    "REPORTER_UPDATE_INTERVAL_MS": "60000",
    "RAY_LOG_MONITOR_MANY_FILES_THRESHOLD": "0",  # look for new log files only so often …
    "LOG_NAME_UPDATE_INTERVAL_S": "86400",
}


@contextmanager
def serving(settings: Settings, say: Say) -> Iterator[str]:
    """Run everything while the block runs; yields the base URL."""
    began = time.monotonic()
    with ExitStack() as stack:
        settings = _with_redis(_with_port(settings), stack, say)
        stack.enter_context(_ray(settings, say))
        stack.enter_context(_application(settings, say))
        url = f"http://{_reachable(settings.host)}:{settings.port}"
        say(f"ready in {time.monotonic() - began:.1f} s: {url}  (a page to ask on; API description: {url}/docs)")
        yield url
        say("stopping: running answers are finished first")
    say("stopped")


def default_data_dir() -> Path:
    """`$XDG_DATA_HOME/visionchat`, by default `~/.local/share/visionchat`."""
    return Path(os.environ.get("XDG_DATA_HOME") or Path.home() / ".local" / "share") / "visionchat"


def _with_redis(settings: Settings, stack: ExitStack, say: Say) -> Settings:
    if settings.redis_url is not None:
        asyncio.run(check_queue(settings))
        say("queue: the Redis that was given")
        return settings
    from visionchat_serve.redis_server import EmbeddedRedis

    data_dir = settings.data_dir or default_data_dir()
    server = stack.enter_context(EmbeddedRedis(data_dir))
    say(f"queue: embedded Redis, data in {data_dir}")
    return settings.model_copy(update={"redis_url": server.url})


def _with_port(settings: Settings) -> Settings:
    """Fail before the slow parts start when the port is taken; choose one when 0 was asked for."""
    try:
        return settings.model_copy(update={"port": _free_port(settings.host, settings.port)})
    except OSError as error:
        raise ConfigError(
            f"cannot listen on {settings.host}:{settings.port} ({error.strerror}); choose another with --port, "
            "and with --data-dir a folder of its own for a second server"
        ) from error


def _free_port(host: str, port: int = 0) -> int:
    """`port` if one can listen there, any free one for 0; raises OSError."""
    with socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        probe.bind((host, port))
        chosen: int = probe.getsockname()[1]
        return chosen


def _reachable(host: str) -> str:
    name = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(host, host)  # noqa: S104 - an address to call, not to bind
    return f"[{name}]" if ":" in name else name


@contextmanager
def _ray(settings: Settings, say: Say) -> Iterator[None]:
    say("starting Ray")
    os.environ.update(_ray_environment())
    import ray

    from visionchat_serve.app import cpus_per_replica

    ray.init(
        address="local",
        num_cpus=cpus_per_replica(settings) * settings.replicas,
        num_gpus=0,
        include_dashboard=False,
        log_to_driver=False,
        logging_level=logging.ERROR,
        object_store_memory=OBJECT_STORE_BYTES,
    )
    try:
        yield
    finally:
        ray.shutdown()


def _ray_environment() -> dict[str, str]:
    return QUIET_RAY | {
        "RAY_AUTH_MODE": "token",
        "RAY_AUTH_TOKEN": secrets.token_hex(32),
        "RAY_USAGE_STATS_ENABLED": "0",
        "RAY_worker_niceness": "0",  # Ray's default of 15 lets anything on the machine preempt the model
    }


@contextmanager
def _application(settings: Settings, say: Say) -> Iterator[None]:
    from ray import serve

    from visionchat_serve.app import APP_NAME, build

    say(f"loading the model {settings.served_name} ({settings.replicas} x {_cpus(settings)} CPU)")
    logging.getLogger("ray.serve").setLevel(logging.WARNING)
    quiet: dict[str, Any] = {"log_level": "WARNING", "enable_access_log": False}
    serve.start(proxy_location="Disabled", logging_config=quiet)  # the gateway answers HTTP itself
    try:
        try:
            serve.run(build(settings), name=APP_NAME, logging_config=quiet)
        except RuntimeError as error:
            raise VisionChatError(f"the application did not start: {error}") from error
        yield
    finally:
        serve.delete(APP_NAME)  # drains; the rest of Serve holds nothing of ours and goes with Ray


def _cpus(settings: Settings) -> int:
    from visionchat_serve.app import cpus_per_replica

    return cpus_per_replica(settings)
