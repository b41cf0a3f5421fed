"""CompilePool: a few threads that compile grammars, and a bounded queue in which small work goes first."""

from __future__ import annotations

import asyncio
import math
import threading
import time
from bisect import insort
from collections import OrderedDict
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass, field, replace
from itertools import count
from typing import Any

from octavo.errors import InvalidRequestError, OverloadedError, ShuttingDownError

WORKERS = 2
MAX_PENDING = 64
MAX_ABANDONED = 2
"""Threads that work beyond its time may hold beside the workers; with more the pool begins nothing new."""
TIMEOUT_S = 10.0
"""Seconds that one grammar may take: the largest that the limits of size let in takes about one."""
QUEUE_S = 30.0
FORGET_S = 30.0
"""Seconds after which the time that an owner's work has taken counts half."""
MAX_OWNERS = 1_000
_IDLE, _BUSY = "compile", "compiling"
_CLOSED = "the server is shutting down"


class SlowError(Exception):
    """The work is more than a quick attempt may take."""


@dataclass(slots=True)
class GrammarStats:
    """What a pool has done since its start, and does now.

    Attributes:
        available: False: no process for trials can be started, so every new grammar is refused.
        done: grammars compiled. failed: grammars with an error of their sender's.
        killed: grammars given up because they took too long. refused: grammars never begun.
        waiting, running: grammars, now. abandoned: threads that grammars given up still hold.
    """

    available: bool = True
    done: int = 0
    failed: int = 0
    killed: int = 0
    refused: int = 0
    waiting: int = 0
    running: int = 0
    abandoned: int = 0


@dataclass(order=True, slots=True)
class _Job:
    slow: bool
    debt: int  # quarters of a second that its owner's work took lately
    size: int
    number: int
    owner: str = field(compare=False)
    make: Callable[[], Any] = field(compare=False)
    patient: Callable[[], Any] | None = field(compare=False, default=None)
    result: Future[Any] = field(compare=False, default_factory=Future)
    began: float | None = field(compare=False, default=None)
    abandoned: bool = field(compare=False, default=False)


