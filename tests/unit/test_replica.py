"""A replica over the in-memory queue: every claimed job ends, in order, whatever happens to it."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest

from support.scripted_engine import ScriptedEngine, loader
from support.waiting import wait_until
from visionchat_serve.answer import Answer
from visionchat_serve.broker import BrokerPolicy, LeaseState
from visionchat_serve.errors import EngineFailure, Unavailable, VisionChatError
from visionchat_serve.memory_broker import MemoryBroker
from visionchat_serve.messages import ChatJob, Claim, Finish, Message, QueueLoad, SamplingParams, TextPart, Usage
from visionchat_serve.replica import Replica
from visionchat_serve.retirement import RetirementPolicy, retirement

SHORT_LEASE = BrokerPolicy(lease=timedelta(milliseconds=150))


def job(name: str, text: str, seconds: float = 60, **sampling: Any) -> ChatJob:
    now = time.time()
    messages = (Message("user", (TextPart(text),)),)
    return ChatJob(name, messages, SamplingParams(**sampling), "m", 0, now, now + seconds)


async def answer(broker: MemoryBroker, job_id: str) -> str:
    """The whole answer, or the code of the error it ended with."""
    whole = Answer()
    try:
        async for event in broker.events(job_id):
            whole.feed(event)
    except VisionChatError as error:
        return error.code
    return whole.text


@asynccontextmanager
async def replica(engine: ScriptedEngine, broker: MemoryBroker, name: str = "r1") -> AsyncIterator[Replica]:
    one = Replica(loader(engine), broker, name, (0,), claim_wait=timedelta(milliseconds=20))
    await one.start()
    try:
        yield one
    finally:
        engine.release.set()
        await one.drain(timedelta(seconds=5))


async def test_jobs_are_answered_in_the_order_of_their_arrival() -> None:
    broker, engine = MemoryBroker(), ScriptedEngine()
    for number in range(8):
        await broker.submit(job(f"j{number}", f"number {number} please"), [])
    async with replica(engine, broker):
        texts = [await answer(broker, f"j{number}") for number in range(8)]
    assert texts == [f"number {number} please" for number in range(8)]
    assert [request.id for request in engine.seen] == [f"j{number}#0" for number in range(8)]


async def test_no_more_jobs_are_claimed_than_the_engine_runs() -> None:
    broker, engine = MemoryBroker(), ScriptedEngine(max_running=2)
    for number in range(5):
        await broker.submit(job(f"j{number}", "!hold a"), [])
    async with replica(engine, broker):
        await wait_until(lambda: len(engine.seen) >= 1, "the first runs")
        load = await broker.load()
        assert load.leased <= 2
        assert load.waiting >= 3
        engine.release.set()
        assert [await answer(broker, f"j{n}") for n in range(5)] == ["!hold a"] * 5


async def test_a_long_answer_keeps_its_lease() -> None:
    broker, engine = MemoryBroker(SHORT_LEASE), ScriptedEngine()
    await broker.submit(job("slow", "a !hold b"), [])
    async with replica(engine, broker):
        await wait_until(lambda: bool(engine.seen), "it runs")
        began = time.monotonic()
        await wait_until(lambda: time.monotonic() - began > 3 * SHORT_LEASE.lease.total_seconds(), "leases passed")
        assert await broker.claim("thief", 1, timedelta(0)) == []
        engine.release.set()
        assert await answer(broker, "slow") == "a !hold b"


async def test_a_cancelled_job_frees_the_engine_for_the_next() -> None:
    broker, engine = MemoryBroker(SHORT_LEASE), ScriptedEngine()
    await broker.submit(job("gone", "a !hold b"), [])
    await broker.submit(job("next", "fine"), [])
    async with replica(engine, broker):
        await wait_until(lambda: bool(engine.seen), "it runs")
        await broker.cancel("gone")
        events = [event.value async for event in broker.events("gone")]
        assert isinstance(events[-1], Finish)
        assert events[-1].reason == "cancelled"
        engine.release.set()
        assert await answer(broker, "next") == "fine"
    assert engine.aborted == ["gone#0"]


async def test_a_request_that_does_not_fit_ends_with_its_own_error() -> None:
    broker = MemoryBroker()
    await broker.submit(job("long", "word " * 101), [])
    async with replica(ScriptedEngine(), broker):
        assert await answer(broker, "long") == "context_length_exceeded"


async def test_a_deadline_ends_a_running_answer() -> None:
    broker, engine = MemoryBroker(SHORT_LEASE), ScriptedEngine()
    await broker.submit(job("late", "a !hold b", seconds=0.3), [])
    async with replica(engine, broker):
        assert await answer(broker, "late") == "timeout"
        assert bool(engine.seen)
        engine.release.set()


async def test_an_engine_that_breaks_answers_its_job_and_asks_for_a_restart() -> None:
    broker = MemoryBroker()
    await broker.submit(job("poison", "a !crash"), [])
    async with replica(ScriptedEngine(), broker) as one:
        one.check()
        assert await answer(broker, "poison") == "engine_failure"
        await broker.submit(job("later", "for a healthy replica"), [])
        with pytest.raises(EngineFailure):
            one.check()
        await asyncio.sleep(0)
        assert (await broker.load()).waiting == 1


async def test_draining_finishes_what_runs_and_leaves_what_waits() -> None:
    broker, engine = MemoryBroker(), ScriptedEngine()
    await broker.submit(job("running", "a !hold b"), [])
    await broker.submit(job("waiting", "for the next replica"), [])
    one = Replica(loader(engine), broker, "r1", (0,), claim_wait=timedelta(milliseconds=20))
    await one.start()
    await wait_until(lambda: bool(engine.seen), "the first runs")
    draining = asyncio.create_task(one.drain(timedelta(seconds=10)))
    await asyncio.sleep(0)
    engine.release.set()
    await draining
    assert await answer(broker, "running") == "a !hold b"
    assert engine.closed
    assert (await broker.load()).waiting == 1
    assert await broker.reports() == []
    async with replica(ScriptedEngine(), broker, "r2"):
        assert await answer(broker, "waiting") == "for the next replica"


async def test_what_is_not_done_in_time_is_given_back() -> None:
    broker, engine = MemoryBroker(), ScriptedEngine()
    await broker.submit(job("slow", "a !hold b"), [])
    one = Replica(loader(engine), broker, "r1", (0,), claim_wait=timedelta(milliseconds=20))
    await one.start()
    await wait_until(lambda: bool(engine.seen), "it runs")
    draining = asyncio.create_task(one.drain(timedelta(milliseconds=50)))
    await wait_until(lambda: one._thread._stopping, "patience ended")
    engine.release.set()
    await draining
    other = ScriptedEngine()
    other.release.set()
    async with replica(other, broker, "r2"):
        assert await answer(broker, "slow") == "a !hold b"


async def test_after_its_share_of_jobs_a_replica_finishes_and_retires() -> None:
    broker, engine = MemoryBroker(), ScriptedEngine()
    for number in range(3):
        await broker.submit(job(f"j{number}", "a !hold b"), [])
    policy = RetirementPolicy(max_jobs=2)
    one = Replica(
        loader(engine), broker, "r1", (0,), claim_wait=timedelta(milliseconds=20),
        retire_when=lambda begun: retirement(begun, None, policy),
    )  # fmt: skip
    await one.start()
    retired = asyncio.create_task(one.retired())
    await wait_until(lambda: bool(engine.seen), "the first runs")
    assert not retired.done()
    engine.release.set()
    assert (await asyncio.wait_for(retired, 5)).reason == "JobsDone"
    one.check()
    await one.drain(timedelta(seconds=5))
    assert [await answer(broker, f"j{n}") for n in range(2)] == ["a !hold b"] * 2
    assert await broker.load() == QueueLoad(waiting=1, leased=0)
    async with replica(engine_that_runs(), broker, "r2"):
        assert await answer(broker, "j2") == "a !hold b"


def engine_that_runs() -> ScriptedEngine:
    engine = ScriptedEngine()
    engine.release.set()
    return engine


async def test_memory_that_runs_out_is_never_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """High: what runs is finished. Higher while it runs: it is dropped and counts as lost, and others may try it."""
    monkeypatch.setattr("visionchat_serve.replica.WATCH", timedelta(milliseconds=10))
    broker, engine, memory = MemoryBroker(), ScriptedEngine(), 0.5
    await broker.submit(job("large", "a !hold b"), [])
    one = Replica(
        loader(engine), broker, "r1", (0,), claim_wait=timedelta(milliseconds=20),
        retire_when=lambda begun: retirement(begun, memory, RetirementPolicy()),
    )  # fmt: skip
    await one.start()
    await wait_until(lambda: bool(engine.seen), "it runs")
    memory = 0.9
    assert (await asyncio.wait_for(one.retired(), 5)).reason == "MemoryHigh"
    draining = asyncio.create_task(one.drain(timedelta(seconds=30)))
    await wait_until(lambda: one._stopping.is_set(), "it drains")
    assert (await broker.load()).leased == 1
    memory = 0.96
    await wait_until(lambda: not one._running, "the job is dropped")
    engine.release.set()
    await asyncio.wait_for(draining, 5)
    view = await broker.describe("large")
    assert (view.status, view.attempt) == ("queued", 1)
    async with replica(engine_that_runs(), broker, "r2"):
        assert await answer(broker, "large") == "a !hold b"
    assert (await broker.describe("large")).attempt == 2


async def test_an_answer_that_takes_too_long_is_ended() -> None:
    broker, engine = MemoryBroker(SHORT_LEASE), ScriptedEngine()
    await broker.submit(replace(job("long", "a !hold b"), timeout=0.05), [])
    async with replica(engine, broker):
        assert await answer(broker, "long") == "timeout"
        view = await broker.describe("long")
        assert view.finish is not None
        assert "longer than 0.05 s" in (view.finish.message or "")
        engine.release.set()
        await broker.submit(replace(job("next", "a b"), timeout=60), [])
        assert await answer(broker, "next") == "a b"


async def test_a_ready_replica_reports_itself() -> None:
    broker = MemoryBroker()
    async with replica(ScriptedEngine(), broker):
        await wait_until(lambda: bool(broker._reports), "a report")
        (report,) = await broker.reports()
    assert (report.replica, report.engine, report.threads, report.cpus) == ("r1", "scripted", 1, (0,))


async def test_where_memory_is_short_the_engine_gives_back_what_it_kept() -> None:
    broker, engine = MemoryBroker(), ScriptedEngine()
    one = Replica(loader(engine), broker, "r1", (0,), is_short=lambda: True)
    await one.start()
    await wait_until(lambda: engine.forgot > 0, "the engine is told")
    await broker.submit(job("next", "a b"), [])
    assert await answer(broker, "next") == "a b"
    await one.drain(timedelta(seconds=5))


async def test_a_stuck_step_asks_for_a_restart() -> None:
    broker, engine = MemoryBroker(), ScriptedEngine()
    await broker.submit(job("stuck", "a !hold b"), [])
    one = Replica(loader(engine), broker, "r1", (0,), stuck_after=timedelta(milliseconds=30))
    await one.start()
    await wait_until(lambda: one._thread.stuck_for() > timedelta(milliseconds=30), "the step takes too long")
    with pytest.raises(EngineFailure, match="longer than"):
        one.check()
    engine.release.set()
    await one.drain(timedelta(seconds=5))


async def test_a_queue_that_goes_away_in_mid_answer_loses_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """The replica keeps its work and sends it when the queue is back; a write whose reply was lost is not doubled."""
    broker = MemoryBroker()
    publish, calls = broker.publish, 0

    async def flaky(claim: Claim, index: int, text: str, *details: Any) -> LeaseState:
        nonlocal calls
        calls += 1
        state = await publish(claim, index, text, *details) if calls % 3 else None
        if calls % 3 != 1:
            raise Unavailable("the queue is away")
        assert state is not None
        return state

    monkeypatch.setattr(broker, "publish", flaky)
    monkeypatch.setattr("visionchat_serve.replica.RETRY", timedelta(milliseconds=1))
    for number in range(8):
        await broker.submit(job(f"j{number}", f"answer {number}"), [])
    async with replica(ScriptedEngine(), broker):
        assert [await answer(broker, f"j{n}") for n in range(8)] == [f"answer {n}" for n in range(8)]
    assert calls > 16


async def test_a_job_with_several_answers_is_one_job() -> None:
    """One claim, one end; the engine answers with another seed each time; an answer that fails ends them all."""
    broker, engine = MemoryBroker(), ScriptedEngine(max_running=4)
    await broker.submit(job("three", "it is !seed now", n=3, seed=5), [])
    whole = Answer()
    async with replica(engine, broker):
        events = [event async for event in broker.events("three")]
        await broker.submit(job("crash", "a !crash", n=2), [])
        assert await answer(broker, "crash") == "engine_failure"
    for event in events:
        whole.feed(event)
    assert [whole.choices[i].text for i in range(3)] == ["it is 5 now", "it is 6 now", "it is 7 now"]
    assert isinstance(events[-1].value, Finish)
    assert events[-1].value.reasons == ("stop", "stop", "stop")
    assert events[-1].value.usage == Usage(prompt_tokens=4, completion_tokens=12)


async def test_a_cancelled_job_stops_all_its_answers() -> None:
    broker, engine = MemoryBroker(SHORT_LEASE), ScriptedEngine(max_running=2)
    await broker.submit(job("gone", "a !hold b", n=2), [])
    async with replica(engine, broker):
        await wait_until(lambda: len(engine.seen) == 2, "both run")
        await broker.cancel("gone")
        engine.release.set()
        events = [event.value async for event in broker.events("gone")]
        assert isinstance(events[-1], Finish)
        assert events[-1].reason == "cancelled"
        await broker.submit(job("next", "fine"), [])
        assert await answer(broker, "next") == "fine"
    assert engine.aborted == ["gone#0", "gone#1"]
