"""no_repeat_ngram_size: no run of so many tokens appears twice in a sequence (Paulus et al. 2017)."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence

import numpy as np

from octavo.sampling.constraints import mask_of
from octavo.sampling.sampling_batch import U32


class NoRepeatNgram:
    """A constraint (see sampling.constraints.Constraint).

    Args:
        size: tokens of a run.
        before: what comes before the output and counts too.
    """

    def __init__(self, size: int, before: Sequence[int]) -> None:
        if size < 1:
            raise ValueError(f"size must be at least 1, not {size}")
        self.size, self.before = size, tuple(before)

    def start(self, output: Sequence[int]) -> NoRepeatNgramMatcher:
        matcher = NoRepeatNgramMatcher(self.size)
        matcher.append((*self.before, *output))
        return matcher


class NoRepeatNgramMatcher:
    """A row's place: the tokens so far, and what has followed each run of size - 1 of them."""

    def __init__(self, size: int) -> None:
        self._runs = size - 1
        self._tokens: list[int] = []
        self._followed: defaultdict[tuple[int, ...], list[int]] = defaultdict(list)

    def restrict(self, mask: U32, ahead: Sequence[int] = ()) -> None:
        if ahead:
            looked = NoRepeatNgramMatcher(self._runs + 1)
            looked.append((*self._tokens, *ahead))
            looked.restrict(mask)
            return
        banned = self._banned()
        if banned:
            mask &= ~mask_of(np.array(banned, np.int64), len(mask))

    def allows(self, token_id: int) -> bool:
        return token_id not in self._banned()

    def _banned(self) -> Sequence[int]:
        return self._followed.get(tuple(self._tokens[len(self._tokens) - self._runs :]), ())

    def append(self, token_ids: Sequence[int]) -> None:
        for token in token_ids:
            end = len(self._tokens)
            if end >= self._runs:
                self._followed[tuple(self._tokens[end - self._runs :])].append(token)
            self._tokens.append(token)

    def fork(self) -> NoRepeatNgramMatcher:
        other = NoRepeatNgramMatcher(self._runs + 1)
        other._tokens = list(self._tokens)
        for run, tokens in self._followed.items():
            other._followed[run] = list(tokens)
        return other
