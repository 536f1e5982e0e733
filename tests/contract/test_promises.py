"""A random life of a queue, in memory and in Redis at once: both do the same, and what `broker.py` promises.

The machine claims, answers, crashes (by not renewing), cancels and jumps in time; `Promised` remembers what that
entitles everybody to. `STATEFUL_EXAMPLES=1000` runs the full form,
which also makes a failing life as short as it can; that takes minutes.
"""

from __future__ import annotations

import asyncio
import os
import uuid
from collections.abc import Coroutine
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from contract.queues import SERVERS, Clock, Servers
from visionchat_serve.broker import Broker, BrokerPolicy, LeaseState, Reuse
from visionchat_serve.errors import VisionChatError
from visionchat_serve.memory_broker import MemoryBroker
from visionchat_serve.messages import (
    ChatJob,
    Claim,
    Finish,
    Idempotency,
    JobView,
    Message,
    Priority,
    ReplicaReport,
    SamplingParams,
    Submitted,
    TextPart,
    TokenChunk,
    Usage,
)
from visionchat_serve.redis_broker import RedisBroker
from visionchat_serve.redis_keys import Keys

NOW = timedelta(0)
START = 1_800_000_000.0
EXAMPLES = int(os.environ.get("STATEFUL_EXAMPLES", "0"))
POLICY = BrokerPolicy(
    lease=timedelta(seconds=4),
    max_attempts=4,
    result_ttl=timedelta(days=1),
    max_waiting=8,
    max_wait=timedelta(days=1),
    batch_after=2,
    retry_delay=timedelta(seconds=4),
    max_retry_delay=timedelta(seconds=6),
    max_dead=2,
    cache_ttl=timedelta(days=30),
    affinity_wait=timedelta(seconds=1.5),
)
ANY = st.integers(min_value=0, max_value=10**6)  # picks one of what there is, in whatever number
RECENT = st.integers(min_value=0, max_value=4)  # the same, counted from the last


@dataclass
class Promised:
    """What is known of one job by what was said to its owner and its replicas."""

    job: ChatJob
    claim: Claim | None = None  # the last one, while it was not given back
    leased_until: float = 0
    cancelled: bool = False
    ended: bool = False
    attempt: int = 0
    released: int = 0
    written: list[Any] = field(default_factory=list)

    def is_held(self, now: float) -> bool:
        return self.claim is not None and not self.ended and self.leased_until > now


