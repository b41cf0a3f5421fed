"""FairQueue: the requests of all clients between their arrival and the first step that computes them."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

from octavo.engine.request import EngineRequest
from octavo.errors import InvalidRequestError, OverloadedError
from octavo.server.engine import ServedEngine, ServedOutputs
from octavo.server.overload import DrainRate, begun_within


@dataclass(slots=True)
class FairQueue:
    """The requests that wait, counted by owner (API key). Only the event loop's thread uses it.

    1.  *Tokens.* The engine bounds how many sequences wait; this queue bounds the tokens of their prompts.
    2.  *Shares.* Where API keys tell who asks, an owner that has requests waiting may add as much as there is
        room left for others: one alone fills half of the queue, two a third each, and a newcomer finds room.
    3.  *Deadline.* A request that has not begun after timeout_s, grammar and all, is refused (429); 0: none.
    4.  *Retry-After* is the number of waiting sequences over the rate at which requests have begun lately.
    """

    max_tokens: int
    timeout_s: float = 0.0
    max_input_tokens: int | None = None
    sequences: Counter[str] = field(default_factory=Counter)
    tokens: Counter[str] = field(default_factory=Counter)
    rate: DrainRate = field(default_factory=DrainRate)

    async def begin(self, engine: ServedEngine, request: EngineRequest) -> ServedOutputs:
        """A request's outputs, when the first step has computed something of it.

        Raises:
            OverloadedError: there is no room, or no step came in time; it says when to come again.
            InvalidRequestError: the prompt is above max_input_tokens. What ServedEngine.outputs() does.
        """
        owner, count, size = request.owner, request.num_sequences, len(request.prompt_token_ids)
        if (read := len(request.encoder_token_ids) or size) > (most := self.max_input_tokens or read):
            raise InvalidRequestError(f"prompt has {read} tokens; this server takes at most {most}", "prompt")
        self._check(owner, count, size, engine.max_waiting)
        self.sequences[owner] += count
        self.tokens[owner] += size
        try:
            begin = _begun(engine, request)
            stream = await (begun_within(begin, self.timeout_s) if self.timeout_s else begin)
        except OverloadedError as error:
            error.retry_after_s = max(error.retry_after_s, self.retry_after_s)
            raise
        finally:
            self._forget(owner, count, size)
        self.rate.begun.append((self.rate.clock(), count))
        return stream

    @property
    def retry_after_s(self) -> float:
        """Seconds until what waits now will have begun."""
        return self.rate.seconds(self.sequences.total())

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
            self.rate.begun.clear()  # the rate of an idle server says nothing


async def _begun(engine: ServedEngine, request: EngineRequest) -> ServedOutputs:
    stream = await engine.outputs(request)
    try:
        await stream.begun()
    except BaseException:
        await stream.aclose()
        raise
    return stream
