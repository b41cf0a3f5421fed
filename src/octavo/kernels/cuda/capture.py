"""Captures: recording CUDA graphs while steps go on.

A capture launches nothing, but the thread that makes it may call nothing that is unsafe meanwhile, so
it has a thread and a stream of its own, and is captured in mode "thread_local": the engine's thread and
its stream know nothing of it. Before, the same work runs once on that stream, over arrays of padding, so
that kernels are loaded and libraries have their handles; it stores nothing and reads no page. What a
graph holds of memory comes from one pool that all graphs share: they are replayed one after another.
"""

from __future__ import annotations

import atexit
import queue
import threading
import time
from collections.abc import Callable
from typing import Any, Protocol

import torch

from octavo.kernels.cuda.errors import fatal


class Record(Protocol):
    """Runs `run` inside a capture, after `warm` outside of it: (graph, what run returned)."""

    def __call__(
        self, run: Callable[[], torch.Tensor], warm: Callable[[], object]
    ) -> tuple[Any, torch.Tensor]: ...


class GraphRecorder:
    """Records on a stream of its own, and warms up on another: what libraries keep for a stream (cuBLAS its
    workspace) is then the graphs' alone, which the engine may be replaying. Calls come from one thread."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._stream: Any = None
        self._warm: Any = None
        self._pool: Any = None
        self._first: Any = None  # a graph of nothing: the pool lives as long as any graph of it

    def __call__(
        self, run: Callable[[], torch.Tensor], warm: Callable[[], object]
    ) -> tuple[Any, torch.Tensor]:
        torch.cuda.set_device(self._device)
        if self._pool is None:
            make: Any = torch.cuda.Stream  # torch has no types for it
            self._stream, self._warm = (make(self._device) for _ in range(2))
            self._pool = torch.cuda.graph_pool_handle()
            self._first = self._graph(lambda: torch.zeros(1, device=self._device))
        with torch.cuda.stream(self._warm):
            warm()
            self._warm.synchronize()
        return self._graph(run)

    def _graph(self, run: Callable[[], torch.Tensor]) -> tuple[Any, torch.Tensor]:
        with torch.cuda.stream(self._stream):
            graph = torch.cuda.CUDAGraph()
            graph.capture_begin(pool=self._pool, capture_error_mode="thread_local")
            try:
                result = run()
            finally:
                graph.capture_end()
        return graph, result


class Captures:
    """Jobs of recording, one after another: on a thread of its own, or at once (tests).

    A capture that fails is noted in `failed` and not tried again: its steps go on eagerly. One that
    fails because the device is gone says nothing here; the next step will.

    Attributes:
        seconds: what each capture took, by its name.
        failed: why there is none, by its name.
        tell: called with (name, seconds) as each one ends or fails, on the thread that recorded.
    """

    def __init__(self, record: Record, background: bool = True) -> None:
        self._record, self._background = record, background
        self._jobs: queue.SimpleQueue[Callable[[], None]] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None
        self._open = 0
        self._closed = False
        self._idle = threading.Condition()
        self.seconds: dict[str, float] = {}
        self.failed: dict[str, str] = {}
        self.tell: Callable[[str, float], None] = lambda name, seconds: None

    def want(
        self,
        name: str,
        run: Callable[[], torch.Tensor],
        warm: Callable[[], object],
        take: Callable[[Any, torch.Tensor], None],
    ) -> None:
        """Record run, some time; take gets the graph and its result, on the thread that recorded."""

        def job() -> None:
            begin = time.perf_counter()
            try:
                take(*self._record(run, warm))
            except Exception as error:  # whatever it was, steps without a graph are only slower
                if not fatal(error):
                    self.failed[name] = f"{type(error).__name__}: {error}".splitlines()[0]
                    self.tell(f"no capture {name} ({self.failed[name]})", time.perf_counter() - begin)
            else:
                self.seconds[name] = time.perf_counter() - begin
                self.tell(f"capture {name}", self.seconds[name])

        if not self._background:
            job()
            return
        with self._idle:
            self._open += 1
        self._jobs.put(job)
        if self._thread is None:
            self._thread = threading.Thread(target=self._work, name="octavo-captures", daemon=True)
            self._thread.start()
            atexit.register(self.close)

    def close(self) -> None:
        """End the thread, after the capture it is at: one that the interpreter's end cuts off aborts it."""
        self._closed = True
        self._jobs.put(lambda: None)
        if self._thread is not None:
            self._thread.join(30)

    def _work(self) -> None:
        while not self._closed:
            self._jobs.get()()
            with self._idle:
                self._open -= 1
                self._idle.notify_all()

    def wait(self, timeout_s: float | None = None) -> bool:
        """Wait until nothing is left to record (benchmarks, tests). False: it took too long."""
        with self._idle:
            return self._idle.wait_for(lambda: self._open == 0, timeout_s)
