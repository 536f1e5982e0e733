"""Leader election by a Lease: of several operators one acts, the others wait to take over."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable

from aiohttp import ClientError
from kubernetes.aio import client
from kubernetes.aio.client import ApiClient
from kubernetes.aio.leaderelection.electionconfig import Config
from kubernetes.aio.leaderelection.leaderelection import LeaderElection
from kubernetes.aio.leaderelection.leaderelectionrecord import LeaderElectionRecord
from kubernetes.aio.leaderelection.resourcelock.leaselock import LeaseLock

log = logging.getLogger(__name__)

LEASE = "visionchat-operator"
LEASE_SECONDS, RENEW_SECONDS, RETRY_SECONDS = 15, 10, 2


class _Lock(LeaseLock):
    """The library's (37.0) asks for `pretty=True` when it creates the Lease, which its own client refuses."""

    async def create(self, name: str, namespace: str, election_record: LeaderElectionRecord) -> bool:
        lease = client.V1Lease(metadata=client.V1ObjectMeta(name=name), spec=self.update_lease(election_record))
        try:
            await self.api_instance.create_namespaced_lease(namespace, lease)
        except client.ApiException as error:
            log.warning("the Lease %s could not be created: %s %s", name, error.status, error.reason)
            return False
        return True

    async def release(self) -> None:
        """Let another one lead at once, unless it does so already."""
        try:
            lease = await self.api_instance.read_namespaced_lease(self.name, self.namespace)
            if lease.spec is not None and lease.spec.holder_identity == self.identity:
                lease.spec.holder_identity = None
                await self.api_instance.replace_namespaced_lease(self.name, self.namespace, lease)
        except (client.ApiException, ClientError, TimeoutError) as error:
            log.warning("the Lease %s was not released, it will expire: %r", self.name, error)


class LeadershipLost(Exception):
    """Another operator may lead by now; this one has to end at once."""


async def while_leading(api: ApiClient, namespace: str, identity: str, work: Callable[[], Awaitable[None]]) -> None:
    """Wait for the Lease, then do the work, renew until it ends, and let go. Raises `LeadershipLost`, and what work
    raises."""
    leading = asyncio.Event()

    async def started() -> None:
        leading.set()

    async def stopped() -> None:
        log.error("the Lease %s could not be renewed", LEASE)

    lock = _Lock(LEASE, namespace, identity, api)
    config = Config(lock, LEASE_SECONDS, RENEW_SECONDS, RETRY_SECONDS, started, stopped)
    election = asyncio.create_task(LeaderElection(config).run(), name="election")
    working = asyncio.create_task(_when(leading, work), name="work")
    try:
        await asyncio.wait({election, working}, return_when=asyncio.FIRST_COMPLETED)
        if working.done():
            return working.result()
        election.result()
        raise LeadershipLost("the Lease was lost; ending, so that only one operator acts")
    finally:
        for task in (working, election):
            task.cancel()
        await asyncio.gather(working, election, return_exceptions=True)
        if leading.is_set():
            await lock.release()


async def _when(begins: asyncio.Event, work: Callable[[], Awaitable[None]]) -> None:
    await begins.wait()
    await work()
