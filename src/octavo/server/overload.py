"""Too many requests: how long one may wait, and when a refused client should come again."""

from __future__ import annotations

import asyncio
import math
import time
from collections import deque
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field

from octavo.errors import OverloadedError
from octavo.server.engine import ServedOutputs

WINDOW = 64
"""Requests that began last, of whose times the rate is measured."""
LONGEST_RETRY_S = 60


@dataclass(slots=True)
class DrainRate:
    """How fast a queue drains.

    Attributes:
        begun: (second of the clock, sequences) of each request that has left the queue to be computed.
    """

    clock: Callable[[], float] = time.monotonic
    begun: deque[tuple[float, int]] = field(default_factory=lambda: deque(maxlen=WINDOW))

    def seconds(self, waiting: int) -> float:
        """Seconds until this many sequences will have begun, at the latest rate; 1 if no rate is known."""
        if len(self.begun) < 2:
            return 1.0
        passed = self.clock() - self.begun[0][0]
        begun = sum(count for _, count in self.begun) - self.begun[0][1]
        return float(min(max(math.ceil(waiting * passed / max(begun, 1)), 1), LONGEST_RETRY_S))


class WaitedError(OverloadedError):
    """A request has waited as long as requests may, and none of it was computed."""


async def begun_within(begin: Awaitable[ServedOutputs], seconds: float) -> ServedOutputs:
    """The outputs of a request that begins within so many seconds; compiling its grammar counts, too.

    Raises:
        WaitedError: it did not begin in time.
    """
    try:
        async with asyncio.timeout(seconds) as limit:
            return await begin
    except TimeoutError:
        if not limit.expired():
            raise
        raise WaitedError(f"the request waited {seconds:g} s in vain") from None
