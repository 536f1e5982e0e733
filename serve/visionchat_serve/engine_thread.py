"""One thread that owns one engine, and the only way to talk to it from an event loop.

Models compute for seconds at a time; here they do so off the loop, always in the same thread (OpenMP keeps a team
of workers per calling thread, so a second one would double the threads). The loop side calls `add` and `abort`;
outputs come back through `on_output` inside the loop. Knows no queue and no job, only engine requests.
"""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections import deque
from collections.abc import Callable
from datetime import timedelta

from visionchat_serve.engines.protocol import Engine, EngineOutput, EngineRequest
from visionchat_serve.errors import EngineFailure, VisionChatError
from visionchat_serve.messages import Usage

log = logging.getLogger(__name__)

OnOutput = Callable[[EngineOutput], None]

GATHER = timedelta(milliseconds=50)  # the loop looks for further outputs this long after the last look


class _Outbox:
    """Outputs on their way from the engine's thread into the loop, in order.

    What is urgent wakes the loop. The rest waits for its next look, which comes by itself as long as there was
    something to see: waking it for each token took a tenth of the tiny model's time.
    """

    def __init__(self, on_output: OnOutput, loop: asyncio.AbstractEventLoop) -> None:
        self._on_output = on_output
        self._loop = loop
        self._outputs: deque[EngineOutput] = deque()
        self._awake = False  # the loop has been woken, and has not looked in vain since
        self._look_is_due = False

    def put(self, outputs: list[EngineOutput], urgent: bool) -> None:
        """Called in the engine's thread."""
        self._outputs.extend(outputs)
        if urgent or not self._awake:
            self._awake = True
            self._loop.call_soon_threadsafe(self._hand_out)

    def _hand_out(self) -> None:
        while self._outputs:
            self._on_output(self._outputs.popleft())
        if not self._look_is_due:
            self._look_is_due = True
            self._loop.call_later(GATHER.total_seconds(), self._look)

    def _look(self) -> None:
        self._look_is_due = self._awake = False  # first: what comes after the look finds it so, and wakes the loop
        if self._outputs:
            self._awake = True
            self._hand_out()


class EngineThread:
    """Loads, warms and runs an engine until `stop`. `on_output(output)` is called in `loop`, in order.

    A request's first text and its end come at once, what is between them at most `GATHER` later. An error comes with
    a last output (`finish="error"`). An engine that raises in `step` is broken: all its requests end with
    `EngineFailure`, `failure` is set, and nothing more is accepted.
    """

    def __init__(self, load: Callable[[], Engine], on_output: OnOutput, loop: asyncio.AbstractEventLoop) -> None:
        self.failure: BaseException | None = None
        self._load = load
        self._ready: asyncio.Future[Engine] = loop.create_future()
        self._loop = loop
        self._outbox = _Outbox(on_output, loop)
        self._inbox: deque[EngineRequest | str | None] = deque()  # a str is an id to abort, None asks to forget
        self._wake = threading.Condition()
        self._stopping = False
        self._step_began: float | None = None
        self._open: set[str] = set()
        self._silent: set[str] = set()  # of them, those whose first text is still to come
        self._thread = threading.Thread(target=self._run, name="engine", daemon=True)

    async def start(self) -> Engine:
        """Load and warm the engine in its thread; raises what went wrong there."""
        self._thread.start()
        return await self._ready

    def add(self, request: EngineRequest) -> None:
        self._post(request)

    def abort(self, request_id: str) -> None:
        self._post(request_id)

    def forget(self) -> None:
        """Let the engine give back the memory of what it keeps of earlier requests."""
        self._post(None)

    def stop(self) -> None:
        """Ask the thread to end after the step it is in; `join` waits for it."""
        with self._wake:
            self._stopping = True
            self._wake.notify()

    def join(self, timeout: timedelta) -> bool:
        """True when the thread has ended."""
        self._thread.join(timeout.total_seconds())
        return not self._thread.is_alive()

    def stuck_for(self) -> timedelta:
        """How long the present step has been running."""
        began = self._step_began
        return timedelta(seconds=time.monotonic() - began) if began is not None else timedelta(0)

    @property
    def alive(self) -> bool:
        return self._thread.is_alive() and self.failure is None

    def _post(self, item: EngineRequest | str | None) -> None:
        with self._wake:
            self._inbox.append(item)
            self._wake.notify()

    def _run(self) -> None:
        try:
            self._engine = self._load()
            self._engine.warm_up()
        except BaseException as error:  # carried over to whoever awaits `start`
            self.failure = error
            self._loop.call_soon_threadsafe(self._ready.set_exception, error)
            return
        self._loop.call_soon_threadsafe(self._ready.set_result, self._engine)
        try:
            self._work()
        except Exception as error:  # the thread's last words: whoever waits for an answer must hear of it
            log.exception("the engine failed")
            self._fail(error)

    def _work(self) -> None:
        while self._take_inbox():
            self._step_began = time.monotonic()
            outputs = self._engine.step()
            self._step_began = None
            if outputs:
                self._deliver(outputs)
        self._engine.close()

    def _take_inbox(self) -> bool:
        """Wait for work, hand what arrived to the engine; False when it is time to stop."""
        with self._wake:
            self._wake.wait_for(lambda: self._stopping or self._inbox or self._engine.has_work)
            items = list(self._inbox)
            self._inbox.clear()
            if self._stopping:
                return False
        for item in items:
            self._take(item)
        return True

    def _take(self, item: EngineRequest | str | None) -> None:
        if item is None:
            self._engine.forget()
        elif isinstance(item, str):
            self._abort(item)
        else:
            self._add(item)

    def _abort(self, request_id: str) -> None:
        self._engine.abort(request_id)
        self._close(request_id)

    def _add(self, request: EngineRequest) -> None:
        try:
            self._engine.add(request)
            self._open.add(request.id)
            self._silent.add(request.id)
        except VisionChatError as error:
            self._deliver([EngineOutput(request.id, "", Usage(), "error", error=error)])

    def _fail(self, error: Exception) -> None:
        self.failure = error
        with self._wake:
            waiting = {item.id for item in self._inbox if isinstance(item, EngineRequest)}
        told = EngineFailure("the model failed while answering; the replica restarts, ask again")
        self._deliver([EngineOutput(i, "", Usage(), "error", error=told) for i in sorted(self._open | waiting)])

    def _deliver(self, outputs: list[EngineOutput]) -> None:
        urgent = [self._is_urgent(output) for output in outputs]
        self._outbox.put(outputs, any(urgent))

    def _is_urgent(self, output: EngineOutput) -> bool:
        """Somebody waits for it: the first text, or the end. Notes what was said."""
        is_first = bool(output.text) and output.request_id in self._silent
        if output.finish is not None:
            self._close(output.request_id)
        elif is_first:
            self._silent.discard(output.request_id)
        return is_first or output.finish is not None

    def _close(self, request_id: str) -> None:
        self._open.discard(request_id)
        self._silent.discard(request_id)
