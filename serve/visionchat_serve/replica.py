"""A model replica: claims jobs from the queue, has its engine answer them, sends the text back.

    claim  -> the engine thread -> outbox of the job -> publish (first token at once, then every 50 ms) -> finish
    renew  -> every third of a lease, for all running jobs together

It claims no more jobs than the engine can run at once, so what waits waits in the queue, in order, where others can
take it. Knows neither HTTP nor Ray; `app` wraps it in a Ray Serve deployment, tests run it bare.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from datetime import timedelta
from typing import ParamSpec, TypeVar

from visionchat_serve.broker import Broker, LeaseState
from visionchat_serve.engine_thread import EngineThread
from visionchat_serve.engines.protocol import Engine, EngineOutput, EngineRequest
from visionchat_serve.errors import EngineFailure, Unavailable, VisionChatError
from visionchat_serve.messages import Claim, Finish, FinishReason, ReplicaReport, TokenLogprob, Usage
from visionchat_serve.retirement import Retirement

log = logging.getLogger(__name__)

BATCH = timedelta(milliseconds=50)  # text is gathered this long before it is sent on
BLOCK = timedelta(seconds=1)  # one wait for a job; a replica that is told to stop ends within it
RETRY = timedelta(milliseconds=250)  # pause before the queue is tried again after it went away
WATCH = timedelta(seconds=1)  # a replica looks at its memory this often
REPORT = timedelta(seconds=2)  # a replica says this often that it is there

P = ParamSpec("P")
T = TypeVar("T")


@dataclass(slots=True)
class _Running:
    """A claimed job while the engine works on it: one engine request for each of the answers that were asked for."""

    claim: Claim
    began: float = field(default_factory=time.monotonic)
    outbox: asyncio.Queue[EngineOutput] = field(default_factory=asyncio.Queue)
    usages: dict[str, Usage] = field(default_factory=dict)  # by request id
    reasons: dict[str, FinishReason] = field(default_factory=dict)
    error: VisionChatError | None = None
    delivery: asyncio.Task[None] | None = None

    @property
    def request_ids(self) -> list[str]:
        """In the order of the answers."""
        return [f"{self.claim.job.id}#{choice}" for choice in range(self.claim.job.sampling.n)]

    def requests(self) -> Iterator[EngineRequest]:
        """Same question, another seed for each answer."""
        job = self.claim.job
        for choice, request_id in enumerate(self.request_ids):
            seed = None if job.sampling.seed is None else job.sampling.seed + choice
            sampling = replace(job.sampling, seed=seed, n=1)
            yield EngineRequest(request_id, job.messages, self.claim.images, sampling, job.owner)

    def take(self, output: EngineOutput) -> None:
        """Note what the engine said; the delivery reads the outbox."""
        self.usages[output.request_id] = output.usage
        self.error = self.error or output.error
        if output.finish is not None:
            self.reasons[output.request_id] = output.finish
        self.outbox.put_nowait(output)

    @property
    def usage(self) -> Usage:
        """The prompt counts once, what was written counts for every answer."""
        usages = list(self.usages.values()) or [Usage()]
        return replace(usages[0], completion_tokens=sum(usage.completion_tokens for usage in usages))

    @property
    def finish(self) -> Finish | None:
        """The job's end, as soon as one answer failed or all are complete."""
        if self.error is not None:
            return Finish("error", self.usage, self.error.code, self.error.message, param=self.error.param)
        if len(self.reasons) < self.claim.job.sampling.n:
            return None
        first, *others = (self.reasons[request_id] for request_id in self.request_ids)
        return Finish(first, self.usage, others=tuple(others))

    @property
    def lateness(self) -> str | None:
        """Why it may not go on, in words."""
        job = self.claim.job
        if time.time() > job.deadline_at:
            return "the request's deadline passed while it was answered"
        if job.timeout is not None and time.monotonic() - self.began > job.timeout:
            return f"the answer took longer than {job.timeout:g} s; ask for a shorter one, or about smaller pictures"
        return None

    def stop_delivery(self) -> None:
        assert self.delivery is not None
        self.delivery.cancel()


