"""Plays what stands below the API server: the kubelet, Ray's head and the replicas. Everything above is real.

Pods are bound to a node, become ready, report themselves into the real Redis as a replica would, and end when they are
deleted; `refuse` and `hold` make the kubelet refuse or wait. Ray's head is a small HTTP server with Serve's REST API:
it runs as many replicas as it is told, on the pods that are there. With `works` the pods hold real replicas, which
take real jobs from the queue; otherwise they only report themselves.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
import time
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any

from aiohttp import web
from aiohttp.typedefs import Handler

from support.control_plane import Api
from support.played_replica import PlayedReplica
from visionchat_serve.errors import Unavailable
from visionchat_serve.messages import ReplicaReport
from visionchat_serve.redis_broker import RedisBroker

NODE = "node-a"
CPUS = 16


@dataclass
class PlayedNode:
    """One node with CPUs enough. A thread of its own plays for all VisionChats of `namespace`."""

    api: Api
    namespace: str
    redis_url: str
    refuse: str | None = None  # the kubelet's reason to refuse pinned pods
    pins: bool = True  # cpuManagerPolicy static
    holds_warm: bool = False  # new replicas do not become warm
    drain_seconds: float = 0.0
    turn_seconds: float = 0.1
    report_seconds: float = 1  # how long a report of a replica lives
    target: dict[str, int] = field(default_factory=dict)  # Ray Serve's number of replicas, by VisionChat
    deployed: dict[str, Any] = field(default_factory=dict)
    scaled: list[tuple[str, int]] = field(default_factory=list)
    busy: set[str] = field(default_factory=set)  # pods with a job in hand: they do not end before
    heads_away: set[str] = field(default_factory=set)  # VisionChats whose head is down
    works: bool = False  # the replicas take jobs
    replicas: dict[str, PlayedReplica] = field(default_factory=dict)  # by pod, if they work
    faults: list[BaseException] = field(default_factory=list)

    def start(self) -> None:
        self._stop = threading.Event()
        self._going: dict[str, float] = {}
        self._pods: dict[str, Any] = {}
        self._warm: set[str] = set()
        self._brokers: dict[str, RedisBroker] = {}
        self._bound = threading.Event()
        self._thread = threading.Thread(target=lambda: asyncio.run(self._play()), name="played-node")
        self._thread.start()
        assert self._bound.wait(10)

    def stop(self) -> None:
        self._stop.set()
        self._thread.join(20)
        if self.faults:
            raise self.faults[0]

    @property
    def head_url(self) -> str:
        return f"http://127.0.0.1:{self.port}/{{name}}"

    async def _play(self) -> None:
        app = web.Application(middlewares=[self._away])
        app.add_routes([
            web.get("/{name}/api/serve/applications/", self._get_applications),
            web.put("/{name}/api/serve/applications/", self._put_applications),
            web.post("/{name}/api/v1/applications/visionchat/deployments/Model/scale", self._scale),
        ])  # fmt: skip
        runner = web.AppRunner(app, access_log=None)
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        self.port = runner.addresses[0][1]
        self._bound.set()
        try:
            while not self._stop.is_set():
                await self._turn()
                await asyncio.sleep(self.turn_seconds)
        except BaseException as error:
            self.faults.append(error)
        finally:
            for replica in self.replicas.values():
                await replica.kill()
            for broker in self._brokers.values():
                await broker.close()
            await runner.cleanup()

    async def _turn(self) -> None:
        pods = (await asyncio.to_thread(self.api.get, f"/api/v1/namespaces/{self.namespace}/pods"))["items"]
        self._end_replicas(pods)
        for pod in pods:
            await asyncio.to_thread(self._kubelet, pod)
        self._pods = {p["metadata"]["name"]: p for p in pods}
        path = f"/apis/apps/v1/namespaces/{self.namespace}/deployments"
        for deployment in (await asyncio.to_thread(self.api.get, path))["items"]:
            await asyncio.to_thread(self._deployment, deployment)
        for pod in pods:
            await self._replica(pod)

    def _end_replicas(self, pods: list[dict[str, Any]]) -> None:
        staying = {p["metadata"]["name"] for p in pods if "deletionTimestamp" not in p["metadata"]}
        for name in [n for n, replica in self.replicas.items() if replica.ended]:
            del self.replicas[name]
        for name in self.replicas.keys() - staying:
            self.replicas[name].stop()

    def _kubelet(self, pod: dict[str, Any]) -> None:
        name, status = pod["metadata"]["name"], pod.get("status", {})
        path = f"/api/v1/namespaces/{self.namespace}/pods/{name}"
        if "deletionTimestamp" in pod["metadata"]:
            began = self._going.setdefault(pod["metadata"]["uid"], time.monotonic())
            if name not in self.busy | self.replicas.keys() and time.monotonic() - began >= self.drain_seconds:
                self.api.delete(path, gracePeriodSeconds=0, preconditions={"uid": pod["metadata"]["uid"]})
        elif not pod["spec"].get("nodeName"):
            target = {"apiVersion": "v1", "kind": "Node", "name": NODE}
            body = {"apiVersion": "v1", "kind": "Binding", "metadata": {"name": name}, "target": target}
            self.api.call("POST", f"{path}/binding", body)
        elif status.get("phase") == "Pending":
            pinned = pod["metadata"]["labels"].get("visionchat.dev/mode") == "Pinned"
            if pinned and self.refuse:
                refused = {"phase": "Failed", "reason": self.refuse, "message": "Pod was rejected"}
                self.api.call(
                    "PATCH", f"{path}/status", {"status": refused}, content_type="application/merge-patch+json"
                )
                return
            ready = {"type": "Ready", "status": "True", "lastTransitionTime": _now()}
            body = {"status": {"phase": "Running", "podIP": self._ip(name), "conditions": [ready]}}
            self.api.call("PATCH", f"{path}/status", body, content_type="application/merge-patch+json")

    def _ip(self, name: str) -> str:
        return f"198.18.7.{10 + int(name.rpartition('-')[2])}"

    def _deployment(self, deployment: dict[str, Any]) -> None:
        wanted, status = deployment["spec"]["replicas"], deployment.get("status", {})
        if deployment["metadata"]["labels"]["app.kubernetes.io/instance"] in self.heads_away:
            wanted = 0
        if status.get("availableReplicas", 0) != wanted:
            path = f"/apis/apps/v1/namespaces/{self.namespace}/deployments/{deployment['metadata']['name']}/status"
            counts = {"readyReplicas": wanted, "availableReplicas": wanted}
            body = {"status": {"replicas": deployment["spec"]["replicas"], **counts}}
            self.api.call("PATCH", path, body, content_type="application/merge-patch+json")

    async def _replica(self, pod: dict[str, Any]) -> None:
        name, labels = pod["metadata"]["name"], pod["metadata"].get("labels", {})
        chat = labels.get("app.kubernetes.io/instance")
        ends = "deletionTimestamp" in pod["metadata"] and name not in self.busy  # its last word is said
        if (
            not chat
            or ends
            or name not in self._running(chat)
            or (self.holds_warm and pod["metadata"]["uid"] not in self._warm)
        ):
            return
        self._warm.add(pod["metadata"]["uid"])
        if self.works:
            await self._work(chat, name)
            return
        pinned = labels["visionchat.dev/mode"] == "Pinned" and self.pins
        index = int(name.rpartition("-")[2])
        cpus = int(pod["spec"]["containers"][0]["resources"]["limits"]["cpu"])
        cpuset = tuple(range(index * cpus, (index + 1) * cpus)) if pinned else tuple(range(CPUS))
        report = ReplicaReport(
            replica=f"replica-{name}",
            engine="torch",
            model="tiny",
            dtype="float32",
            revision="1",
            threads=cpus,
            cpus=cpuset,
            max_context=4096,
            max_running=1,
            loaded_at=0.0,
            running=int(name in self.busy),
            pod=name,
        )
        with contextlib.suppress(Unavailable):  # a replica tries again, too
            await self._broker(chat).report(report, ttl=timedelta(seconds=self.report_seconds))

    async def _work(self, chat: str, name: str) -> None:
        if name not in self.replicas:
            broker = RedisBroker.from_url(self.redis_url, f"{self.namespace}.{chat}")
            self.replicas[name] = PlayedReplica(broker, name)
            await self.replicas[name].start()

    def _broker(self, chat: str) -> RedisBroker:
        queue = f"{self.namespace}.{chat}"
        if queue not in self._brokers:
            self._brokers[queue] = RedisBroker.from_url(self.redis_url, queue)
        return self._brokers[queue]

    def _running(self, chat: str) -> list[str]:
        """Pods on which Serve runs a replica: ready ones that are not going, as many as it was told."""
        ready = [
            name
            for name, pod in sorted(self._pods.items())
            if pod["metadata"].get("labels", {}).get("app.kubernetes.io/instance") == chat
            and "deletionTimestamp" not in pod["metadata"]
            and pod.get("status", {}).get("phase") == "Running"
            and name.startswith(f"{chat}-worker-")
        ]
        return ready[: self.target.get(chat, 0)]

    @web.middleware
    async def _away(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        away = request.match_info.get("name") in self.heads_away
        return web.Response(status=503, text="no head is there") if away else await handler(request)

    async def _get_applications(self, request: web.Request) -> web.Response:
        chat = request.match_info["name"]
        if chat not in self.deployed:
            return web.json_response({"applications": {}})
        replicas = [{"state": "RUNNING", "node_ip": self._ip(name)} for name in self._running(chat)]
        model = {"target_num_replicas": self.target[chat], "replicas": replicas}
        app = {"deployed_app_config": self.deployed[chat], "deployments": {"Model": model}}
        return web.json_response({"applications": {"visionchat": app}})

    async def _put_applications(self, request: web.Request) -> web.Response:
        chat, body = request.match_info["name"], await request.json()
        (app,) = body["applications"]
        self.deployed[chat] = app
        self.target[chat] = app["deployments"][0]["num_replicas"]
        return web.Response()

    async def _scale(self, request: web.Request) -> web.Response:
        chat, body = request.match_info["name"], await request.json()
        self.target[chat] = body["target_num_replicas"]
        self.scaled.append((chat, self.target[chat]))
        return web.json_response({"message": "Scaling request received."})


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds").replace("+00:00", "Z")


def add_node(api: Api) -> None:
    """The node's object, with CPUs to give."""
    api.create("/api/v1/nodes", {"apiVersion": "v1", "kind": "Node", "metadata": {"name": NODE}})
    resources = {"cpu": str(CPUS), "memory": "64Gi", "pods": "100"}
    status = {"capacity": resources, "allocatable": resources | {"cpu": str(CPUS - 1)}}
    api.merge(f"/api/v1/nodes/{NODE}/status", {"status": status})
    api.merge(f"/api/v1/nodes/{NODE}", {"spec": {"taints": None}})