class CompilePool:
    """Compiles grammars on threads beside the event loop. Thread-safe.

    A ThreadPoolExecutor would do none of this: it has one queue in order of arrival, waits for its threads at
    the process's end, and cannot leave a thread behind that does not come back.

    1.  The smallest work goes first. While the queue is full the pool refuses the largest, whether it waits
        or has just come. So a client that sends many large grammars delays large ones of others alone.
    2.  Before size, the pool counts what an owner's work has taken lately.
    3.  Work that is known to be slow never gets the last free thread.
    4.  Work beyond its time is abandoned with its thread. Threads are daemons, so that none outlives the
        process.

    Args:
        what: what is made, in messages: "grammars".
        param: the request's field that it comes from.
        workers: threads; WORKERS where it is None.
    """

    def __init__(self, what: str, param: str, workers: int | None = None) -> None:
        self._what, self._param = what, param
        self._most = WORKERS if workers is None else workers
        self._numbers = count()
        # Under this lock: all that follows.
        self._change = threading.Condition()
        self._queue: list[_Job] = []  # smallest first
        self._running: list[_Job] = []  # without the abandoned
        self._workers = 0
        self._free = 0
        self._abandoned = 0
        self._closed = False
        self._spent: OrderedDict[str, tuple[float, float]] = OrderedDict()  # owner -> (seconds, when)
        self._stats = GrammarStats()

    def stats(self) -> GrammarStats:
        """A copy of the counts, and the state of now."""
        with self._change:
            return replace(
                self._stats,
                waiting=len(self._queue),
                running=len(self._running),
                abandoned=self._abandoned,
            )

    async def run(
        self,
        size: int,
        make: Callable[[], Any],
        patient: Callable[[], Any] | None = None,
        owner: str = "",
    ) -> Any:
        """What make() gives, called on a thread.

        Args:
            size: of the work, in any unit.
            patient: called instead, behind all quick work, where make() raises SlowError.
            owner: whose work it is: work of others who asked for less goes first.

        Raises:
            OverloadedError: the queue is full of smaller work, or it took too long to come to the front.
            ShuttingDownError: the pool was closed.
            InvalidRequestError: the work took longer than TIMEOUT_S.
        """
        job = self._submit(size, make, patient, owner)
        done = asyncio.wrap_future(job.result)
        submitted = time.monotonic()
        try:
            while not done.done():
                began = job.began
                end = submitted + QUEUE_S if began is None else began + TIMEOUT_S
                left = end - time.monotonic()
                if left <= 0 and began is None:
                    raise self._overloaded()
                if left <= 0:
                    self._abandon(job)
                    raise self._too_slow()
                await asyncio.wait({done}, timeout=min(left, TIMEOUT_S))
            return done.result()
        finally:
            self._leave(job, done)

    def close(self) -> None:
        """Refuse what is new and end all that waits or runs with ShuttingDownError; idle threads end."""
        with self._change:
            self._closed = True
            for job in self._queue:
                _refuse(job, ShuttingDownError(_CLOSED))
            for job in self._running:
                job.abandoned = True
                job.result.set_exception(ShuttingDownError(_CLOSED))
            self._queue, self._running = [], []
            self._change.notify_all()

    def _leave(self, job: _Job, done: asyncio.Future[Any]) -> None:
        """Nobody waits for it any more: what has not begun never does, what runs may do so for its time."""
        if not done.cancel() and not done.cancelled():
            done.exception()  # looked at
        with self._change:
            job.patient = None
            if job in self._queue:
                self._queue.remove(job)
            if job in self._running and job.began is not None:
                left = max(0.0, job.began + TIMEOUT_S - time.monotonic())
                asyncio.get_running_loop().call_later(left, self._abandon, job)

    def _submit(
        self, size: int, make: Callable[[], Any], patient: Callable[[], Any] | None, owner: str
    ) -> _Job:
        with self._change:
            if self._closed:
                raise ShuttingDownError(_CLOSED)
            if self._abandoned >= MAX_ABANDONED:
                self._stats.refused += 1
                raise self._overloaded()
            debt = int(4 * self._debt(owner))
            job = _Job(False, debt, size, next(self._numbers), owner, make, patient)
            insort(self._queue, job)
            if len(self._queue) > MAX_PENDING:
                self._stats.refused += 1
                _refuse(self._queue.pop(), self._overloaded())
            if self._workers < self._most and self._free < len(self._queue):
                self._start_worker()
            self._change.notify()
        return job

    def _overloaded(self) -> OverloadedError:
        return OverloadedError(f"too many {self._what} are being compiled; try again later")

    def _too_slow(self) -> InvalidRequestError:
        return InvalidRequestError(
            f"{self._param} takes more than {TIMEOUT_S:g} s or too much memory to compile: simplify it",
            self._param,
        )

    def _abandon(self, job: _Job) -> None:
        """Nobody waits for it any more; another thread takes over what its own would have done."""
        with self._change:
            if job not in self._running:
                return
            self._running.remove(job)
            job.abandoned = True
            self._abandoned += 1
            self._stats.killed += 1
            self._workers -= 1
            if self._abandoned <= MAX_ABANDONED:
                self._start_worker()

    def _start_worker(self) -> None:
        self._workers += 1
        threading.Thread(target=self._work, name=_IDLE, daemon=True).start()

    def _debt(self, owner: str) -> float:
        """Seconds that the owner's work took lately."""
        seconds, when = self._spent.get(owner, (0.0, 0.0))
        return seconds * math.exp2((when - time.monotonic()) / FORGET_S)

    def _charge(self, job: _Job) -> None:
        began, now = job.began, time.monotonic()
        self._spent[job.owner] = (self._debt(job.owner) + now - (now if began is None else began), now)
        self._spent.move_to_end(job.owner)
        if len(self._spent) > MAX_OWNERS:
            self._spent.popitem(last=False)

    def _work(self) -> None:
        while (job := self._next()) is not None:
            threading.current_thread().name = _BUSY
            made: Any = None
            error: BaseException | None = None
            try:
                made = job.make()
            except BaseException as problem:
                error = problem
            threading.current_thread().name = _IDLE
            with self._change:
                self._charge(job)
                if job.abandoned:
                    self._abandoned -= 1
                    if self._workers >= self._most:
                        return
                    self._workers += 1
                else:
                    self._running.remove(job)
                    self._end(job, made, error)
                self._change.notify()  # slow work may have waited for this thread to be free of it
            del job, made, error  # nothing stays alive while the next is waited for

    def _end(self, job: _Job, made: Any, error: BaseException | None) -> None:
        """Tell who waits, or let the work begin again behind what is quick."""
        if isinstance(error, SlowError) and job.patient is not None:
            job.slow, job.debt = True, int(4 * self._debt(job.owner))
            job.make, job.patient, job.began = job.patient, None, None
            insort(self._queue, job)
        elif error is None:
            self._stats.done += 1
            job.result.set_result(made)
        elif isinstance(error, SlowError):
            self._stats.killed += 1
            job.result.set_exception(self._too_slow())
        else:
            self._stats.failed += 1
            job.result.set_exception(error)

    def _next(self) -> _Job | None:
        """The first that may run; None: the pool is closed."""
        with self._change:
            while not self._closed:
                while (job := self._first()) is not None:
                    self._queue.remove(job)
                    # A job that begins again is running for whoever waits since it began first.
                    if job.result.running() or job.result.set_running_or_notify_cancel():
                        job.began = time.monotonic()
                        self._running.append(job)
                        return job
                self._free += 1
                self._change.wait()
                self._free -= 1
            self._workers -= 1
            return None

    def _first(self) -> _Job | None:
        """The first in the queue, slow work only where a thread is left for what is quick."""
        job = self._queue[0] if self._queue else None
        if job is None or not job.slow or self._most == 1:
            return job
        return None if sum(each.slow for each in self._running) >= self._most - 1 else job


def _refuse(job: _Job, error: Exception) -> None:
    if job.result.running() or job.result.set_running_or_notify_cancel():
        job.result.set_exception(error)


def is_compiling() -> bool:
    """Whether a thread of any pool is at work."""
    return any(thread.name == _BUSY for thread in threading.enumerate())
