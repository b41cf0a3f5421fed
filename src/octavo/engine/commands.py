"""What the event loop and the engine thread tell each other: commands of the inbox, and the answer to one."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any

from octavo.engine.request import EngineRequest


@dataclass(frozen=True, slots=True)
class Add:
    """Serve a request. arrival: seconds of the engine's clock."""

    request: EngineRequest
    arrival: float


@dataclass(frozen=True, slots=True)
class Abort:
    """End a request, or one of its n completions."""

    request_id: str
    index: int | None = None


@dataclass(frozen=True, slots=True)
class CoreCall:
    """Call a function between two steps, and hand its result to whoever waits for the future."""

    function: Callable[[], Any]
    future: Future[Any]

    def answer(self) -> None:
        """Call the function, unless its caller has been cancelled meanwhile."""
        if not self.future.set_running_or_notify_cancel():
            return
        try:
            result = self.function()
        except BaseException as error:  # a panic of native code is no Exception
            self.future.set_exception(error)
        else:
            self.future.set_result(result)

    def refuse(self, reason: Exception) -> None:
        """Have its caller, unless cancelled, raise this."""
        if self.future.set_running_or_notify_cancel():
            self.future.set_exception(reason)


@dataclass(frozen=True, slots=True)
class Added:
    """The core's answer to Add: the seed that the request uses, or why it was refused."""

    request_id: str
    seed: int
    error: Exception | None = None
