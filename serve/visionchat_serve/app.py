"""The Ray Serve application: the HTTP gateway and the model replicas. The only module that knows Ray's decorators.

`build` is what `serve.run` and a Serve config's `import_path: visionchat_serve.app:build` call. Ray imports this
module on every node, also on those without a model, so nothing heavy is imported at its top.
"""

from __future__ import annotations

import asyncio
import logging
import os
from datetime import timedelta
from typing import Any, cast

from ray import serve

from visionchat_serve import cgroup, cpu
from visionchat_serve.config import Settings, load_settings
from visionchat_serve.connection import connect
from visionchat_serve.retirement import Retirement, RetirementPolicy, is_short, retirement
from visionchat_serve.turn import Turn

log = logging.getLogger(__name__)

APP_NAME = "visionchat"
DRAIN = timedelta(seconds=60)  # who is scaled away may finish what is under way for this long


@serve.deployment(
    name="Gateway",
    num_replicas=1,
    health_check_period_s=5,
    health_check_timeout_s=10,
    graceful_shutdown_timeout_s=DRAIN.total_seconds() + 15,
    ray_actor_options={"num_cpus": 0},
)
class Gateway:
    """The HTTP ingress, on a port of its own. Its Model handle is never called: requests go through the queue; it ties
    the two together."""

    async def __init__(self, settings: Settings | None, model: Any) -> None:  # type: ignore[misc]  # Serve awaits it
        from visionchat_serve.http_server import HttpServer
        from visionchat_serve.routes import create_app

        settings = settings or load_settings()
        self._server = HttpServer(create_app(settings, lambda: connect(settings)), settings.host, settings.port)
        await self._server.start()

    async def check_health(self) -> None:
        self._server.check()

    async def __del__(self) -> None:
        await self._server.stop(DRAIN)


@serve.deployment(
    name="Model",
    health_check_period_s=5,
    health_check_timeout_s=10,
    graceful_shutdown_timeout_s=DRAIN.total_seconds() + 15,
)
class Model:
    """One replica: one engine with exactly the threads of its `num_cpus`."""

    async def __init__(self, settings: Settings | None, cpus: int | None) -> None:  # type: ignore[misc]  # Serve awaits it
        settings = settings or load_settings()
        cpus = cpus or cpus_per_replica(settings)
        cpu.limit_threads(cpus)  # before anything imports numpy or torch
        from visionchat_serve.replica import Replica

        budget, turn = cpu.available_cpus(), Turn()
        policy = RetirementPolicy(max_jobs=settings.recycle_after_jobs, memory_high=settings.memory_high)
        self._replica = Replica(
            load=lambda: _load(settings, cpus),
            broker=connect(settings),
            name=serve.get_replica_context().replica_id.unique_id,
            cpus=budget.cpus,
            stuck_after=timedelta(seconds=settings.stuck_seconds),
            pod=os.environ.get("POD_NAME", ""),
            retire_when=lambda begun: _in_turn(retirement(begun, cgroup.memory_share(), policy), turn),
            is_short=lambda: is_short(cgroup.memory_share(), policy),
        )
        turn.take()  # if it is free: nobody should retire while another is not there yet
        await self._replica.start()
        turn.give_back()
        self._recycling = asyncio.create_task(self._recycle())

    async def _recycle(self) -> None:
        """End this process when its time has come; Serve sees at its next check that it is gone, and starts another.

        A health check that fails would have to do so three times before that.
        """
        retirement = await self._replica.retired()
        log.warning("the replica retires (%s): %s", retirement.reason, retirement.message)
        await self._replica.drain(DRAIN)
        os._exit(0)

    async def check_health(self) -> None:
        self._replica.check()

    async def __del__(self) -> None:
        await self._replica.drain(DRAIN)


def _in_turn(due: Retirement | None, turn: Turn) -> Retirement | None:
    """Replicas that share a machine's memory go one after the other: the first may leave enough for the rest."""
    return due if due is not None and turn.take() else None


def _load(settings: Settings, threads: int) -> Any:
    from visionchat_serve.engines.registry import load_engine

    engine = load_engine(
        settings.engine,
        settings.model,
        dtype=settings.dtype,
        threads=threads,
        max_context=settings.max_context,
        keep_bytes=settings.picture_cache_bytes,
    )
    log.info("threads: %s", cpu.assert_threads(threads))
    return engine


def cpus_per_replica(settings: Settings) -> int:
    """What was asked for, else an even share of the whole CPUs really there."""
    return settings.cpus or max(1, cpu.available_cpus().whole // max(1, settings.replicas))


def build(settings: Settings | dict[str, Any]) -> serve.Application:
    """The application graph. A dict (from a Serve config's `args`) is checked like any other source."""
    checked = settings if isinstance(settings, Settings) else Settings.model_validate(settings)
    cpus = cpus_per_replica(checked)
    model_deployment, gateway_deployment = cast(Any, Model), cast(Any, Gateway)  # Serve's decorators are untyped
    actor = {"num_cpus": cpus}
    model = model_deployment.options(num_replicas=checked.replicas, ray_actor_options=actor).bind(checked, cpus)
    application: serve.Application = gateway_deployment.bind(checked, model)
    return application


def cluster(args: dict[str, Any]) -> serve.Application:
    """The same for a cluster: gateway and replicas read their settings from the environment of their own pods.

    So the application never changes: a new model comes with new pods, and not all at once by Serve. How many
    replicas there are and where they go is in the Serve config (`deployments`).
    """
    model_deployment, gateway_deployment = cast(Any, Model), cast(Any, Gateway)
    application: serve.Application = gateway_deployment.bind(None, model_deployment.bind(None, None))
    return application
