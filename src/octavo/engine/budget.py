"""TokenBudget: how many tokens a step may compute, so that nobody who is streaming waits long."""

from __future__ import annotations

from math import ceil

MIN_TOKENS = 16
"""Prompts go on at this pace at least, however slow the machine."""
FORGIVES_AFTER = 256
"""Steps without a lack of memory, after which they may be twice as large again."""
MARGIN = 0.75
"""Share of the target that is aimed at: what a step takes varies, and the target is what it may take."""


class TokenBudget:
    """A controller that learns how many tokens fit into the step target, less a MARGIN.

    A step of n tokens that took s seconds says that about n * aim / s would have fitted. The
    estimate falls to that at once and rises half-way to it, which converges on the number whose step
    takes as long as aimed at, whatever part of a step is fixed cost: later chunks of a long prompt
    cost more than its first ones, and whoever streams should not wait for an average to notice. It
    begins at MIN_TOKENS and comes from below in a few steps: from above, the first steps of an engine
    would keep everybody waiting. A step of less than half the estimate says little about large ones
    and counts only if it took too long itself.

    Args:
        max_tokens: never more than this.
        target_s: what a step should take at most while anything decodes; None: max_tokens always.
    """

    def __init__(self, max_tokens: int, target_s: float | None) -> None:
        self._most = self._max_tokens = max_tokens
        self._good = 0
        self._aim_s = None if target_s is None else MARGIN * target_s
        self._estimate = float(MIN_TOKENS)

    def tokens(self, num_decoding: int) -> int:
        """The budget of a step in which num_decoding requests need their next token.

        The time budget bounds what prompts may add: decodes are never held back by it, and prompts
        get MIN_TOKENS beside them.
        """
        if self._aim_s is None or num_decoding == 0:
            return self._max_tokens
        return min(self._max_tokens, max(ceil(self._estimate), num_decoding + MIN_TOKENS))

    def shrink(self, num_tokens: int) -> bool:
        """A step of num_tokens was too large for the executor: steps have at most half of it, until
        FORGIVES_AFTER of them went well. False: there are no smaller ones."""
        if num_tokens <= 1:
            return False
        self._max_tokens, self._good = num_tokens // 2, 0
        return True

    def observe(self, num_tokens: int, seconds: float) -> None:
        """A step of num_tokens took this long."""
        self._good += 1
        if self._good >= FORGIVES_AFTER and self._max_tokens < self._most:
            self._max_tokens, self._good = min(2 * self._max_tokens, self._most), 0
        if self._aim_s is None or num_tokens < 1 or seconds <= 0.0:
            return
        if 2 * num_tokens < self._estimate and seconds <= self._aim_s:
            return
        fits = num_tokens * self._aim_s / seconds
        estimate = min(fits, (self._estimate + fits) / 2)
        self._estimate = min(max(estimate, float(MIN_TOKENS)), float(self._max_tokens))