class Replica:
    """`start` loads the engine and begins to work; `drain` finishes the running jobs, then ends.

    `load` makes the engine, in the thread that will run it; `name` is unique among replicas; `cpus` are the
    logical CPUs this process may run on, for the report, and so is `pod`. `retire_when` is asked, with the number of
    jobs begun so far, whether it is time to make room for a fresh replica; then nothing more is claimed and `retired`
    returns. `is_short` is asked every second whether the engine should give back what memory it can.
    """

    def __init__(
        self,
        load: Callable[[], Engine],
        broker: Broker,
        name: str,
        cpus: tuple[int, ...],
        stuck_after: timedelta = timedelta(minutes=3),
        claim_wait: timedelta = BLOCK,
        retire_when: Callable[[int], Retirement | None] = lambda begun: None,
        is_short: Callable[[], bool] = lambda: False,
        pod: str = "",
    ) -> None:
        self._name = name
        self._cpus = cpus
        self._pod = pod
        self._broker = broker
        self._stuck_after = stuck_after
        self._claim_wait = claim_wait
        self._retire_when = retire_when
        self._is_short = is_short
        self._retirement: asyncio.Future[Retirement] = asyncio.get_running_loop().create_future()
        self._begun = 0
        self._running: dict[str, _Running] = {}
        self._deliveries: set[asyncio.Task[None]] = set()  # outlive `_running`: the last words are still to be sent
        self._slot_free = asyncio.Event()
        self._stopping = asyncio.Event()
        self._thread = EngineThread(load, self._on_output, asyncio.get_running_loop())
        self._loops: list[asyncio.Task[None]] = []

    async def start(self) -> None:
        """Load and warm the engine, then claim. Raises what the engine raised."""
        self._engine = await self._thread.start()
        self._report = _report_of(self._engine, self._name, self._cpus, self._pod)
        self._loops = [
            asyncio.create_task(loop(), name=loop.__name__)
            for loop in (self._claim_loop, self._renew_loop, self._report_loop, self._watch_loop)
        ]
        self._claiming = self._loops[0]

    async def retired(self) -> Retirement:
        """Wait until it is time to `drain`."""
        return await asyncio.shield(self._retirement)

    async def drain(self, patience: timedelta) -> None:
        """Claim nothing more, finish what runs, give back what is not done after `patience`, then end."""
        self._stopping.set()
        self._slot_free.set()
        await asyncio.wait(
            {self._claiming}, timeout=1 + self._claim_wait.total_seconds()
        )  # a claim is let return, not cut
        if self._deliveries:
            await asyncio.wait(set(self._deliveries), timeout=patience.total_seconds())
        tasks = [*self._loops, *self._deliveries]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        self._thread.stop()
        await asyncio.to_thread(self._thread.join, timedelta(seconds=10))
        await self._leave()

    async def _leave(self) -> None:
        try:
            for running in self._running.values():
                await self._broker.release(running.claim)
            await self._broker.leave(self._name)
        except Unavailable as error:
            log.warning("left without a word, the leases will expire: %s", error)
        await self._broker.close()

    def check(self) -> None:
        """Raise `EngineFailure` when this replica cannot work any more and must be restarted."""
        if not self._thread.alive:
            raise EngineFailure("the engine thread has ended")
        if self._thread.stuck_for() > self._stuck_after:
            raise EngineFailure(f"one model step has taken longer than {self._stuck_after}")
        for task in self._loops:
            if task.done() and not self._stopping.is_set() and not self._retirement.done():
                raise EngineFailure(f"the replica's {task.get_name()} has ended")

    # --- from the queue to the engine ---

    async def _claim_loop(self) -> None:
        while not self._stopping.is_set() and self._thread.failure is None and not self._is_time_to_retire():
            room = self._engine.max_running - sum(one.claim.job.sampling.n for one in self._running.values())
            if room <= 0:
                self._slot_free.clear()
                await self._slot_free.wait()
                continue
            for claim in await self._until_queue_answers(self._broker.claim, self._name, room, self._claim_wait):
                await self._start_job(claim)

    async def _start_job(self, claim: Claim) -> None:
        if self._stopping.is_set():
            await self._broker.release(claim)
            return
        running = self._running[claim.job.id] = _Running(claim)
        self._begun += 1
        for request in running.requests():
            self._thread.add(request)
        running.delivery = asyncio.create_task(self._deliver(running))
        self._deliveries.add(running.delivery)
        running.delivery.add_done_callback(self._deliveries.discard)

    def _on_output(self, output: EngineOutput) -> None:
        running = self._running.get(output.request_id.rpartition("#")[0])
        if running is not None:
            running.take(output)

    # --- from the engine to the result stream ---

    async def _deliver(self, running: _Running) -> None:
        """Send one job's text on until it ends. Text is gathered for BATCH, except the first piece."""
        claim = running.claim
        index, sent_at = 0, float("-inf")
        while True:
            outputs = await self._gather(running, until=sent_at + BATCH.total_seconds())
            finish = running.finish if running.outbox.empty() else None
            for choice, text, logprobs in _pieces(outputs):
                state = await self._until_queue_answers(self._broker.publish, claim, index, text, choice, logprobs)
                index, sent_at = index + 1, time.monotonic()
                if state is not LeaseState.HELD:
                    await self._give_up(running, state)
                    return
            if finish is not None and running.error is not None:
                await self._abandon(running, finish)  # other answers may still be in work
                return
            if finish is not None:
                await self._end(running, finish)
                return

    async def _gather(self, running: _Running, until: float) -> list[EngineOutput]:
        """At least one output, and all that come until `until` (monotonic seconds) or the job's end."""
        outputs = [await running.outbox.get()]
        while not running.outbox.empty() or (running.finish is None and time.monotonic() < until):
            try:
                async with asyncio.timeout(max(0.0, until - time.monotonic())):
                    outputs.append(await running.outbox.get())
            except TimeoutError:
                break
        return outputs

    async def _give_up(self, running: _Running, state: LeaseState) -> None:
        """The client left, or another replica has the job."""
        log.info("job %s stopped: %s", running.claim.job.id, state.value)
        told = Finish("cancelled", running.usage, message="the client went away")
        await self._abandon(running, told if state is LeaseState.CANCELLED else None)

    async def _abandon(self, running: _Running, told: Finish | None) -> None:
        """Stop the engine's work on a job, free its place, and end the job with `told` if it is still ours."""
        self._stop_engine(running)
        await self._end(running, told)

    def _stop_engine(self, running: _Running) -> None:
        for request_id in running.request_ids:
            self._thread.abort(request_id)

    def _forget(self, running: _Running) -> None:
        self._running.pop(running.claim.job.id, None)
        self._slot_free.set()

    async def _end(self, running: _Running, told: Finish | None) -> None:
        self._forget(running)
        self._report = _counted(self._report, running)
        if told is not None:
            await self._until_queue_answers(self._broker.finish, running.claim, told)

    # --- the end of a replica that has done its part ---

    async def _watch_loop(self) -> None:
        while True:
            self._is_time_to_retire()
            if self._is_short():
                self._thread.forget()
            await asyncio.sleep(WATCH.total_seconds())

    def _is_time_to_retire(self) -> bool:
        retirement = self._retire_when(self._begun)
        if retirement is not None and not self._retirement.done():
            self._retirement.set_result(retirement)
        if retirement is not None and retirement.at_once:
            self._drop_what_runs()
        return self._retirement.done()

    def _drop_what_runs(self) -> None:
        """Without giving it back: it counts as lost, so that others try it at once, but not for ever."""
        for running in list(self._running.values()):
            running.stop_delivery()
            self._stop_engine(running)
            self._forget(running)

    # --- leases and presence ---

    async def _renew_loop(self) -> None:
        every = self._broker.policy.lease.total_seconds() / 3
        while True:
            await asyncio.sleep(every)
            running = list(self._running.values())
            if running:
                await self._renew(running)

    async def _renew(self, running: list[_Running]) -> None:
        try:
            states = await self._broker.renew(self._name, [r.claim for r in running])
        except Unavailable as error:
            log.warning("leases not renewed, trying again: %s", error)
            return
        for one, state in zip(running, states, strict=True):
            if one.claim.job.id not in self._running:
                continue  # it ended meanwhile
            if state is not LeaseState.HELD:
                one.stop_delivery()
                await self._give_up(one, state)
            elif (lateness := one.lateness) is not None:
                one.stop_delivery()
                await self._abandon(one, Finish("error", one.usage, "timeout", lateness))

    async def _report_loop(self) -> None:
        while True:
            try:
                await self._broker.report(replace(self._report, running=len(self._running)), ttl=REPORT * 5)
            except Unavailable as error:
                log.warning("presence not reported, trying again: %s", error)
            await asyncio.sleep(REPORT.total_seconds())

    async def _until_queue_answers(self, call: Callable[P, Awaitable[T]], *args: P.args, **kwargs: P.kwargs) -> T:
        """Keep the work and try again while the queue is away: a job in hand is worth more than a quick error."""
        while True:
            try:
                return await call(*args, **kwargs)
            except Unavailable as error:
                log.warning("queue away, trying again: %s", error)
                await asyncio.sleep(RETRY.total_seconds())


