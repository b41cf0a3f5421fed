"""FairQueue: the requests of all clients between their arrival and the first step that computes them."""

from __future__ import annotations

import asyncio
import math
import time
from collections import Counter, deque
from collections.abc import Callable
from dataclasses import dataclass, field

from octavo.engine.request import EngineRequest
from octavo.errors import OverloadedError
from octavo.server.engine import Outputs, ServedEngine

WINDOW = 64
"""Requests that began last, of whose times the rate is measured."""
LONGEST_RETRY_S = 60


@dataclass(slots=True)
class FairQueue:
    """What waits, by who asks. Owned by the event loop's thread.

    1.  *Tokens.* The engine bounds the sequences that wait; here their prompts are, in tokens.
    2.  *Shares.* Where API keys tell who asks, an owner that has requests waiting may add as much as there is
        room left for others: one alone fills half of the queue, two a third each, and a newcomer finds room.
    3.  *Deadline.* What has not begun after timeout_s is refused (429); 0: it waits on.
    4.  *Retry-After* is what waits, over the rate at which requests have begun lately.
    """

    max_tokens: int
    timeout_s: float = 0.0
    clock: Callable[[], float] = time.monotonic
    sequences: Counter[str] = field(default_factory=Counter)
    tokens: Counter[str] = field(default_factory=Counter)
    _begun: deque[tuple[float, int]] = field(default_factory=lambda: deque(maxlen=WINDOW))

    async def begin(self, engine: ServedEngine, request: EngineRequest) -> Outputs:
        """A request's outputs, when the first step has computed something of it.

        Raises:
            OverloadedError: there is no room, or no step came in time; it says when to come again.
            What ServedEngine.outputs() does.
        """
        owner, count, size = request.owner, request.num_sequences, len(request.prompt_token_ids)
        self._check(owner, count, size, engine.max_waiting)
        self.sequences[owner] += count
        self.tokens[owner] += size
        try:
            stream = await engine.outputs(request)
            await self._first(stream)
        except OverloadedError as error:
            error.retry_after_s = max(error.retry_after_s, self.retry_after_s)
            raise
        finally:
            self._forget(owner, count, size)
        self._begun.append((self.clock(), count))
        return stream

    @property
    def retry_after_s(self) -> float:
        """Seconds until what waits now will have begun, at the rate of late; 1 where nothing is known."""
        if len(self._begun) < 2:
            return 1.0
        passed = self.clock() - self._begun[0][0]
        begun = sum(count for _, count in self._begun) - self._begun[0][1]
        seconds = math.ceil(sum(self.sequences.values()) * passed / max(begun, 1))
        return float(min(max(seconds, 1), LONGEST_RETRY_S))

    async def _first(self, stream: Outputs) -> None:
        try:
            async with asyncio.timeout(self.timeout_s or None) as limit:
                await stream.begun()
        except BaseException as error:
            await stream.aclose()
            if isinstance(error, TimeoutError) and limit.expired():
                raise OverloadedError(f"the request waited {self.timeout_s:g} s in vain; try later") from None
            raise

    def _check(self, owner: str, count: int, size: int, room: int) -> None:
        bounds = ("requests", self.sequences, count, room), ("tokens", self.tokens, size, self.max_tokens)
        for what, waiting, more, most in bounds:
            every, own = waiting.total(), waiting[owner]
            if what == "tokens" and every and every + more > most:
                raise OverloadedError(f"prompts of {every} tokens are waiting already", self.retry_after_s)
            if owner and own and own + more > most - every:
                raise OverloadedError(f"{own} {what} of this API key wait already", self.retry_after_s)

    def _forget(self, owner: str, count: int, size: int) -> None:
        for waiting, less in ((self.sequences, count), (self.tokens, size)):
            waiting[owner] -= less
            if not waiting[owner]:
                del waiting[owner]
        if not self.sequences:
            self._begun.clear()  # the rate of an idle server says nothing
