"""SIGTERM, SIGINT and SIGHUP: the event loop hears of them, and the process ends within a bounded time.

This file imports nothing of the server, so that it is in place before slow imports: a KeyboardInterrupt that
strikes inside an import can be swallowed there.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable, Generator

STALLED = 75
"""The exit status where a step did not end; sysexits.h calls it EX_TEMPFAIL: a restart may help."""
END_S = 15.0
"""Seconds in which the process must have ended after the time that running requests have."""
KILL_S = 3.0
"""Seconds in which the process must have ended after a second signal."""


class StopSignals:
    """The first signal sets stop (drain), the next one kill (end what still runs). SIGHUP is never the next
    one: a terminal that closes, or systemd, may send it beside another.

    Python runs a signal's handler in the main thread, and a loop hears of it between two callbacks; neither
    comes where a callback does not end. So the system writes each signal to a socket at once, and a thread
    reads it, tells the loop, and ends the process where it does not end by itself.

    Args:
        most_s: the process ends within so many seconds of the first signal, whatever hangs, and within
            KILL_S of a second one. None: it ends when it ends.
        leave: ends the process with a status.
    """

    def __init__(self, most_s: float | None, leave: Callable[[int], None]) -> None:
        self.stop, self.kill = asyncio.Event(), asyncio.Event()
        self._most_s, self._leave = most_s, leave
        self._lock = threading.Lock()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._count = 0

    def bind(self) -> None:
        """From now on the running loop hears of signals, and now of those that have come."""
        with self._lock:
            self._loop, early = asyncio.get_running_loop(), self._count
        for count in range(1, early + 1):
            self._handle(count)

    def _handle(self, count: int) -> None:
        (self.stop if count == 1 else self.kill).set()

    def listen(self, reader: socket.socket, names: list[signal.Signals]) -> None:
        """Hear signals until the socket is closed. (A thread of its own.)"""
        deadline, status = float("inf"), STALLED
        while True:
            left = deadline - time.monotonic()
            reader.settimeout(None if left == float("inf") else max(left, 1e-3))
            try:
                numbers = reader.recv(64)
            except TimeoutError:
                print(
                    "octavo: error: the server did not end in time and is cut off",
                    file=sys.stderr,
                    flush=True,
                )
                self._leave(status)
                return
            if not numbers:
                return
            for number in numbers:
                if number in names and (not self._count or number != signal.SIGHUP):
                    self._tell()
                    if self._most_s is not None:
                        first = self._count == 1
                        status = STALLED if first else 128 + number
                        deadline = min(deadline, time.monotonic() + (self._most_s if first else KILL_S))

    def _tell(self) -> None:
        with self._lock:
            self._count += 1
            loop = self._loop
        if loop is not None:
            with contextlib.suppress(RuntimeError):  # it is closed: the process is at its end
                loop.call_soon_threadsafe(self._handle, self._count)


_caught: list[signal.Signals] = []


def _in_a_child() -> None:
    """A forked process has the parent's socket: what it is sent must not reach the parent."""
    if _caught:
        signal.set_wakeup_fd(-1)
        for name in _caught:
            signal.signal(name, signal.SIG_DFL)


os.register_at_fork(after_in_child=_in_a_child)


@contextlib.contextmanager
def stop_signals(
    most_s: float | None = None, leave: Callable[[int], None] = os._exit
) -> Generator[StopSignals, None, None]:
    """Catch the signals in this block. Whoever enters it before there is a loop calls bind() later.

    Args:
        most_s, leave: see StopSignals.
    """
    caught = StopSignals(most_s, leave)
    with contextlib.suppress(RuntimeError):  # there is no loop yet
        caught.bind()
    names = [signal.SIGTERM, signal.SIGINT]
    if signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN:  # as nohup wants it
        names.append(signal.SIGHUP)
    reader, writer = socket.socketpair()
    writer.setblocking(False)
    thread = threading.Thread(target=caught.listen, args=(reader, names), name="octavo-signals", daemon=True)
    try:
        old = signal.set_wakeup_fd(writer.fileno(), warn_on_full_buffer=False)
    except ValueError:  # not the main thread: whoever runs us ends us
        reader.close()
        writer.close()
        yield caught
        return
    before = {name: signal.signal(name, _heard_by_the_thread) for name in names}
    _caught.extend(names)
    thread.start()
    try:
        yield caught
    finally:
        _caught.clear()
        signal.set_wakeup_fd(old)
        for name, handler in before.items():
            signal.signal(name, handler)
        writer.close()  # which ends the thread
        thread.join()
        reader.close()


def _heard_by_the_thread(number: int, frame: object) -> None:
    """Python wants a handler."""
