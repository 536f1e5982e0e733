"""The engine's own thread: everything that goes in comes out, in order, once, whatever fails."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from typing import Any

import pytest

from support.scripted_engine import ScriptedEngine, loader
from support.waiting import wait_until
from visionchat_serve.engine_thread import EngineThread
from visionchat_serve.engines.protocol import EngineOutput, EngineRequest
from visionchat_serve.errors import ConfigError
from visionchat_serve.messages import Message, SamplingParams, TextPart


def request(name: str, text: str) -> EngineRequest:
    return EngineRequest(name, (Message("user", (TextPart(text),)),), (), SamplingParams())


class Running:
    """A started thread and what came out of it."""

    def __init__(self, engine: ScriptedEngine) -> None:
        self.out: list[EngineOutput] = []
        self.thread = EngineThread(loader(engine), self.out.append, asyncio.get_running_loop())

    def ended(self, name: str) -> bool:
        return any(o.request_id == name and o.finish for o in self.out)

    def text(self, name: str) -> str:
        return "".join(o.text for o in self.out if o.request_id == name)


async def test_it_warms_up_answers_and_closes() -> None:
    engine = ScriptedEngine(max_running=2)
    running = Running(engine)
    assert await running.thread.start() is engine
    assert engine.warm
    running.thread.add(request("a", "one two three"))
    running.thread.add(request("b", "four five"))
    await wait_until(lambda: running.ended("a") and running.ended("b"), "both answered")
    assert (running.text("a"), running.text("b")) == ("one two three", "four five")
    running.thread.stop()
    assert running.thread.join(timedelta(seconds=5))
    assert engine.closed


async def test_the_loop_is_not_woken_for_each_token(monkeypatch: pytest.MonkeyPatch) -> None:
    loop, woken = asyncio.get_running_loop(), []
    wake = loop.call_soon_threadsafe

    def counted(*args: Any, **kwargs: Any) -> asyncio.Handle:
        woken.append(args)
        return wake(*args, **kwargs)

    monkeypatch.setattr(loop, "call_soon_threadsafe", counted)
    running = Running(ScriptedEngine())
    await running.thread.start()
    running.thread.add(request("a", "word " * 90))
    await wait_until(lambda: running.ended("a"), "answered")
    assert len(running.out) == 90
    assert len(woken) < 20  # ready, the first, the last, and one for each pause that the machine made
    running.thread.stop()


async def test_nothing_is_held_back_while_the_engine_is_in_a_long_step() -> None:
    engine = ScriptedEngine()
    running = Running(engine)
    await running.thread.start()
    running.thread.add(request("a", "one two three !hold four"))
    await wait_until(lambda: running.text("a") == "one two three ", "all that was written before it")
    assert not engine.release.is_set()
    engine.release.set()
    await wait_until(lambda: running.ended("a"), "answered")
    assert running.text("a") == "one two three !hold four"
    running.thread.stop()


async def test_a_request_that_does_not_fit_ends_with_its_error_and_the_next_runs() -> None:
    running = Running(ScriptedEngine())
    await running.thread.start()
    running.thread.add(request("long", "word " * 101))
    running.thread.add(request("short", "fine"))
    await wait_until(lambda: running.ended("short"), "the second answered")
    errors = {o.request_id: o.error.code for o in running.out if o.error}
    assert errors == {"long": "context_length_exceeded"}
    running.thread.stop()


async def test_an_aborted_request_says_nothing_more() -> None:
    engine = ScriptedEngine()
    running = Running(engine)
    await running.thread.start()
    running.thread.add(request("a", "!hold two three"))
    await wait_until(lambda: running.thread.stuck_for() > timedelta(0), "the step began")
    running.thread.abort("a")
    engine.release.set()
    running.thread.add(request("b", "next"))
    await wait_until(lambda: running.ended("b"), "the next answered")
    assert not running.ended("a")
    assert "three" not in running.text("a")
    running.thread.stop()


async def test_an_engine_that_breaks_fails_every_open_request() -> None:
    running = Running(ScriptedEngine(max_running=2))
    await running.thread.start()
    running.thread.add(request("a", "one two three !crash"))
    running.thread.add(request("b", "one two three four five six"))
    await wait_until(lambda: running.ended("a") and running.ended("b"), "both ended")
    assert {o.error.code for o in running.out if o.error} == {"engine_failure"}
    assert not running.thread.alive


async def test_an_engine_that_cannot_load_says_why() -> None:
    def load() -> ScriptedEngine:
        raise ConfigError("no such folder")

    thread = EngineThread(load, lambda *_: None, asyncio.get_running_loop())
    with pytest.raises(ConfigError, match="no such folder"):
        await thread.start()
    assert not thread.alive
