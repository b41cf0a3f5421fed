"""Between the engine and who reads of it: tokens cross this seam, and text does not."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

from octavo.engine.request import EngineRequest, RequestUpdate
from octavo.params import SamplingParams


class Detokenizer(Protocol):
    """Token ids to text while they arrive."""

    def push(self, token_id: int) -> str:
        """The text that this token completes."""
        ...

    def flush(self) -> str:
        """What is still open at the end."""
        ...


class StopMatcher(Protocol):
    """Finds stop strings in a stream of text."""

    def feed(self, delta: str, /) -> tuple[str, str | None]:
        """(text that is safe to emit, the stop string found or None)."""
        ...

    def flush(self) -> str:
        """The text ended: what was held back."""
        ...


DetokenizerFactory = Callable[[Sequence[int], SamplingParams], Detokenizer]
"""(prompt token ids, params) -> a detokenizer for one completion."""
StopMatcherFactory = Callable[[SamplingParams], StopMatcher]
"""params -> a matcher for one completion. Those of equal stop strings share what these cost."""
TokenDecoder = Callable[[int], str | None]


class Reader(Protocol):
    """Who reads what a request brings. A TokenSource calls it, on the event loop, in the order of events."""

    def begin(self, seed: int) -> None:
        """The request is queued; this is the seed that it uses."""
        ...

    def take(self, update: RequestUpdate) -> bool:
        """News of one completion. True: the reader ends it here, and the source must abort it."""
        ...

    def fail(self, error: Exception) -> None:
        """There will be no more news, for this reason."""
        ...


class TokenSource(Protocol):
    """Requests in, tokens out: AsyncEngine, or whoever stands before several of them.

    What a source has said of a request is enough to go on with it elsewhere: EngineRequest.generated, with
    the seed that was told.
    """

    def submit(self, request: EngineRequest, reader: Reader) -> None:
        """Serve a request. Raises at once what AsyncEngine.submit does."""
        ...

    def leave(self, request_id: str, reader: Reader) -> None:
        """The reader is told nothing more; what still runs of the request ends within a step."""
        ...
