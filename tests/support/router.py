"""A router over several token sources, which moves each answer on to the next of them after some tokens."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from octavo.engine.request import EngineRequest, RequestUpdate
from octavo.engine.token_source import Reader, TokenSource
from octavo.params import SampledToken


class Router:
    """A TokenSource that stands where one engine stands.

    Args:
        draw_cut: how many tokens the next engine may say before the one after it goes on.
        seed: of requests that bring none.

    Attributes:
        moved: how often an answer was cut and gone on with.
    """

    def __init__(self, sources: Sequence[TokenSource], draw_cut: Callable[[], int], seed: int = 5) -> None:
        self.sources, self.draw_cut, self.seed = sources, draw_cut, seed
        self.moved = 0
        self._relays: dict[str, list[_Relay]] = {}

    def submit(self, request: EngineRequest, reader: Reader) -> None:
        if request.params.seed is None:
            request = replace(request, params=request.params.replace(seed=self.seed))
        relays = [_Relay(self, replace(request, index=index), reader) for index in request.indexes]
        self._relays[request.request_id] = relays
        for relay in relays:
            relay.go_on()

    def leave(self, request_id: str, reader: Reader) -> None:
        for relay in self._relays.pop(request_id, ()):
            relay.leave()


class _Relay:
    """One completion: a Reader of whichever engine says it, and what has been said of it."""

    def __init__(self, router: Router, request: EngineRequest, reader: Reader) -> None:
        self._router, self._request, self._reader = router, request, reader
        self._tokens: list[SampledToken] = list(request.generated)
        self._place, self._until, self._name = 0, 0, ""

    def go_on(self) -> None:
        request, tokens = self._request, tuple(self._tokens)
        self._name = f"{request.request_id}/{request.index}/{self._place}"
        self._until = len(tokens) + self._router.draw_cut()
        self._source.submit(replace(request, request_id=self._name, generated=tokens), self)

    @property
    def _source(self) -> TokenSource:
        return self._router.sources[self._place % len(self._router.sources)]

    def leave(self) -> None:
        self._source.leave(self._name, self)

    def begin(self, seed: int) -> None:
        if self._place == 0:
            self._reader.begin(seed)

    def take(self, update: RequestUpdate) -> bool:
        said = list(update.tokens[: self._until - len(self._tokens)])
        self._tokens += said
        cut = len(said) < len(update.tokens) or (
            len(self._tokens) >= self._until and update.finish_reason is None
        )
        reason = None if cut else update.finish_reason
        forward = replace(
            update, request_id=self._request.request_id, tokens=said, finish_reason=reason, stop_reason=None
        )
        if not cut:
            forward.stop_reason = update.stop_reason
        if self._reader.take(forward):
            return True
        if cut:
            self.leave()
            self._place += 1
            self._router.moved += 1
            self.go_on()
        return False

    def fail(self, error: Exception) -> None:
        self._reader.fail(error)
