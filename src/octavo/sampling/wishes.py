"""Wishes: what one row asks for beyond the numbers of its record, and what it remembers for it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from octavo.sampling.batch import F32, I32
from octavo.sampling.constraints import Constraint, ConstraintError, ForcedTokensMatcher, Matcher
from octavo.sampling.grammar import GrammarMatcher


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


class RowLimits:
    """A row's constraints, and where its sequence is in them.

    Args:
        output: what the row has generated already.
        narrowed: the row's draw is narrowed (top_p and the like), so its mask must be known before.

    Attributes:
        matchers: of the constraints, in their order.
        before: the mask must be known before the draw. Elsewhere a token is drawn first, and asked about.
    """

    def __init__(self, constraints: Sequence[Constraint], output: Sequence[int], narrowed: bool) -> None:
        self.matchers: list[Matcher] = [constraint.start(output) for constraint in constraints]
        self._forcing = [each for each in self.matchers if isinstance(each, ForcedTokensMatcher)]
        self.before = narrowed or bool(self._forcing)
        self._unheard: list[int] = []  # of the output: followed with the next mask

    @property
    def grammar(self) -> GrammarMatcher | None:
        """The only matcher, if it is a grammar's."""
        only = self.matchers[0]
        return only if len(self.matchers) == 1 and isinstance(only, GrammarMatcher) else None

    def append(self, token_ids: Sequence[int]) -> None:
        """These tokens are now the row's output; the matchers hear of them beside the next forward."""
        self._unheard.extend(token_ids)

    def follow(self) -> None:
        """The matchers go to where the row is now."""
        if self._unheard:
            unheard, self._unheard = self._unheard, []
            for matcher in self.matchers:
                matcher.append(unheard)

    def take(self, token: int) -> bool:
        """Append the token, but not one that a constraint forbids: whether it was appended."""
        self.follow()
        try:
            if self.grammar is not None:
                return self.grammar.take(token)
            if taken := all(matcher.allows(token) for matcher in self.matchers):
                self._unheard = [token]
        except ConstraintError:  # the mask says it
            return False
        return taken

    def forced(self, ahead: Sequence[int]) -> int | None:
        """The one token that may follow the output and `ahead`; None: there is no such."""
        tokens = [token for each in self._forcing if (token := each.forced(ahead)) is not None]
        return tokens[-1] if tokens else None


@dataclass(frozen=True, slots=True, eq=False)
class Wishes:
    """A row that asks for anything that its record does not hold.

    Attributes:
        bias: logit_bias: (tokens, values).
        banned: (tokens, unused values) that must not come before min_position.
        counts: where penalties are asked for.
        limits: where anything restricts which tokens may come.
        scored: log-probabilities are asked for.
        beam: its search decides what is appended, and what goes on enters a row anew.
    """

    bias: tuple[I32, F32] | None = None
    banned: tuple[I32, F32] | None = None
    min_position: int = 0
    counts: TokenCounts | None = None
    limits: RowLimits | None = None
    scored: bool = False
    beam: bool = False

    @property
    def edits(self) -> bool:
        """Whether its logits are changed before its draws."""
        lists = self.bias is not None or self.banned is not None
        return lists or self.counts is not None or self.limits is not None

    def needs_sampler(self, position: int) -> bool:
        """Whether the token at this position of the sequence takes more than the record, and its limits
        being asked about it afterwards, or its log-probabilities."""
        if self.beam or self.bias is not None or self.counts is not None:
            return True
        early = self.banned is not None and position < self.min_position
        return early or (self.limits is not None and (self.limits.before or self.scored))


@dataclass(slots=True, eq=False)
class OtherRows:
    """Places of a step's rows that ask for more than their record says.

    Attributes:
        left: they take a sampler, and their logits.
        asked: their limits are asked about the token that is drawn.
        scored: log-probabilities are all that they ask for. most: of so many tokens, at most.
    """

    left: list[int] = field(default_factory=list)
    asked: list[int] = field(default_factory=list)
    scored: list[int] = field(default_factory=list)
    most: int = 0
