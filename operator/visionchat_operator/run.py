"""Puts the operator together and runs it until it is told to stop. Called by the command line and by tests."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import signal
import socket
import uuid
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import kopf
from aiohttp import ClientSession
from kubernetes.aio.client import ApiClient

from visionchat_operator.api import KIND
from visionchat_operator.apply import Applier
from visionchat_operator.environment import DASHBOARD_PORT
from visionchat_operator.handlers import CHILD_KINDS, Watches, registry_for, settings_for
from visionchat_operator.kube import Kube, connected
from visionchat_operator.leader import while_leading
from visionchat_operator.metrics import OperatorMetrics
from visionchat_operator.observe import Observer
from visionchat_operator.plan import PlanSettings
from visionchat_operator.queues import Queues
from visionchat_operator.ray_head import RayHead
from visionchat_operator.reconciler import Reconciler
from visionchat_operator.resync import Resync
from visionchat_operator.store import Store
from visionchat_operator.web import serving

log = logging.getLogger(__name__)

HEAD_URL = f"http://{{name}}-head.{{namespace}}.svc:{DASHBOARD_PORT}"


@dataclass(frozen=True, slots=True)
class Options:
    """What the command line sets. `namespace` None: all namespaces."""

    kubeconfig: Path | None = None
    namespace: str | None = None
    lease_namespace: str = "visionchat-system"
    host: str = "127.0.0.1"
    port: int = 8080
    head_url: str = HEAD_URL
    plan: PlanSettings = field(default_factory=PlanSettings)
    identity: str = field(default_factory=lambda: f"{socket.gethostname()}-{uuid.uuid4().hex[:6]}")


async def run(options: Options) -> None:
    """Until SIGTERM, SIGINT or a fault. Raises what went wrong."""
    task = asyncio.current_task()
    assert task is not None
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, task.cancel)
    metrics = OperatorMetrics()
    operator = Operator(options, metrics)
    with contextlib.suppress(asyncio.CancelledError):
        async with connected(options.kubeconfig) as api, serving(options.host, options.port, operator.fault, metrics):
            await while_leading(api, options.lease_namespace, options.identity, lambda: operator.lead(api))
    log.info("stopped")


class Operator:
    """The parts, while this process leads."""

    def __init__(self, options: Options, metrics: OperatorMetrics) -> None:
        self._options, self._metrics = options, metrics
        self._resync: Resync | None = None
        self._reconciler: Reconciler | None = None

    def fault(self) -> str | None:
        """What is wrong, for /healthz. One that waits to lead is healthy."""
        if self._resync is not None and self._resync.dead is not None:
            return f"the watch of {self._resync.dead} is dead"
        if self._reconciler is not None and self._reconciler.fault is not None:
            return f"a loop has ended: {self._reconciler.fault!r}"
        return None

    async def lead(self, api: ApiClient) -> None:
        """Look after all VisionChats until cancelled."""
        options, metrics = self._options, self._metrics
        log.info("leading as %s, in %s", options.identity, options.namespace or "all namespaces")
        metrics.leading.set(1)
        store, queues = Store(), Queues()
        kube = Kube(api, store, metrics)
        kinds = await self._kinds(kube)
        async with ClientSession() as http:
            ray = RayHead(http, options.head_url)
            observer = Observer(store, kube, queues, ray, options.plan, sees_nodes="Node" in kinds)
            observer.route_api = "HTTPRoute" in kinds
            applier = Applier(store, kube, queues, ray, observer, metrics)
            reconciler = self._reconciler = Reconciler(store, observer, applier, options.plan, metrics)
            watches = Watches(store, reconciler.wake, reconciler.wake_all)
            resync = self._resync = Resync(kube, store, watches, metrics, reconciler.wake, kinds, options.namespace)
            await resync.first()
            try:
                await self._watch_and_resync(watches, resync, kinds)
            finally:
                await reconciler.stop()
                await queues.close()
                metrics.leading.set(0)

    async def _kinds(self, kube: Kube) -> tuple[str, ...]:
        kinds = [KIND, *CHILD_KINDS]
        if await kube.serves("HTTPRoute"):
            kinds.append("HTTPRoute")
        if self._options.namespace is None:
            kinds.append("Node")  # who is held to one namespace does not see nodes
        return tuple(kinds)

    async def _watch_and_resync(self, watches: Watches, resync: Resync, kinds: tuple[str, ...]) -> None:
        options = self._options
        watching = kopf.operator(
            registry=registry_for(watches, kinds, _login(options.kubeconfig)),
            settings=settings_for(kinds),
            standalone=True,
            clusterwide=options.namespace is None,
            namespaces=[options.namespace] if options.namespace else [],
        )
        tasks = {asyncio.create_task(watching, name="watches"), asyncio.create_task(resync.run(), name="resync")}
        try:
            done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            for task in done:
                task.result()
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)


def _login(kubeconfig: Path | None) -> Callable[..., kopf.ConnectionInfo | None]:
    def login(**knows: Any) -> kopf.ConnectionInfo | None:
        if kubeconfig is None:
            return kopf.login_with_service_account(**knows)
        os.environ["KUBECONFIG"] = str(kubeconfig)  # kopf looks nowhere else
        return kopf.login_with_kubeconfig(**knows)

    return login
