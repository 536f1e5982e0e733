"""The ways to a Redis of one's own, on real servers: with TLS and an authority, by Sentinels, all of it in a Secret."""

from __future__ import annotations

import base64
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest
from redis import Redis
from redis.exceptions import RedisError

from support.cluster_fixtures import Chats, Jobs, Start, eventually, keys
from support.operator_life import Lives, clock
from support.operator_process import OperatorProcess
from support.played_node import PlayedNode
from support.redis_servers import Certificates, Launch, launching, make_certificates, with_tls, with_tls_spoken
from visionchat_operator.observe import SecretMissing
from visionchat_operator.world import Key
from visionchat_serve.redis_server import find_servers

PASSWORD = "p@ss/w:rd%"


@pytest.fixture
def launch(tmp_path: Path) -> Iterator[Launch]:
    binary, _ = next(iter(find_servers()))
    with launching(with_tls_spoken() or binary, tmp_path) as start:
        yield start


@pytest.fixture
def certificates(tmp_path: Path) -> Certificates:
    if with_tls_spoken() is None:
        pytest.skip("no redis-server on the PATH speaks TLS; the one that Linux distributions package does")
    return make_certificates(tmp_path)


def answers(port: int, **options: Any) -> None:
    def ping() -> bool:
        try:
            with Redis("127.0.0.1", port, retry=None, **options) as redis:
                return bool(redis.ping())
        except RedisError:
            return False

    eventually(ping, f"the server on {port} answers")


def secret(chats: Chats, name: str, **data: str) -> None:
    encoded = {key.replace("_", "."): base64.b64encode(value.encode()).decode() for key, value in data.items()}
    body = {"apiVersion": "v1", "kind": "Secret", "metadata": {"name": name}, "data": encoded}
    chats.api.create(f"/api/v1/namespaces/{chats.namespace}/secrets", body)


def follows(chats: Chats, node: PlayedNode, url: str, queue: dict[str, Any]) -> list[dict[str, Any]]:
    """The operator sees replicas and jobs in the Redis at `url`, and deletes the queue in the end. Its pods."""
    node.redis_url = url
    jobs = Jobs(url, f"{chats.namespace}.demo")
    scaling = {"minReplicas": 1, "maxReplicas": 2, "targetQueueDepth": 2}
    chats.create(queue=queue | {"deleteWithResource": True}, scaling=scaling)
    eventually(lambda: chats.ready(1), "one replica is ready")
    assert chats.condition("LoadKnown") == ("True", "QueueAnswers")
    jobs.submit(4)
    eventually(lambda: chats.ready(2), "the queue's depth is followed")
    pods = chats.pods()
    chats.api.delete(f"{chats.path}/demo")
    eventually(lambda: chats.get() is None, "it is gone")
    return pods


def variables(pod: dict[str, Any]) -> dict[str, Any]:
    return {v["name"]: v.get("value") or v["valueFrom"] for v in pod["spec"]["containers"][0]["env"]}


def test_tls_with_an_authority_of_ones_own(
    operator: OperatorProcess, node: PlayedNode, chats: Chats, launch: Launch, certificates: Certificates
) -> None:
    port = launch(*with_tls(certificates))
    ours = {"ssl": True, "ssl_ca_certs": str(certificates.authority)}
    answers(port, **ours)
    secret(chats, "authority", ca_crt=certificates.authority.read_text())
    address = f"rediss://127.0.0.1:{port}/0"
    url = f"{address}?ssl_ca_certs={certificates.authority}"
    pod, _ = follows(chats, node, url, {"url": address, "caSecret": {"name": "authority"}})
    told = variables(pod)
    assert told["VISIONCHAT_REDIS_URL"] == address
    mounts = {m["name"]: m["mountPath"] for m in pod["spec"]["containers"][0]["volumeMounts"]}
    assert told["VISIONCHAT_REDIS_CA_FILE"] == f"{mounts['redis-ca']}/ca.crt"
    assert keys(url, f"{chats.namespace}.demo") == []


