"""AsyncEngine: one engine thread, any number of asyncio callers."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import AsyncGenerator, Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field, replace

from octavo.engine.core import EngineCore
from octavo.engine.output import OutputProcessor
from octavo.engine.request import ERROR, RequestUpdate
from octavo.engine.stats import EngineStats
from octavo.errors import EngineDeadError, InvalidRequestError, RequestFailedError, ShuttingDownError
from octavo.params import RequestOutput, SamplingParams

ABORT_GRACE_S = 5.0
"""How long drain() waits for the last step once it has aborted what was left."""


@dataclass(frozen=True, slots=True)
class _Add:
    request_id: str
    token_ids: Sequence[int]
    params: SamplingParams
    priority: int
    cache_salt: str | None
    arrival_time: float
    encoder_token_ids: Sequence[int] = ()


@dataclass(frozen=True, slots=True)
class _Abort:
    request_id: str
    index: int | None = None


@dataclass(frozen=True, slots=True)
class _Call:
    function: Callable[[], bool]
    future: Future[bool]


@dataclass(frozen=True, slots=True)
class _Added:
    """The core's answer to _Add: the seed, or why not."""

    request_id: str
    seed: int
    error: Exception | None = None


@dataclass(slots=True, eq=False)
class _Stream:
    """A caller's side of a request. num_open: sequences whose end the core has not reported."""

    num_open: int
    news: asyncio.Event = field(default_factory=asyncio.Event)
    error: Exception | None = None