class TwoQueues(RuleBasedStateMachine):
    """Every rule does one thing to both queues."""

    def __init__(self, url: str) -> None:
        super().__init__()
        self.loop = asyncio.new_event_loop()
        self.namespace = uuid.uuid4().hex[:12]
        self.clock = Clock(url, self.namespace, START)
        self.brokers: list[Broker] = [
            MemoryBroker(POLICY, clock=lambda: self.clock.now),
            RedisBroker.from_url(url, self.namespace, POLICY),
        ]
        self.jobs: dict[str, Promised] = {}
        self.claims: list[Claim] = []
        self.keys: dict[str, str] = {}
        self.answered: set[str] = set()  # cache keys that have an answer
        self.batch_passed_over = 0

    @property
    def now(self) -> float:
        return self.clock.now

    def do(self, coroutine: Coroutine[Any, Any, Any]) -> Any:
        return self.loop.run_until_complete(coroutine)

    def both(self, method: str, *args: Any) -> Any:
        """The one result of the call on both; an error's class is a result too."""
        results = [self.do(outcome(getattr(broker, method)(*args))) for broker in self.brokers]
        assert results[0] == results[1], method
        return results[0]

    def views(self) -> list[JobView]:
        """All jobs as their owner sees them, in order of arrival."""
        return list(reversed(self.both("jobs", "ann", 1000)))

    def collect(self, job_id: str) -> list[Any]:
        async def values(broker: Broker) -> list[Any]:
            return [event.value async for event in broker.events(job_id)]

        in_memory, in_redis = [self.do(values(broker)) for broker in self.brokers]
        assert in_memory == in_redis
        return list(in_memory)

    # --- the gateway ---

    @initialize()
    def begin(self) -> None:
        self.jump(0)
        self.submit_many(["interactive", "batch"])

    @rule(
        priority=st.sampled_from(["interactive", "batch"]),
        patience=st.sampled_from([1.0, 20.0, 300.0, 300.0]),
        images=st.lists(st.binary(max_size=2), max_size=2),
        key=st.sampled_from(["", "", "k", "l"]),
        body=st.sampled_from(["x", "x", "y"]),
        affinity=st.sampled_from(["", "cat"]),
        same=st.sampled_from(["", "", "s", "t"]),
    )
    def submit(
        self,
        priority: Priority,
        patience: float,
        images: list[bytes],
        key: str,
        body: str,
        affinity: str = "",
        same: str = "",
    ) -> None:
        """`same`: any job with it has the same answer. It is interactive, because one that is ended by such an answer
        takes a turn that nobody sees."""
        priority = "interactive" if same else priority
        job = ChatJob(
            f"job-{len(self.jobs):04}", (Message("user", (TextPart("?"),)),), SamplingParams(), "tiny",
            len(images), self.now, self.now + patience, "ann", priority,
            affinity=affinity, prompt_tokens=7 * len(self.jobs), cache_key=same,
        )  # fmt: skip
        unanswered = self.both("load").backlog
        reuse = Reuse.ANSWER if same else Reuse.NOTHING
        result = self.both("ask", job, images, Idempotency(key, body) if key else None, reuse)
        if key in self.keys:
            earlier, first_body = self.keys[key].split()
            assert result == (Submitted(earlier, "known") if first_body == body else "IdempotencyConflict")
        elif same in self.answered:
            assert result == Submitted(job.id, "hit")
        elif unanswered >= POLICY.max_waiting:
            assert result == "QueueFull"
        else:
            assert result == Submitted(job.id, "accepted")
        if result in (Submitted(job.id, "accepted"), Submitted(job.id, "hit")):
            self.jobs[job.id] = Promised(job)
            if key:
                self.keys[key] = f"{job.id} {body}"

    @rule(priorities=st.lists(st.sampled_from(["interactive", "batch"]), min_size=3, max_size=6))
    def submit_many(self, priorities: list[Priority]) -> None:
        for number, priority in enumerate(priorities):
            self.submit(priority, 300.0, [], "", "", "cat" if number % 3 == 0 else "")

    @rule(number=st.integers(0, 4), count=st.integers(2, 3))
    def ask_the_same(self, number: int, count: int) -> None:
        """One of several same jobs is answered while the others wait."""
        for _ in range(count):
            self.submit("interactive", 300.0, [], "", "", "", f"same {number}")
        self.claim("a", 3)
        if self.claims:
            self.finish(0, "stop")

    @precondition(lambda self: self.jobs)
    @rule(pick=ANY)
    def cancel(self, pick: int) -> None:
        promised = list(self.jobs.values())[pick % len(self.jobs)]
        was_open, was_held = not self.is_ended(promised), promised.is_held(self.now)
        assert self.both("cancel", promised.job.id) is was_open
        promised.cancelled |= was_open
        assert self.is_ended(promised) is not (was_open and was_held)

    # --- replicas ---

    @precondition(lambda self: self.jobs)
    @rule(consumer=st.sampled_from("abc"), count=st.integers(1, 3))
    def claim(self, consumer: str, count: int) -> None:
        waiting = [self.jobs[view.id] for view in self.views() if view.status == "queued"]
        claims = self.both("claim", consumer, count, NOW)
        assert len(claims) <= count
        assert len(claims) <= len(waiting)
        for claim in claims:
            promised = self.jobs[claim.job.id]
            assert promised in waiting, "never while it is held or ended"
            assert not promised.cancelled
            assert self.now < claim.job.deadline_at
            assert claim.attempt == promised.attempt + 1
            assert claim.attempt - promised.released <= POLICY.max_attempts
            self.check_same(promised)
            self.check_order(promised, waiting)
            waiting.remove(promised)
            promised.claim, promised.attempt = claim, claim.attempt
            promised.leased_until = self.now + 4
            self.claims.append(claim)

    @precondition(lambda self: self.jobs)
    @rule(count=st.integers(1, 3), pause=st.sampled_from([4.0, 5.0, 7.0]))
    def crash(self, count: int, pause: float) -> None:
        """A replica claims and is never heard of again; its leases expire."""
        self.claim("crashing", count)
        self.jump(pause)

    def check_same(self, claimed: Promised) -> None:
        """Of jobs with the same answer none is begun while another is worked on or when the answer is there."""
        key = claimed.job.cache_key
        if key and claimed.attempt == 0:
            assert key not in self.answered
            last = [claim.job.id for claim in self.claims if claim.job.cache_key == key][-1:]
            assert not any(
                self.jobs[job_id].is_held(self.now) and not self.is_ended(self.jobs[job_id]) for job_id in last
            )

    def check_order(self, claimed: Promised, waiting: list[Promised]) -> None:
        """First come, first served within a priority; neither starves. What came back may go before, and what has an
        affinity may be left for another for a moment."""
        left = POLICY.affinity_wait.total_seconds()
        new = [p for p in waiting if p.attempt == 0 and not (p.job.affinity and self.now < p.job.created_at + left)]
        new = [p for p in new if not p.job.cache_key]  # these may wait for each other
        if claimed not in new:
            if claimed.job.priority == "batch":
                self.batch_passed_over = 0  # it may have taken the turn
            return
        assert claimed is next(p for p in new if p.job.priority == claimed.job.priority)
        batch_waits = any(p.job.priority == "batch" for p in new)
        passes = claimed.job.priority == "interactive" and batch_waits
        self.batch_passed_over = self.batch_passed_over + 1 if passes else 0
        assert self.batch_passed_over <= POLICY.batch_after

    @precondition(lambda self: self.claims)
    @rule(pick=RECENT, step=st.sampled_from([0, 0, 0, -1, 1]))
    def publish(self, pick: int, step: int) -> None:
        claim = self.claims[-1 - pick % len(self.claims)]
        promised = self.jobs[claim.job.id]
        following = sum(isinstance(one, TokenChunk) and one.attempt == claim.attempt for one in promised.written)
        index = max(0, following + step)
        state = self.both("publish", claim, index, f"{claim.attempt}.{index} ")
        if step <= 0 or state is not LeaseState.LOST:
            self.check_state(claim, state)
        assert step <= 0 or state is not LeaseState.HELD, "never after a gap"
        if state is LeaseState.HELD and index == following:
            promised.written.append(TokenChunk(claim.job.id, claim.attempt, index, f"{claim.attempt}.{index} "))

    @precondition(lambda self: self.claims)
    @rule(pick=RECENT)
    def renew(self, pick: int) -> None:
        claim = self.claims[-1 - pick % len(self.claims)]
        [state] = self.both("renew", "a", [claim])
        self.check_state(claim, state)
        if state is not LeaseState.LOST:
            self.jobs[claim.job.id].leased_until = self.now + 4

    @precondition(lambda self: self.claims)
    @rule(pick=RECENT, reason=st.sampled_from(["stop", "error"]))
    def finish(self, pick: int, reason: Any) -> None:
        claim = self.claims[-1 - pick % len(self.claims)]
        promised = self.jobs[claim.job.id]
        finish = Finish(reason, Usage(3, claim.attempt))
        if self.both("finish", claim, finish) and finish not in promised.written:
            assert claim == promised.claim, "an older attempt ends nothing"
            if self.collect(claim.job.id)[-1] == finish:
                promised.written.append(finish)
                whole = len({one.attempt for one in promised.written if isinstance(one, TokenChunk)} | {claim.attempt})
                if reason == "stop" and promised.job.cache_key and whole == 1:
                    self.answered.add(promised.job.cache_key)

    @precondition(lambda self: self.claims)
    @rule(pick=RECENT)
    def release(self, pick: int) -> None:
        claim = self.claims[-1 - pick % len(self.claims)]
        promised = self.jobs[claim.job.id]
        held = promised.claim == claim and promised.is_held(self.now) and not self.is_ended(promised)
        released = self.both("release", claim)
        assert released or not held
        if released:
            assert claim == promised.claim
            promised.claim, promised.released = None, promised.released + 1

    @rule(consumer=st.sampled_from("abc"), places=st.integers(1, 3))
    def report(self, consumer: str, places: int) -> None:
        report = ReplicaReport(consumer, "torch", "tiny", "float32", "r1", 1, (0,), 100, places, START)
        self.both("report", report, timedelta(seconds=600))

    @precondition(lambda self: any(p.is_held(self.now) for p in self.jobs.values()))
    @rule(consumer=st.sampled_from("abc"))
    def leave(self, consumer: str) -> None:
        before = self.both("load")
        self.both("leave", consumer)
        assert self.both("load").backlog == before.backlog
        for view in self.views():
            if self.jobs[view.id].is_held(self.now) and view.status == "queued":
                self.jobs[view.id].leased_until = self.now

    def check_state(self, claim: Claim, state: LeaseState) -> None:
        promised = self.jobs[claim.job.id]
        if promised.claim != claim or self.is_ended(promised):
            assert state is LeaseState.LOST, "fenced"
        elif promised.is_held(self.now):
            assert state is (LeaseState.CANCELLED if promised.cancelled else LeaseState.HELD)

    # --- time, the dead ---

    @rule(seconds=st.sampled_from([0.25, 1.0, 2.0, 3.75]))
    def jump(self, seconds: float) -> None:
        self.do(self.clock.jump(seconds))

    @precondition(lambda self: self.both("dead", 1))
    @rule()
    def purge_dead(self) -> None:
        self.both("purge_dead")

    def is_ended(self, promised: Promised) -> bool:
        view = self.both("describe", promised.job.id)
        promised.ended = view.finish is not None
        return promised.ended

    @invariant()
    def nothing_is_lost_or_held_twice(self) -> None:
        views = self.views()
        assert [view.id for view in views] == list(self.jobs)
        for view in views:
            promised = self.jobs[view.id]
            promised.ended = view.finish is not None
            if view.finish and view.finish.error_code == "replica_lost":
                assert view.attempt - promised.released == POLICY.max_attempts, "neither later nor sooner"
        unanswered = [p for p in self.jobs.values() if not p.ended]
        load = self.both("load")
        in_memory, in_redis = [self.do(broker.load()).seconds for broker in self.brokers]
        assert in_redis == pytest.approx(in_memory, rel=0.001, abs=0.001)
        assert load.backlog == len(unanswered)
        assert load.leased == sum(p.is_held(self.now) for p in unanswered)
        positions = [view.position for view in views if view.status == "queued"]
        assert sorted(positions) == list(range(len(positions)))
        dead = self.both("dead", 10)
        assert len(dead) <= POLICY.max_dead
        assert all(view.finish.error_code == "replica_lost" for view in dead)

    def teardown(self) -> None:
        """When all is over, every job has its answer: what its replicas wrote, in order, and one end."""
        try:
            self.jump(1000)
            while self.both("claim", "last", 10, NOW):
                self.jump(1000)
            assert self.both("load").backlog == 0
            for job_id, promised in self.jobs.items():
                values = self.collect(job_id)
                if promised.job.cache_key in self.answered and promised.attempt == 0 and values[-1].reason == "stop":
                    assert said(values) in self.said_by_replicas(promised.job.cache_key)
                    continue
                assert [isinstance(value, Finish) for value in values] == [False] * (len(values) - 1) + [True]
                assert values[: len(promised.written)] == promised.written
                assert len(values) <= len(promised.written) + 1
        finally:
            self.do(self.close())
            self.loop.close()

    def said_by_replicas(self, key: str) -> list[list[Any]]:
        same = [job_id for job_id, p in self.jobs.items() if p.job.cache_key == key and p.attempt > 0]
        return [said(self.collect(job_id)) for job_id in same]

    async def close(self) -> None:
        await self.clock.close()
        for broker in self.brokers:
            await broker.close()


def said(values: list[Any]) -> list[Any]:
    """Of whichever job."""
    return [value.text if isinstance(value, TokenChunk) else value for value in values]


async def outcome(call: Coroutine[Any, Any, Any]) -> Any:
    try:
        return await call
    except VisionChatError as error:
        return type(error).__name__


@pytest.mark.parametrize("server", SERVERS)
def test_both_queues_keep_their_promises(servers: Servers, server: str, monkeypatch: pytest.MonkeyPatch) -> None:
    Clock.read_in_redis(monkeypatch)
    url = servers[server].url
    assert Keys("n").of_queue()[0].count("{n}") == 1
    run_state_machine_as_test(
        lambda: TwoQueues(url),
        settings=settings(
            max_examples=EXAMPLES or 40,
            stateful_step_count=60,
            deadline=None,
            database=None,
            derandomize=not EXAMPLES,
            phases=[Phase.generate, Phase.shrink] if EXAMPLES else [Phase.generate],
            suppress_health_check=list(HealthCheck),
        ),
    )
