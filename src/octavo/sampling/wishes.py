"""Wishes: what one row asks for beyond the numbers of its record, and what it remembers for it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from octavo.errors import InvalidRequestError
from octavo.params import SamplingParams
from octavo.params.watermark import WatermarkParams
from octavo.sampling.limits import RowLimits
from octavo.sampling.sampling_batch import F32, I32
from octavo.sampling.watermark import Marked


class TokenCounts:
    """Which tokens a sequence holds and how often its output does: what penalties need.

    Memory grows with the distinct tokens of the sequence, not with the vocabulary.
    """

    def __init__(self, prompt: Sequence[int], output: Sequence[int], vocab_size: int) -> None:
        distinct = dict.fromkeys([*prompt, *output])
        self._vocab_size = vocab_size
        self._index = {t: i for i, t in enumerate(t for t in distinct if t < vocab_size)}
        self._tokens = np.zeros(len(self._index) + 64, np.int32)
        self._counts = np.zeros(len(self._tokens), np.float32)
        self._tokens[: len(self._index)] = list(self._index)
        self.append(output)

    def append(self, token_ids: Sequence[int]) -> None:
        """Output tokens were added to the sequence."""
        for token in token_ids:
            if token >= self._vocab_size:  # nothing that logits could name
                continue
            at = self._index.setdefault(token, len(self._index))
            if at == len(self._tokens):
                self._tokens = np.concatenate([self._tokens, np.zeros(at, np.int32)])
                self._counts = np.concatenate([self._counts, np.zeros(at, np.float32)])
            self._tokens[at] = token
            self._counts[at] += 1

    def lists(self, ahead: Sequence[int] = ()) -> tuple[I32, F32]:
        """(tokens, output counts) as they would be after the output tokens `ahead`.

        Valid until the next append.
        """
        size = len(self._index)
        tokens, counts = self._tokens[:size], self._counts[:size]
        if not ahead:
            return tokens, counts
        counts = counts.copy()
        new: dict[int, float] = {}
        for token in ahead:
            at = self._index.get(token)
            if at is not None:
                counts[at] += 1
            elif token < self._vocab_size:
                new[token] = new.get(token, 0.0) + 1.0
        new_tokens = np.fromiter(new.keys(), np.int32, len(new))
        return np.concatenate([tokens, new_tokens]), np.concatenate(
            [counts, np.fromiter(new.values(), np.float32, len(new))]
        )


def bias_lists(bias: Mapping[int, float], vocab_size: int) -> tuple[I32, F32]:
    """logit_bias as arrays.

    Raises:
        InvalidRequestError: it names a token beyond the vocabulary.
    """
    if max(bias) >= vocab_size:
        raise InvalidRequestError(
            f"logit_bias names token {max(bias)}, the vocabulary has {vocab_size}", "logit_bias"
        )
    return np.array(list(bias), np.int32), np.array(list(bias.values()), np.float32)


def stops(params: SamplingParams, eos: Sequence[int], vocab_size: int) -> tuple[I32, F32] | None:
    """Tokens of the vocabulary that end such a row, with unused values; None: none does."""
    found = {*params.stop_token_ids, *(() if params.ignore_eos else eos)}
    found = {token for token in found if token < vocab_size}
    return (np.array(sorted(found), np.int32), np.zeros(len(found), np.float32)) if found else None


@dataclass(frozen=True, slots=True, eq=False)
class Wishes:
    """What a row asks for that its record of numbers does not hold.

    Attributes:
        bias: logit_bias: (tokens, values).
        banned: (tokens, unused values) that must not come before min_position.
        counts: where penalties are asked for.
        limits: where anything restricts which tokens may come.
        scored: log-probabilities are asked for.
        mark: where a watermark is asked for.
        beam: its search decides what is appended, and what goes on enters a row anew.
    """

    bias: tuple[I32, F32] | None = None
    banned: tuple[I32, F32] | None = None
    min_position: int = 0
    counts: TokenCounts | None = None
    limits: RowLimits | None = None
    scored: bool = False
    mark: Marked | None = None
    beam: bool = False

    @property
    def edits(self) -> bool:
        """Whether its logits are changed before its draws."""
        lists = self.bias is not None or self.banned is not None
        return lists or self.counts is not None or self.limits is not None or self.mark is not None

    def needs_sampler(self, position: int) -> bool:
        """Whether the sampler must draw the token at this position: the decoder can only obey the record, and
        one of these: ask the row's limits about a drawn token, write log-probabilities, add a watermark."""
        if self.beam or self.bias is not None or self.counts is not None:
            return True
        if self.banned is not None and position < self.min_position:
            return True
        several = (self.limits is not None) + self.scored + (self.mark is not None) > 1
        return several or (self.limits is not None and self.limits.before)


@dataclass(slots=True, eq=False)
class OtherRows:
    """Places of a step's rows that ask for more than their record says.

    Attributes:
        left: rows that the sampler draws.
        asked: rows whose limits are asked about the drawn token.
        scored: rows that ask for log-probabilities alone; most: of at most this many likeliest tokens.
        marked: rows that ask for a watermark alone -> what GreenLists.lifted takes.
    """

    left: list[int] = field(default_factory=list)
    asked: list[int] = field(default_factory=list)
    scored: list[int] = field(default_factory=list)
    most: int = 0
    marked: dict[int, tuple[WatermarkParams, int]] = field(default_factory=dict)
