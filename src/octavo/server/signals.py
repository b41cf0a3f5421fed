"""SIGTERM and SIGINT as events of the loop. Apart from the rest, to be in place before slow imports:

a KeyboardInterrupt that strikes inside an import can be swallowed there.
"""

from __future__ import annotations

import asyncio
import contextlib
import signal
from collections.abc import Generator
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class StopSignals:
    """The first signal sets stop (drain), the next one kill (end what still runs)."""

    stop: asyncio.Event = field(default_factory=asyncio.Event)
    kill: asyncio.Event = field(default_factory=asyncio.Event)

    def handle(self) -> None:
        """A signal has come."""
        (self.kill if self.stop.is_set() else self.stop).set()


@contextlib.contextmanager
def stop_signals() -> Generator[StopSignals, None, None]:
    """Catch the signals while the running loop is in this block."""
    loop, caught = asyncio.get_running_loop(), StopSignals()
    names: tuple[signal.Signals, ...] = (signal.SIGTERM, signal.SIGINT)
    try:
        for name in names:
            loop.add_signal_handler(name, caught.handle)
    except (NotImplementedError, RuntimeError, ValueError):
        names = ()  # not the main thread, or no Unix: whoever runs us ends us
    try:
        yield caught
    finally:
        for name in names:
            loop.remove_signal_handler(name)
