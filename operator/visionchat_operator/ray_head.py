"""Ray Serve's REST API on a VisionChat's head: is the application there, how many replicas, which run.

The application's configuration is the same for ever and carries no settings; only the number of replicas changes, by
Serve's own endpoint for external scalers. Must not know Kubernetes.
"""

from __future__ import annotations

import json
from typing import Any

from aiohttp import ClientError, ClientSession, ClientTimeout

from visionchat_operator.pods import GATEWAY, SLOT
from visionchat_operator.world import Key, RayState

APPLICATION, DEPLOYMENT = "visionchat", "Model"
TIMEOUT = ClientTimeout(total=5)


class RayUnavailable(Exception):
    """The head does not answer, or not in a way that can be used."""


def application(replicas: int) -> dict[str, Any]:
    """What is PUT. Serve forgets the number of replicas when a configuration changes, so it is in there too."""
    return {
        "proxy_location": "Disabled",  # the gateway answers HTTP itself
        "applications": [
            {
                "name": APPLICATION,
                "route_prefix": "/",
                "import_path": "visionchat_serve.app:cluster",
                "external_scaler_enabled": True,
                "deployments": [
                    {
                        "name": DEPLOYMENT,
                        "num_replicas": max(1, replicas),
                        "ray_actor_options": {"num_cpus": 0, "resources": {SLOT: 1}},
                    },
                    {"name": "Gateway", "ray_actor_options": {"num_cpus": 0, "resources": {GATEWAY: 1}}},
                ],
            }
        ],
    }


class RayHead:
    """`url` is a template with {name} and {namespace}."""

    def __init__(self, http: ClientSession, url: str) -> None:
        self._http, self._url = http, url

    async def state(self, key: Key, token: str) -> RayState:
        page = await self._call("GET", key, token, "/api/serve/applications/")
        return read_state(page)

    async def deploy(self, key: Key, token: str, replicas: int) -> None:
        """Put the application there. The number that was set before is lost unless given."""
        await self._call("PUT", key, token, "/api/serve/applications/", application(replicas))

    async def scale(self, key: Key, token: str, replicas: int) -> None:
        path = f"/api/v1/applications/{APPLICATION}/deployments/{DEPLOYMENT}/scale"
        await self._call("POST", key, token, path, {"target_num_replicas": replicas})

    async def _call(self, verb: str, key: Key, token: str, path: str, body: Any = None) -> Any:
        url = self._url.format(name=key.name, namespace=key.namespace) + path
        headers = {"Authorization": f"Bearer {token}"}
        try:
            async with self._http.request(verb, url, json=body, headers=headers, timeout=TIMEOUT) as answer:
                text = await answer.text()
        except (ClientError, TimeoutError) as error:
            raise RayUnavailable(f"the Ray head does not answer: {error!r}") from error
        if not answer.ok:
            raise RayUnavailable(f"the Ray head answers {verb} {path} with {answer.status}: {text[:300]}")
        return json.loads(text) if verb == "GET" else None


def read_state(page: Any) -> RayState:
    """From the body of GET /api/serve/applications/."""
    app = page.get("applications", {}).get(APPLICATION)
    if app is None:
        return RayState(deployed=False)
    config = app.get("deployed_app_config") or {}
    model = app.get("deployments", {}).get(DEPLOYMENT, {})
    running = {r["node_ip"] for r in model.get("replicas", ()) if r["state"] == "RUNNING" and r.get("node_ip")}
    return RayState(_as_wanted(config), model.get("target_num_replicas"), frozenset(running))


def _as_wanted(config: dict[str, Any]) -> bool:
    (wanted,) = application(1)["applications"]
    same = all(config.get(key) == wanted[key] for key in ("import_path", "route_prefix", "external_scaler_enabled"))
    options = {d["name"]: d.get("ray_actor_options") for d in config.get("deployments", ())}
    return same and options == {d["name"]: d["ray_actor_options"] for d in wanted["deployments"]}
