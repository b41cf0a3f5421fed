"""CompilePool: a bounded queue before a few threads, the smallest piece of work first."""

from __future__ import annotations

import asyncio
import threading
import time
from bisect import insort
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass, field
from itertools import count
from typing import Any

from octavo.errors import InvalidRequestError, OverloadedError, ShuttingDownError

WORKERS = 2
MAX_PENDING = 64
MAX_ABANDONED = 2
"""Work that ran over its time may hold so many threads beside the workers; then nothing new is begun."""
TIMEOUT_S = 10.0
"""Of one piece of work, from its beginning: what the limits of size let in takes about a second."""
QUEUE_S = 30.0
_IDLE, _BUSY = "compile", "compiling"
_CLOSED = "the server is shutting down"


@dataclass(order=True, slots=True)
class _Job:
    size: int
    number: int
    make: Callable[[], Any] = field(compare=False)
    result: Future[Any] = field(compare=False, default_factory=Future)
    began: float | None = field(compare=False, default=None)
    abandoned: bool = field(compare=False, default=False)


class CompilePool:
    """Runs work beside an event loop. Thread-safe.

    What is small goes first, and where the queue is full the largest is refused, be it the newcomer or one
    that waits: who sends many large pieces delays the large ones of others, and never the small ones.
    Threads are daemons that start with the first work: what cannot be told to stop outlives nothing.

    Args:
        what: what is made, in messages: "grammars".
        param: the request's field that it comes from.
    """

    def __init__(self, what: str, param: str) -> None:
        self._what, self._param = what, param
        self._numbers = count()
        # Under this lock: all that follows.
        self._change = threading.Condition()
        self._queue: list[_Job] = []  # smallest first
        self._running: list[_Job] = []  # without the abandoned
        self._workers = 0
        self._free = 0
        self._abandoned = 0
        self._closed = False

    async def run(self, size: int, make: Callable[[], Any]) -> Any:
        """What make() gives, called on a thread.

        Args:
            size: of the work, in any unit.

        Raises:
            OverloadedError: the queue is full of smaller work, or it took too long to come to the front.
            ShuttingDownError: the pool was closed.
            InvalidRequestError: the work took longer than TIMEOUT_S.
        """
        job = self._submit(size, make)
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
                    raise InvalidRequestError(
                        f"{self._param} took longer than {TIMEOUT_S:g} s to compile: simplify it", self._param
                    )
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
            if job in self._queue:
                self._queue.remove(job)
            if job in self._running and job.began is not None:
                left = max(0.0, job.began + TIMEOUT_S - time.monotonic())
                asyncio.get_running_loop().call_later(left, self._abandon, job)

    def _submit(self, size: int, make: Callable[[], Any]) -> _Job:
        job = _Job(size, next(self._numbers), make)
        with self._change:
            if self._closed:
                raise ShuttingDownError(_CLOSED)
            if self._abandoned >= MAX_ABANDONED:
                raise self._overloaded()
            insort(self._queue, job)
            if len(self._queue) > MAX_PENDING:
                _refuse(self._queue.pop(), self._overloaded())
            if self._workers < WORKERS and self._free < len(self._queue):
                self._start_worker()
            self._change.notify()
        return job

    def _overloaded(self) -> OverloadedError:
        return OverloadedError(f"too many {self._what} are being compiled; try again later")

    def _abandon(self, job: _Job) -> None:
        """Nobody waits for it any more; another thread takes over what its own would have done."""
        with self._change:
            if job not in self._running:
                return
            self._running.remove(job)
            job.abandoned = True
            self._abandoned += 1
            self._workers -= 1
            if self._abandoned <= MAX_ABANDONED:
                self._start_worker()

    def _start_worker(self) -> None:
        self._workers += 1
        threading.Thread(target=self._work, name=_IDLE, daemon=True).start()

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
                if job.abandoned:
                    self._abandoned -= 1
                    if self._workers >= WORKERS:
                        return
                    self._workers += 1
                elif error is None:
                    self._running.remove(job)
                    job.result.set_result(made)
                else:
                    self._running.remove(job)
                    job.result.set_exception(error)
            del job, made, error  # nothing stays alive while the next is waited for

    def _next(self) -> _Job | None:
        """The smallest that waits; None: the pool is closed."""
        with self._change:
            while not self._closed:
                while self._queue:
                    job = self._queue.pop(0)
                    if job.result.set_running_or_notify_cancel():
                        job.began = time.monotonic()
                        self._running.append(job)
                        return job
                self._free += 1
                self._change.wait()
                self._free -= 1
            self._workers -= 1
            return None


def _refuse(job: _Job, error: Exception) -> None:
    if job.result.set_running_or_notify_cancel():
        job.result.set_exception(error)


def is_compiling() -> bool:
    """Whether a thread of any pool is at work."""
    return any(thread.name == _BUSY for thread in threading.enumerate())
