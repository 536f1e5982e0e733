"""What only the broker in memory can do: jump in time."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

from visionchat_serve.broker import BrokerPolicy
from visionchat_serve.errors import NotFound
from visionchat_serve.memory_broker import MemoryBroker
from visionchat_serve.messages import Finish, QueueLoad

NOW = timedelta(0)


async def test_leases_deadlines_and_results_follow_the_clock(make_job: Any, collect: Any) -> None:
    job = make_job()
    now = [job.created_at]
    broker = MemoryBroker(BrokerPolicy(), clock=lambda: now[0])
    await broker.submit(job, [])
    assert len(await broker.claim("a", 1, NOW)) == 1
    now[0] += 9.9
    assert await broker.claim("b", 1, NOW) == []
    now[0] += 0.1
    assert await broker.load() == QueueLoad(waiting=1, leased=0)
    [claim] = await broker.claim("b", 1, NOW)
    assert await broker.finish(claim, Finish("stop"))
    now[0] += 899
    assert len(await collect(broker, job.id)) == 1
    now[0] += 2
    with pytest.raises(NotFound):
        await collect(broker, job.id)
