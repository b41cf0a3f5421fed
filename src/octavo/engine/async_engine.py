"""AsyncEngine: one engine thread, any number of asyncio callers."""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import replace
from typing import TypeVar

from octavo.engine.commands import Abort, Add, Added, CoreCall
from octavo.engine.core import EngineCore
from octavo.engine.request import EngineRequest, RequestUpdate
from octavo.engine.stats import EngineStats
from octavo.engine.token_source import Reader
from octavo.engine.watchdog import DEAD, EngineStalledError, Watchdog
from octavo.errors import EngineDeadError, EngineEndedError, InvalidRequestError, ShuttingDownError

T = TypeVar("T")

logger = logging.getLogger("octavo.engine")

ABORT_GRACE_S = 5.0
"""How long drain() waits without any progress, once it has aborted what was left, before it gives up."""


class AsyncEngine:
    """Serves asyncio callers from one thread that runs EngineCore: a TokenSource. Specification:

        event loop                                    engine thread
        submit() ----- inbox (requests, aborts) ---->  core.add / abort
                                                       core.step
        Reader.take() <-- outbox, one wake-up a step <--

    1.  The core belongs to the engine thread; readers belong to the event loop. They meet only in inbox
        and outbox, under one lock.
    2.  The thread sleeps while there is nothing to do; whatever enters the inbox wakes it. Before
        each step it takes the whole inbox, so an abort takes effect within one step.
    3.  The outbox wakes the loop at most once a step, and not again before the loop has read it.
    4.  A reader is told of a step at once, and merges what its caller has not fetched, so slow callers
        cost no queue. All queues are bounded by the requests in the engine, and these by
        max_waiting + max_num_seqs.
    5.  A reader that leaves aborts its request; one that raises leaves, and no other one notices.
        The id stays in use until the core has confirmed the end.
    6.  If the thread dies, or is given up because a step of it does not end (watch(), drain()), every
        reader fails with EngineDeadError, now and later.
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
        self, core: EngineCore, *, stall_s: float = 60.0, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._core = core
        self._stall_s = stall_s
        self._clock = clock
        self._thread = threading.Thread(target=self._run, name="octavo-engine", daemon=True)
        # Under this lock: inbox, outbox, _stopping, _dead, _failure, _waking, _loop.
        self._wake = threading.Condition()
        self._inbox: list[Add | Abort | CoreCall] = []
        self._outbox: list[RequestUpdate | Added] = []
        self._stopping = False
        self._dead: EngineEndedError | None = None
        self._failure: str | None = None
        self._waking = False
        self._loop: asyncio.AbstractEventLoop | None = None
        # The loop's own.
        self._readers: dict[str, Reader] = {}
        self._open: dict[str, int] = {}  # sequences whose end the core has not reported
        self._draining = False
        self._idle = asyncio.Event()
        # Written by the engine thread, read by `healthy`.
        self._busy = False
        self._last_progress = clock()
        self._moves = 0  # how often it has made progress
        self._watchdog = Watchdog(lambda: self._moves if self._busy else 0)

    # --- for callers, on the event loop -------------------------------------------------------------

    def start(self) -> None:
        """Start the engine thread. Once."""
        self._thread.start()

    def watch(self, stall_s: float) -> None:
        """Give the thread up once it has work and makes no progress for so long. Once."""
        text = f"a step made no progress for {stall_s:g} s"
        self._watchdog.start(stall_s, lambda: self._give_up(text))

    def submit(self, request: EngineRequest, reader: Reader) -> None:
        """Serve a request; on the event loop, where the reader is told of it.

        Raises:
            InvalidRequestError: see EngineCore.check; or the id is in use.
            OverloadedError: too many are waiting. ShuttingDownError: the engine is draining.
            EngineDeadError: the engine thread is not running (any more).
        """
        self._bind(asyncio.get_running_loop())
        if self._draining:
            raise ShuttingDownError("the engine is shutting down and takes no new requests")
        if self._dead is not None or not self._thread.is_alive():
            raise self._why_dead()
        self._core.check(request)
        request_id, count = request.request_id, request.num_sequences
        if request_id in self._open:
            raise InvalidRequestError(f"request_id {request_id!r} is in use", "request_id")
        self._core.check_room(count, self._num_pending())
        if not self._send(Add(request, self._clock())):
            raise self._why_dead()
        self._readers[request_id], self._open[request_id] = reader, count
        self._idle.clear()

    def leave(self, request_id: str, reader: Reader) -> None:
        """Say nothing more to the reader; what still runs of its request ends within a step."""
        if self._readers.get(request_id) is reader:
            del self._readers[request_id]
            if request_id in self._open:
                self._send(Abort(request_id))

    async def abort(self, request_id: str) -> None:
        """End a request within a step; its reader is told of an end with finish_reason "abort"."""
        if request_id in self._open:
            self._send(Abort(request_id))

    async def call(self, function: Callable[[EngineCore], T]) -> T:
        """What a function makes of the core, on the engine thread, between two steps.

        Raises:
            EngineDeadError: the engine thread is not running (any more). What the function raises, too.
        """
        future: Future[T] = Future()
        call = CoreCall(lambda: function(self._core), future)
        if not self._thread.is_alive() or not self._send(call):
            raise self._why_dead()
        return await asyncio.wrap_future(future)

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
        """Why the thread died or was given up, if it was; None also where it did as it was told."""
        return self._failure

    @property
    def stalled(self) -> bool:
        """The thread was given up: only the process's end may end it."""
        return isinstance(self._dead, EngineStalledError)

    async def drain(self, timeout_s: float) -> None:
        """Refuse new requests, let the others end for at most timeout_s, abort the rest, and stop; give the
        thread up if it then makes no progress for ABORT_GRACE_S."""
        self._draining = True
        if not await self._until_idle(timeout_s):
            for request_id in tuple(self._open):
                self._send(Abort(request_id))
            await self._until_idle(ABORT_GRACE_S)
        moves = -1
        while self._moves != moves and not self.stalled:  # it may be saving the prefix cache
            moves = self._moves
            await asyncio.to_thread(self.stop, ABORT_GRACE_S)
        if self._thread.is_alive() and not self.stalled:
            self._give_up(f"a step has not ended {ABORT_GRACE_S:g} s after it was told to")

    def stop(self, timeout_s: float | None = None) -> None:
        """Stop after the step in progress and wait for it, unless it was given up; requests in the engine
        get EngineDeadError."""
        with self._wake:
            self._stopping = True
            self._wake.notify()
        self._watchdog.stop()
        if self._thread.is_alive() and not self.stalled:
            self._thread.join(timeout_s)

    # --- the loop's side ----------------------------------------------------------------------------

    def _bind(self, loop: asyncio.AbstractEventLoop) -> None:
        """Serve this loop. Requests of one that was closed are aborted."""
        if self._loop is loop:
            return
        if self._loop is not None and self._open and not self._loop.is_closed():
            raise RuntimeError("an AsyncEngine serves one event loop at a time")
        self._idle = asyncio.Event()
        with self._wake:
            self._loop, self._waking = loop, False
        self._readers.clear()  # nobody waits any more
        for request_id in self._open:
            self._send(Abort(request_id))
        self._wake_loop()

    def _send(self, command: Add | Abort | CoreCall) -> bool:
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
            return sum(c.request.num_sequences for c in self._inbox if isinstance(c, Add))

    def _why_dead(self) -> EngineEndedError:
        return self._dead or EngineEndedError("the engine is not running")

    def _deliver(self) -> None:
        """Read the outbox (on the loop, at most once a step)."""
        with self._wake:
            news, self._outbox, self._waking = self._outbox, [], False
            dead = self._dead
        for item in news:
            if isinstance(item, Added):
                self._added(item)
                continue
            reader = self._readers.get(item.request_id)
            if reader is not None:
                try:
                    if reader.take(item):
                        self._send(Abort(item.request_id, item.index))
                except Exception as error:
                    self._failed(item.request_id, reader, error)
            if item.finish_reason is not None:
                self._ended(item.request_id)
        if dead is not None:
            readers, self._readers = self._readers, {}  # before any of them calls leave()
            self._open.clear()
            for request_id, reader in readers.items():
                _fail(request_id, reader, dead)
        if not self._open:
            self._idle.set()

    def _added(self, answer: Added) -> None:
        reader = self._readers.get(answer.request_id)
        if answer.error is not None:
            self._open.pop(answer.request_id, None)
            self._readers.pop(answer.request_id, None)
        if reader is None:
            return
        if answer.error is not None:
            _fail(answer.request_id, reader, answer.error)
            return
        try:
            reader.begin(answer.seed)
        except Exception as error:
            self._failed(answer.request_id, reader, error)

    def _failed(self, request_id: str, reader: Reader, error: Exception) -> None:
        """A reader has raised: its request ends, and it is told nothing but this."""
        self.leave(request_id, reader)
        _fail(request_id, reader, error)

    def _ended(self, request_id: str) -> None:
        """One of the request's sequences has."""
        left = self._open.get(request_id, 1) - 1
        if left:
            self._open[request_id] = left
        else:
            self._open.pop(request_id, None)
            self._readers.pop(request_id, None)

    async def _until_idle(self, timeout_s: float) -> bool:
        if self._open:
            try:
                await asyncio.wait_for(self._idle.wait(), timeout_s)
            except TimeoutError:
                return False
        return True

    def _give_up(self, why: str) -> None:
        """Of any other thread: what waits for the engine thread waits no more."""
        logger.error("%s: the engine is given up", why)
        self._die(EngineStalledError(), why)

    # --- the engine thread ----------------------------------------------------------------------------

    def _run(self) -> None:
        reason, failure = EngineEndedError("the engine was stopped"), None
        try:
            while self._turn():
                pass
            self._core.close(self._progress)
        except BaseException as error:  # whatever it was, the callers must not wait for ever
            known = isinstance(error, EngineDeadError)
            failure = str(error) if known else f"the engine thread died: {type(error).__name__}: {error}"
            reason = EngineEndedError(DEAD)
            reason.__cause__ = error
        self._die(reason, None if self._stopping else failure)

    def _die(self, reason: EngineEndedError, failure: str | None) -> None:
        """From now on whoever asks is told the reason. The first one counts."""
        with self._wake:
            if self._dead is None:
                self._dead, self._failure = reason, failure
            self._busy = False
            commands, self._inbox = self._inbox, []
        for command in commands:
            if isinstance(command, CoreCall):
                command.refuse(self._why_dead())
        self._wake_loop()

    def _progress(self) -> None:
        self._last_progress, self._moves = self._clock(), self._moves + 1

    def _turn(self) -> bool:
        """Sleep until there is work, take the inbox, do one step. False: told to stop."""
        with self._wake:
            while not (self._inbox or self._stopping or self._dead or self._core.can_step):
                self._busy = False
                self._wake.wait()
            if self._stopping or self._dead:
                return False
            commands, self._inbox = self._inbox, []
            if not self._busy:
                self._busy = True
                self._progress()
        news: list[RequestUpdate | Added] = []
        left = iter(commands)
        try:
            for command in left:
                self._apply(command, news)
        except BaseException:
            with self._wake:
                self._inbox[:0] = left  # calls behind the one that failed are answered by _run
            raise
        if self._core.can_step:  # one step; the inbox is looked at again before the next one
            news += self._core.step()
        self._progress()
        if news:
            with self._wake:
                self._outbox += news
            self._wake_loop()
        return True

    def _apply(self, command: Add | Abort | CoreCall, news: list[RequestUpdate | Added]) -> None:
        if isinstance(command, Abort):  # a caller has left
            news += self._core.abort(command.request_id, command.index)
        elif isinstance(command, CoreCall):  # AsyncEngine.call(): a function that must run in this thread
            command.answer()
        else:
            try:
                seed = self._core.add(command.request, command.arrival)
            except Exception as error:  # the caller's, not ours
                news.append(Added(command.request.request_id, 0, error))
            else:
                news.append(Added(command.request.request_id, seed))

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


def _fail(request_id: str, reader: Reader, error: Exception) -> None:
    """Tell a reader that nothing more will come; what it raises at that is logged, and is nobody else's."""
    try:
        reader.fail(error)
    except Exception:
        logger.exception("the reader of request %s failed when it was told of: %s", request_id, error)
