"""The kinds of request that the chaos run makes, each repeated with its Idempotency-Key until it is answered.

A request whose connection broke is not known to be lost or accepted: the same key asks for the same job again, as a
careful client does. What comes back is compared with what the model said in peace.
"""

from __future__ import annotations

import asyncio
import json
import time
import uuid
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any

import httpx

AGAIN = (429, 502, 503)  # come back later; nothing was accepted, or the same key finds what was
Body = dict[str, Any]


@dataclass
class Outcome:
    """One request's whole story. `problem` is empty when the answer came and was right."""

    kind: str
    began: float
    accepted: bool = False
    tries: int = 0
    seconds: float = 0.0
    problem: str = ""
    jobs: set[str] = field(default_factory=set)


class Again(Exception):
    """This try ended without an answer; the next may bring it."""


async def ask(http: httpx.AsyncClient, kind: str, body: Body, expected: str, patience: float) -> Outcome:
    """One request to its end, however many tries it takes within `patience` seconds."""
    outcome = Outcome(kind, time.monotonic())
    headers = {"Idempotency-Key": f'"{uuid.uuid4()}"', "Cache-Control": "no-cache"}
    text: str | None = None
    while text is None and time.monotonic() - outcome.began < patience:
        outcome.tries += 1
        try:
            text = await KINDS[kind](http, body, headers, outcome)
        except (Again, httpx.TransportError):
            await asyncio.sleep(0.2)  # the pace of a polite client, not a wait for something
        except Refused as refused:
            outcome.problem = str(refused)
            break
    outcome.seconds = time.monotonic() - outcome.began
    if not outcome.problem:
        outcome.problem = judge(text, expected, outcome)
    return outcome


def judge(text: str | None, expected: str, outcome: Outcome) -> str:
    if text is None:
        return "accepted but not answered" if outcome.accepted else "never accepted"
    if len(outcome.jobs) > 1:
        return f"doubled: {len(outcome.jobs)} jobs for one key"
    return "" if text == expected else f"wrong answer: {text!r} instead of {expected!r}"


class Refused(Exception):
    """An answer that will not change."""


def check(response: httpx.Response, outcome: Outcome) -> None:
    if response.status_code in AGAIN:
        raise Again
    if response.status_code >= 400:
        raise Refused(f"{response.status_code} {response.text[:300]}")
    outcome.accepted = True


async def whole(http: httpx.AsyncClient, body: Body, headers: dict[str, str], outcome: Outcome) -> str:
    response = await http.post("/v1/chat/completions", json=body, headers=headers)
    check(response, outcome)
    answer = response.json()
    outcome.jobs.add(answer["id"])
    return str(answer["choices"][0]["message"]["content"])


async def streamed(http: httpx.AsyncClient, body: Body, headers: dict[str, str], outcome: Outcome) -> str:
    """A stream that ends with an error event is asked for again; one that ends in silence is torn, and so is it."""
    text, done = "", False
    async with http.stream("POST", "/v1/chat/completions", json=body | {"stream": True}, headers=headers) as response:
        if response.status_code != 200:
            await response.aread()
        check(response, outcome)
        async for line in response.aiter_lines():
            if line == "data: [DONE]":
                done = True
            elif line.startswith("data: "):
                event = json.loads(line[6:])
                if "error" in event:
                    raise Again
                outcome.jobs.add(event["id"])
                text += "".join(choice["delta"].get("content") or "" for choice in event["choices"])
    if not done:
        raise Again
    return text


async def followed(http: httpx.AsyncClient, body: Body, headers: dict[str, str], outcome: Outcome) -> str:
    """A job whose events are read as a browser does: after a break it goes on after the last event's id."""
    job = await _create(http, body, headers, outcome)
    text, last = "", ""
    while True:
        try:
            resume = {"Last-Event-ID": last} if last else {}
            async with http.stream("GET", f"/v1/jobs/{job}/events", headers=resume) as response:
                if response.status_code != 200:
                    await response.aread()
                check(response, outcome)
                name = ""
                async for line in response.aiter_lines():
                    field_name, _, value = line.partition(": ")
                    if field_name == "id":
                        last = value
                    elif field_name == "event":
                        name = value
                    elif field_name == "data" and name == "text":
                        text += json.loads(value)["text"]
                    elif field_name == "data" and name != "status":
                        return _ended(name, value, text)
        except (Again, httpx.TransportError):
            if time.monotonic() - outcome.began > 300:
                raise
        await asyncio.sleep(0.2)


def _ended(name: str, value: str, text: str) -> str:
    if name != "succeeded":
        raise Refused(f"the job ended as {name}: {value[:300]}")
    return text


async def polled(http: httpx.AsyncClient, body: Body, headers: dict[str, str], outcome: Outcome) -> str:
    job = await _create(http, body | {"priority": "batch"}, headers, outcome)
    while True:
        response = await http.get(f"/v1/jobs/{job}")
        check(response, outcome)
        view = response.json()
        if view["status"] == "succeeded":
            return str(view["completion"]["choices"][0]["message"]["content"])
        if view["status"] not in ("queued", "processing"):
            raise Refused(f"the job ended as {view['status']}: {view['error']}")
        await asyncio.sleep(0.1)


async def _create(http: httpx.AsyncClient, body: Body, headers: dict[str, str], outcome: Outcome) -> str:
    response = await http.post("/v1/jobs", json=body, headers=headers)
    check(response, outcome)
    job = str(response.json()["id"])
    outcome.jobs.add(job)
    return job


Ask = Callable[[httpx.AsyncClient, Body, dict[str, str], Outcome], Awaitable[str]]
KINDS: dict[str, Ask] = {"whole": whole, "streamed": streamed, "followed": followed, "polled": polled}
