"""RowLimits: a row's constraints, and where its sequence is in them. LimitMasks: the masks of such rows."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from octavo.sampling.constraints import (
    ALONE_S,
    BatchedMasks,
    BatchedMatcher,
    Constraint,
    ConstraintError,
    ForcedTokensMatcher,
    Matcher,
    full_mask,
    mask_of,
)
from octavo.sampling.sampling_batch import U32


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
    def alone(self) -> BatchedMatcher | None:
        """The only matcher, if it is a batched one."""
        only = self.matchers[0]
        return only if len(self.matchers) == 1 and isinstance(only, BatchedMatcher) else None

    def append(self, token_ids: Sequence[int]) -> None:
        """These tokens are now the row's output; the matchers are told of them beside the next forward."""
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
            if (alone := self.alone) is not None:
                return alone.take(token)
            if taken := all(matcher.allows(token) for matcher in self.matchers):
                self._unheard = [token]
        except ConstraintError:  # the mask says it
            return False
        return taken

    def forced(self, ahead: Sequence[int]) -> int | None:
        """The one token that may follow the output and `ahead`; None: there is no such."""
        tokens = [token for each in self._forcing if (token := each.forced(ahead)) is not None]
        return tokens[-1] if tokens else None


class LimitMasks:
    """What may follow in rows that have limits: batched matchers are asked in one call, others one by one.

    Args:
        vocab_size: V.
        threads: compute the masks of batched matchers.
    """

    def __init__(self, vocab_size: int, threads: int) -> None:
        self._vocab_size, self._threads = vocab_size, threads
        self._batched: BatchedMasks | None = None  # made by the first matcher that has one

    def of(
        self, limits: Mapping[int, RowLimits], drafts: Sequence[Sequence[int]], alone_s: float = ALONE_S
    ) -> tuple[U32, dict[int, str]]:
        """(mask [R, ceil(V / 32)] of what may follow each output and its drafts, row -> why that is unknown).

        Args:
            limits: by row; all bits are set of rows that have none.
            drafts [R]: of each row.
            alone_s: see BatchedMasks.fill.
        """
        mask = full_mask(len(drafts), self._vocab_size)
        together: dict[int, BatchedMatcher] = {}  # no row and no matcher twice, and none with a draft
        joined: set[Matcher] = set()
        others: list[tuple[int, Matcher]] = []
        for index, each in limits.items():
            each.follow()
            for matcher in each.matchers:
                alone = bool(drafts[index]) or index in together or matcher in joined
                if isinstance(matcher, BatchedMatcher) and not alone:
                    together[index] = matcher
                    joined.add(matcher)
                else:
                    others.append((index, matcher))
        errors = self._together(together, mask, alone_s)
        for index, matcher in others:
            try:
                matcher.restrict(mask[index], drafts[index])
            except ConstraintError as error:
                errors[index] = str(error)
        return mask, errors

    def _together(self, matchers: Mapping[int, BatchedMatcher], mask: U32, alone_s: float) -> dict[int, str]:
        if not matchers:
            return {}
        if self._batched is None:
            self._batched = next(iter(matchers.values())).masks(self._threads)
        return self._batched.fill(matchers, mask, alone_s)

    def forced(
        self, limits: Mapping[int, RowLimits], drafts: Sequence[Sequence[int]]
    ) -> tuple[U32, dict[int, str], dict[int, int]]:
        """As of(), and row -> the one token that is forced there: its mask allows no other."""
        mask, errors = self.of(limits, drafts)
        found = {index: each.forced(drafts[index]) for index, each in limits.items()}
        forced = {index: token for index, token in found.items() if token is not None}
        for index, token in forced.items():  # whatever else is asked
            mask[index] = mask_of([token], mask.shape[1])
        return mask, errors, forced