class AsyncEngine:
    """Serves asyncio callers from one thread that runs EngineCore. Specification:

        event loop                                    engine thread
        generate() --- inbox (adds, aborts) -------->  core.add_request / abort
           ^                                           core.step
           `-- OutputProcessor <-- outbox, one wake-up a step <--

    1.  The core belongs to the engine thread; streams and the OutputProcessor to the event loop.
        They meet only in inbox and outbox, under one lock.
    2.  The thread sleeps while there is nothing to do; whatever enters the inbox wakes it. Before
        each step it takes the whole inbox, so an abort takes effect within one step.
    3.  The outbox wakes the loop at most once a step, and not again before the loop has read it.
    4.  A caller takes its output when it comes for it; what happened meanwhile is merged, so slow
        callers cost no queue. All queues are bounded by the requests in the house, and these by
        max_waiting + max_num_seqs.
    5.  A caller that leaves (closes the generator, or its task is cancelled) aborts its request.
        The id stays in use until the core has confirmed the end.
    6.  If the thread dies, every caller gets EngineDeadError, now and later.
    7.  One event loop at a time; another one may follow when the first is closed.

    *The switch interval.* Both threads share the GIL. A step releases it while the kernels run; to
    come back the engine thread may have to wait until the interpreter's switch interval (5 ms by
    default) has passed whenever the loop is busy with Python: more than a whole step of a small
    model. So the loop's work per step is kept small here, and a server with many streams should
    shorten sys.setswitchinterval(), as its benchmark measures; this is the process's decision.

    Args:
        stall_s: a step that takes longer than this makes the engine unhealthy.
    """

    def __init__(
        self,
        core: EngineCore,
        outputs: OutputProcessor,
        *,
        stall_s: float = 60.0,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._core = core
        self._outputs = outputs
        self._stall_s = stall_s
        self._clock = clock
        self._thread = threading.Thread(target=self._run, name="octavo-engine", daemon=True)
        # Under this lock: inbox, outbox, _stopping, _dead, _waking, _loop.
        self._wake = threading.Condition()
        self._inbox: list[_Add | _Abort | _Call] = []
        self._outbox: list[RequestUpdate | _Added] = []
        self._stopping = False
        self._dead: EngineDeadError | None = None
        self._waking = False
        self._loop: asyncio.AbstractEventLoop | None = None
        # The loop's own.
        self._streams: dict[str, _Stream] = {}
        self._draining = False
        self._idle = asyncio.Event()
        # Written by the engine thread, read by `healthy`.
        self._busy = False
        self._last_progress = clock()

    # --- for callers, on the event loop -------------------------------------------------------------

    def start(self) -> None:
        """Start the engine thread. Once."""
        self._thread.start()

    async def generate(
        self,
        request_id: str,
        token_ids: Sequence[int],
        params: SamplingParams,
        *,
        prompt: str | None = None,
        priority: int = 0,
        cache_salt: str | None = None,
        encoder_token_ids: Sequence[int] = (),
    ) -> AsyncGenerator[RequestOutput, None]:
        """Outputs of one prompt, as params.output_kind wants them, until one is finished.

        Raises:
            InvalidRequestError: see EngineCore.add_request. Before the first output, like
            OverloadedError: too many are waiting. ShuttingDownError: the engine is draining.
            RequestFailedError: the engine failed at this request, at any of its n completions.
            EngineDeadError: the engine thread is not running (any more).
        """
        now = self._clock()
        add = _Add(request_id, token_ids, params, priority, cache_salt, now, encoder_token_ids)
        stream = self._open(add, prompt)
        finished = False
        try:
            while not finished:
                if (output := self._outputs.take(request_id)) is not None:
                    _raise_failure(output)
                    finished = output.finished
                    yield output
                elif stream.error is not None:
                    raise stream.error
                else:
                    await stream.news.wait()
                    stream.news.clear()
        finally:
            self._outputs.discard(request_id)
            if not finished and stream.num_open:
                self._send(_Abort(request_id))

    async def abort(self, request_id: str) -> None:
        """End a request within a step; its generator gives a last output with finish_reason "abort"."""
        if request_id in self._streams:
            self._send(_Abort(request_id))

    async def reset_prefix_cache(self) -> bool:
        """Forget cached prefixes that no running request uses. True: none is left."""
        call = _Call(self._core.reset_prefix_cache, Future())
        if not self._send(call):
            raise self._why_dead()
        return await asyncio.wrap_future(call.future)

    def stats(self) -> EngineStats:
        """A snapshot; requests that the engine thread has not taken yet count as waiting."""
        stats = self._core.stats()
        return replace(stats, waiting=stats.waiting + self._num_pending())

    @property
    def healthy(self) -> bool:
        """Alive and, while there is work, moving."""
        if self._dead is not None or not self._thread.is_alive():
            return False
        return not self._busy or self._clock() - self._last_progress < self._stall_s

    @property
    def failure(self) -> str | None:
        """Why the thread died, if it did; None also where it was told to stop."""
        return None if self._dead is None or self._stopping else str(self._dead)

    async def drain(self, timeout_s: float) -> None:
        """Refuse new requests, let the others end for at most timeout_s, abort the rest, and stop."""
        self._draining = True
        if not await self._until_idle(timeout_s):
            for request_id in tuple(self._streams):
                self._send(_Abort(request_id))
            await self._until_idle(ABORT_GRACE_S)
        await asyncio.to_thread(self.stop)

    def stop(self, timeout_s: float | None = None) -> None:
        """Stop after the step in progress and wait for it; requests in the house get EngineDeadError."""
        with self._wake:
            self._stopping = True
            self._wake.notify()
        if self._thread.is_alive():
            self._thread.join(timeout_s)

    # --- the loop's side ----------------------------------------------------------------------------

    def _open(self, add: _Add, prompt: str | None) -> _Stream:
        self._bind(asyncio.get_running_loop())
        if self._draining:
            raise ShuttingDownError("the engine is shutting down and takes no new requests")
        if self._dead is not None or not self._thread.is_alive():
            raise self._why_dead()
        self._core.check(add.token_ids, add.params, add.encoder_token_ids)
        if add.request_id in self._streams:
            raise InvalidRequestError(f"request_id {add.request_id!r} is in use", "request_id")
        self._core.check_room(add.params.n, self._num_pending())
        stream = _Stream(num_open=add.params.n)
        self._outputs.add(add.request_id, prompt, add.token_ids, add.params)
        if not self._send(add):
            self._outputs.discard(add.request_id)
            raise self._why_dead()
        self._streams[add.request_id] = stream
        self._idle.clear()
        return stream

    def _bind(self, loop: asyncio.AbstractEventLoop) -> None:
        """Serve this loop. Requests of one that was closed are aborted."""
        if self._loop is loop:
            return
        if self._loop is not None and self._streams and not self._loop.is_closed():
            raise RuntimeError("an AsyncEngine serves one event loop at a time")
        self._idle = asyncio.Event()
        with self._wake:
            self._loop, self._waking = loop, False
        for request_id, stream in self._streams.items():
            stream.news = asyncio.Event()  # nobody waits any more; the old one belongs to the old loop
            self._outputs.discard(request_id)
            self._send(_Abort(request_id))
        self._wake_loop()

    def _send(self, command: _Add | _Abort | _Call) -> bool:
        """Hand a command to the engine thread. False: it is dead or was told to stop."""
        with self._wake:
            if self._dead is not None or self._stopping:
                return False
            self._inbox.append(command)
            self._wake.notify()
        return True

    def _num_pending(self) -> int:
        """Sequences on their way to the engine thread."""
        with self._wake:
            return sum(command.params.n for command in self._inbox if isinstance(command, _Add))

    def _why_dead(self) -> EngineDeadError:
        return self._dead or EngineDeadError("the engine is not running")

    def _deliver(self) -> None:
        """Read the outbox (on the loop, at most once a step)."""
        with self._wake:
            news, self._outbox, self._waking = self._outbox, [], False
            dead = self._dead
        updates: list[RequestUpdate] = []
        for item in news:
            if isinstance(item, _Added):
                self._added(item)
            else:
                updates.append(item)
        for stopped in self._outputs.process(updates):
            self._send(_Abort(stopped.request_id, stopped.index))
        for update in updates:
            stream = self._streams.get(update.request_id)
            if stream is not None:
                stream.news.set()
                if update.finish_reason is not None:
                    stream.num_open -= 1
                    if stream.num_open == 0:
                        del self._streams[update.request_id]
        if dead is not None:
            for stream in self._streams.values():
                stream.error = dead
                stream.news.set()
            self._streams.clear()
        if not self._streams:
            self._idle.set()

    def _added(self, answer: _Added) -> None:
        if answer.error is None:
            self._outputs.set_seed(answer.request_id, answer.seed)
            return
        stream = self._streams.pop(answer.request_id, None)
        if stream is not None:
            stream.num_open, stream.error = 0, answer.error
            stream.news.set()

    async def _until_idle(self, timeout_s: float) -> bool:
        if self._streams:
            try:
                await asyncio.wait_for(self._idle.wait(), timeout_s)
            except TimeoutError:
                return False
        return True

    # --- the engine thread ----------------------------------------------------------------------------

    def _run(self) -> None:
        reason = EngineDeadError("the engine was stopped")
        try:
            while self._turn():
                pass
            self._core.close()
        except EngineDeadError as error:
            reason = error
        except BaseException as error:  # whatever it was, the callers must not wait for ever
            reason = EngineDeadError(f"the engine thread died: {type(error).__name__}: {error}")
            reason.__cause__ = error
        with self._wake:
            self._dead, self._busy = reason, False
            commands, self._inbox = self._inbox, []
        for command in commands:
            if isinstance(command, _Call):
                command.future.set_exception(reason)
        self._wake_loop()

    def _turn(self) -> bool:
        """Sleep until there is work, take the inbox, do one step. False: told to stop."""
        with self._wake:
            while not (self._inbox or self._stopping or self._core.can_step):
                self._busy = False
                self._wake.wait()
            if self._stopping:
                return False
            commands, self._inbox = self._inbox, []
            if not self._busy:
                self._busy, self._last_progress = True, self._clock()
        news: list[RequestUpdate | _Added] = []
        for command in commands:
            self._apply(command, news)
        if self._core.can_step:
            news += self._core.step()
        self._last_progress = self._clock()
        if news:
            with self._wake:
                self._outbox += news
            self._wake_loop()
        return True

    def _apply(self, command: _Add | _Abort | _Call, news: list[RequestUpdate | _Added]) -> None:
        if isinstance(command, _Abort):
            news += self._core.abort(command.request_id, command.index)
        elif isinstance(command, _Call):
            try:
                command.future.set_result(command.function())
            except Exception as error:
                command.future.set_exception(error)
        else:
            try:
                seed = self._core.add_request(
                    command.request_id,
                    command.token_ids,
                    command.params,
                    priority=command.priority,
                    cache_salt=command.cache_salt,
                    arrival_time=command.arrival_time,
                    encoder_token_ids=command.encoder_token_ids,
                )
            except Exception as error:  # the caller's, not ours
                news.append(_Added(command.request_id, 0, error))
            else:
                news.append(_Added(command.request_id, seed))

    def _wake_loop(self) -> None:
        """Ask the loop to read the outbox, unless it has been asked."""
        with self._wake:
            loop = self._loop
            if loop is None or self._waking or not (self._outbox or self._dead):
                return
            self._waking = True
        try:
            loop.call_soon_threadsafe(self._deliver)
        except RuntimeError:  # the loop is closed: nobody will read, the next one cleans up
            with self._wake:
                self._waking = False


def _raise_failure(output: RequestOutput) -> None:
    for completion in output.outputs:
        if completion.finish_reason == ERROR:
            raise RequestFailedError(str(completion.stop_reason))