def _pieces(outputs: Sequence[EngineOutput]) -> Iterator[tuple[int, str, tuple[TokenLogprob, ...]]]:
    """What is to be sent of each answer: choice, text, log probabilities."""
    for request_id in dict.fromkeys(output.request_id for output in outputs):
        own = [output for output in outputs if output.request_id == request_id]
        text = "".join(output.text for output in own)
        logprobs = tuple(token for output in own for token in output.logprobs)
        if text or logprobs:
            yield int(request_id.rpartition("#")[2]), text, logprobs


def _counted(report: ReplicaReport, running: _Running) -> ReplicaReport:
    """With what the engine knew already of this job, if it got as far as reading it."""
    usage = running.usage
    if not usage.prompt_tokens:
        return report
    return replace(
        report,
        picture_hits=report.picture_hits + usage.cached_images,
        picture_misses=report.picture_misses + running.claim.job.image_count - usage.cached_images,
        cached_tokens=report.cached_tokens + usage.cached_tokens,
    )


def _report_of(engine: Engine, name: str, cpus: tuple[int, ...], pod: str) -> ReplicaReport:
    info = engine.info
    return ReplicaReport(
        replica=name,
        engine=info.engine,
        model=info.model,
        dtype=info.dtype,
        revision=info.revision,
        threads=info.threads,
        cpus=cpus,
        max_context=info.max_context,
        max_running=engine.max_running,
        loaded_at=time.time(),
        pod=pod,
    )