def test_all_of_the_address_in_a_secret(
    operator: OperatorProcess, node: PlayedNode, chats: Chats, launch: Launch, certificates: Certificates
) -> None:
    port = launch(*with_tls(certificates), f'requirepass "{PASSWORD}"')
    answers(port, ssl=True, ssl_ca_certs=str(certificates.authority), password=PASSWORD)
    address = f"rediss://:{quote(PASSWORD, safe='')}@127.0.0.1:{port}/1"
    secret(chats, "redis", url=address, ca_crt=certificates.authority.read_text())
    url = f"{address}?ssl_ca_certs={certificates.authority}"
    pod, _ = follows(chats, node, url, {"urlSecret": {"name": "redis"}, "caSecret": {"name": "redis"}})
    assert PASSWORD not in str(pod)
    assert keys(url, f"{chats.namespace}.demo") == []


def test_the_operators_own_redis_by_a_secret(
    start_operator: Start, node: PlayedNode, chats: Chats, launch: Launch
) -> None:
    port = launch("port {port}", f'requirepass "{PASSWORD}"')
    answers(port, password=PASSWORD)
    url = f"redis://:{quote(PASSWORD, safe='')}@127.0.0.1:{port}/0"
    start_operator(["--redis-secret", "visionchat-redis/address"])
    secret(chats, "visionchat-redis", address=url)
    pod, _ = follows(chats, node, url, {})
    assert variables(pod)["VISIONCHAT_REDIS_URL"]["secretKeyRef"] == {"name": "visionchat-redis", "key": "address"}
    assert PASSWORD not in str(pod)


def test_an_authority_without_tls_is_said(operator: OperatorProcess, chats: Chats, launch: Launch) -> None:
    secret(chats, "redis", url="redis://127.0.0.1:1", ca_crt="PEM")
    chats.create(queue={"urlSecret": {"name": "redis"}, "caSecret": {"name": "redis"}})
    eventually(lambda: chats.condition("LoadKnown") == ("False", "QueueUnreachable"), "the queue is not known")
    (condition,) = [c for c in chats.status()["conditions"] if c["type"] == "LoadKnown"]
    assert "queue.caSecret" in condition["message"]


def test_sentinels(operator: OperatorProcess, node: PlayedNode, chats: Chats, launch: Launch) -> None:
    port = launch("port {port}", f'requirepass "{PASSWORD}"')
    answers(port, password=PASSWORD)
    monitor = f"sentinel monitor main 127.0.0.1 {port} 1", f'sentinel auth-pass main "{PASSWORD}"'
    sentinel = launch("port {port}", *monitor, sentinel=True)
    answers(sentinel)
    secret(chats, "redis", password=PASSWORD)
    addresses = ["127.0.0.1:1", f"127.0.0.1:{sentinel}"]
    queue = {"sentinel": {"addresses": addresses, "master": "main", "password": {"name": "redis"}}}
    url = f"redis://:{quote(PASSWORD, safe='')}@127.0.0.1:{port}/0"
    pod, _ = follows(chats, node, url, queue)
    told = variables(pod)
    assert told["VISIONCHAT_REDIS_URL"] == f"redis+sentinel://{','.join(addresses)}/main/0"
    assert told["VISIONCHAT_REDIS_PASSWORD"]["secretKeyRef"] == {"name": "redis", "key": "password"}
    assert keys(url, f"{chats.namespace}.demo") == []


def test_a_secret_that_is_missing_is_named_and_holds_no_farewell_up_for_ever(
    operators_rights: Path, node: PlayedNode, chats: Chats
) -> None:
    ahead = timedelta(0)
    lives = Lives(operators_rights, node, "unused", Key(chats.namespace, "demo"), lambda: clock() + ahead)
    chats.create(queue={"urlSecret": {"name": "absent"}, "deleteWithResource": True}, replicas=0)
    assert lives.live(lambda: chats.condition("LoadKnown") == ("False", "QueueUnreachable"))
    (condition,) = [c for c in chats.status()["conditions"] if c["type"] == "LoadKnown"]
    assert "no Secret absent" in condition["message"]
    chats.api.delete(f"{chats.path}/demo")
    with pytest.raises(SecretMissing):
        lives.live(lambda: chats.get() is None)
    ahead = timedelta(minutes=5)
    assert lives.live(lambda: chats.get() is None)
    assert len(chats.events("QueueLeft")) == 1
