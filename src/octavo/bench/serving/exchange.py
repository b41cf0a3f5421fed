"""What a load asks, and what came of it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

Prompt = str | Sequence[int] | Sequence[Mapping[str, Any]]
"""A text, token ids, or the messages of a chat."""


@dataclass(frozen=True, slots=True)
class LoadRequest:
    """One request to send.

    Attributes:
        output_tokens: to ask for at most.
        arrival_s: when it came in the trace that it is from, in seconds from that one's beginning; None: it
            is from no trace.
    """

    prompt: Prompt
    output_tokens: int
    arrival_s: float | None = None


@dataclass(frozen=True, slots=True)
class Asked:
    """What is the same for all requests of a load.

    Attributes:
        model: the name that requests have.
        extra: more fields of every body.
    """

    model: str
    ignore_eos: bool = False
    sampling: Mapping[str, float] = field(default_factory=dict)
    extra: Mapping[str, Any] = field(default_factory=dict)


@dataclass(slots=True)
class Reply:
    """One request's answer. Times are seconds from the load's beginning; None: it did not come to that.

    Attributes:
        due_s: when it should have been sent; sent_s: when it was.
        arrivals: when each piece of text came.
        tokens: of the answer, as the server counts them; None: it does not say.
        prompt_tokens: the same of the prompt. cached_tokens: of these, what came from the server's cache.
        end_s: when the answer was complete.
        error: why it failed.
    """

    due_s: float
    sent_s: float | None = None
    arrivals: list[float] = field(default_factory=list)
    tokens: int | None = None
    prompt_tokens: int | None = None
    cached_tokens: int | None = None
    end_s: float | None = None
    error: str | None = None

    @property
    def is_complete(self) -> bool:
        return self.end_s is not None and self.error is None

    @property
    def output_tokens(self) -> int:
        """As the server counts them, or else the pieces of text that came."""
        return len(self.arrivals) if self.tokens is None else self.tokens

    @property
    def ttft(self) -> float | None:
        """Seconds from sending to the first text."""
        if self.sent_s is None or not self.arrivals:
            return None
        return self.arrivals[0] - self.sent_s

    @property
    def e2el(self) -> float | None:
        """Seconds from sending to the last text."""
        if self.sent_s is None or not self.arrivals:
            return None
        return self.arrivals[-1] - self.sent_s

    @property
    def itl(self) -> list[float]:
        """Seconds between one piece of text and the next."""
        return [b - a for a, b in zip(self.arrivals, self.arrivals[1:], strict=False)]

    @property
    def tpot(self) -> float | None:
        """Seconds a token after the first one; None: there is no second one."""
        if len(self.arrivals) < 2 or self.output_tokens < 2:
            return None
        return (self.arrivals[-1] - self.arrivals[0]) / (self.output_tokens - 1)
