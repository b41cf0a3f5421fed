"""Watchdog: notices that a thread has stopped moving."""

from __future__ import annotations

import threading
from collections.abc import Callable

from octavo.errors import EngineEndedError

DEAD = "the engine has failed and serves no more requests"
"""What clients hear. Why it failed may name paths and types, and is for who runs it."""
LOOK_S = 0.5
"""How often it looks."""


class EngineStalledError(EngineEndedError):
    """The engine thread was given up, because a step of it does not end."""

    def __init__(self) -> None:
        super().__init__("the engine has made no progress for too long and is given up")


class Watchdog:
    """Looks whether something moves, and calls once when it has not for a while.

    It counts its own looks and asks no clock: where the machine slept or the process was stopped for an hour,
    nobody has looked, so nothing has stalled.

    Args:
        moves: a number that changes with each move; 0: there is nothing to do.
    """

    def __init__(self, moves: Callable[[], int]) -> None:
        self._moves = moves
        self._seen = 0
        self._stopped = threading.Event()

    def start(self, stall_s: float, stalled: Callable[[], None]) -> None:
        """Begin to look, on a thread of its own, which calls stalled() after stall_s without a move."""

        def watch() -> None:
            still, most = 0, max(1, round(stall_s / LOOK_S))
            while not self._stopped.wait(LOOK_S):
                still = still + 1 if self.is_still() else 0
                if still >= most:
                    stalled()
                    return

        threading.Thread(target=watch, name="octavo-watchdog", daemon=True).start()

    def is_still(self) -> bool:
        """Whether there is something to do, and nothing has moved since the last call."""
        seen, self._seen = self._seen, self._moves()
        return self._seen == seen != 0

    def stop(self) -> None:
        """Look no more."""
        self._stopped.set()
