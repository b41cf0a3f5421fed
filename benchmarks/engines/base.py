"""What a benchmark asks of an engine. One file beside this one for each; worker.py finds it by name."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol


@dataclass(frozen=True, slots=True)
class Timing:
    """One run of prompts side by side.

    Attributes:
        prompt_s: until all of them have their first new token; prompt_tokens: of all prompts.
        decode_s: of the steps after that, in which decode_tokens were drawn.
    """

    prompt_tokens: int
    prompt_s: float
    decode_tokens: int
    decode_s: float

    @property
    def prompt_rate(self) -> float:
        return self.prompt_tokens / self.prompt_s

    @property
    def decode_rate(self) -> float:
        return self.decode_tokens / self.decode_s


class Engine(Protocol):
    """An engine with a model loaded: Name(model, threads, options).

    Attributes:
        version: of the package; notes: settings that a reader of the figures must know.
    """

    version: str
    notes: str

    def run(self, prompts: list[list[int]], new_tokens: int) -> Timing:
        """Draw new_tokens after each prompt: greedy, end of text ignored, nothing cached before."""
        ...


class Scorer(Protocol):
    """An engine that shows its logits."""

    def logits(self, ids: list[int], first: int) -> Any:
        """float32 [len(ids) - first, vocab]: of the positions from first on, all ids in one context."""
        ...


def by_difference(generate: Callable[[int], object], prompts: list[list[int]], new_tokens: int) -> Timing:
    """Time an engine that tells nothing of its steps: once for one token, once for all.

    Args:
        generate: draws so many tokens for every prompt.
    """
    start = time.perf_counter()
    generate(1)
    first = time.perf_counter() - start
    start = time.perf_counter()
    generate(new_tokens)
    rest = time.perf_counter() - start - first
    return Timing(sum(map(len, prompts)), first, len(prompts) * (new_tokens - 1), rest)
