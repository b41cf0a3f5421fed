"""Acceptance: how many tokens of a draft are right, learned from what the rows went on with.

Whether a draft was verified or not, the tokens that follow say whether it was right. So a policy that
verifies nothing for a while still learns, at no cost, when it should begin again.

    draft      8 4 4 7        support 3
    tokens     8 4 5          node 0 and 1 were right, 2 and 3 were not

A token's chance is kept by its place in the draft (a tree's nodes come best first, so the place stands for
the node) and by the draft's support, for each row and for all rows together: a row that is new is as all are.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise

from octavo.params.drafts import Draft

PLACES = 64
SUPPORTS = 8
"""Drafts with more support count as these."""
ROW_MEMORY = 0.95
ALL_MEMORY = 0.995
"""What an earlier draft still counts after one more."""
SMALLEST = 0.04
"""A chance that pays in no step: a drafted token always costs something."""
PRIOR = 2.0
"""Drafts that the first guess counts as: that each further token is right in half of all cases."""
ROW_PRIOR = 3.0
"""Drafts that what all rows say counts as, for one of them."""
STEADY_PRIOR = 20.0
"""The same where a model drafts: how often it is right depends less on the row."""
LATER = 8.0
"""Drafts that a model's later tokens, each after a right one, count as for its first one, at most."""


class Chances:
    """Of drafts with one support: how many there were, and how often each place was right. Both decay."""

    __slots__ = ("_memory", "right", "seen")

    def __init__(self, memory: float) -> None:
        self._memory = memory
        self.seen: list[float] = []
        self.right: list[float] = []

    def add(self, hits: Sequence[bool]) -> None:
        """One draft, and which of its tokens were right."""
        memory, seen, right = self._memory, self.seen, self.right
        missing = len(hits) - len(seen)
        if missing > 0:
            seen += [0.0] * missing
            right += [0.0] * missing
        for place, hit in enumerate(hits):
            seen[place] = seen[place] * memory + 1
            right[place] = right[place] * memory + hit


class FollowedDraft:
    """A draft that was offered to a row, and how far the row's tokens have gone along it."""

    __slots__ = ("_children", "_node", "draft", "hits")

    def __init__(self, draft: Draft) -> None:
        self.draft = draft
        self.hits = [False] * len(draft.tokens)
        self._node = -1
        self._children: dict[tuple[int, int], int] | None = None  # of a chain: none are needed
        if not draft.is_chain:
            self._children = {
                key: index for index, key in enumerate(zip(draft.parents, draft.tokens, strict=True))
            }

    def follow(self, tokens: Sequence[int]) -> bool:
        """Go on along these tokens. Returns whether it is known now which of the draft's are right."""
        if self._children is None:
            return self._follow_chain(tokens)
        for token in tokens:
            child = self._children.get((self._node, token))
            if child is None:
                return True
            self.hits[child] = True
            self._node = child
        return all(parent != self._node for parent in self.draft.parents)

    def _follow_chain(self, tokens: Sequence[int]) -> bool:
        """The same where each token hangs on the one before it, as in most drafts: nothing is searched."""
        drafted, hits, child = self.draft.tokens, self.hits, self._node + 1
        count = len(drafted)
        for token in tokens:
            if child == count or drafted[child] != token:
                return True
            hits[child] = True
            child += 1
        self._node = child - 1
        return child == count


class Acceptance:
    """What drafts were worth, by row, support and place.

    Args:
        steady: a model drafts: of what nothing is known yet, each further token is as likely right after the
            one before as the first one is, and rows differ little. Tables: half as likely, and they do.
    """

    def __init__(self, steady: bool = False) -> None:
        self._steady, self._row_prior = steady, STEADY_PRIOR if steady else ROW_PRIOR
        self._later = Chances(ALL_MEMORY)
        self._all: dict[int, Chances] = {}
        self._rows: dict[int, dict[int, Chances]] = {}
        self._followed: dict[int, dict[int, FollowedDraft]] = {}  # of each row, by support

    def start(self, row: int) -> None:
        self._rows[row], self._followed[row] = {}, {}

    def remove(self, row: int) -> None:
        self._rows.pop(row, None)
        self._followed.pop(row, None)

    def offered(self, row: int, draft: Draft) -> None:
        """A draft for what follows all that is known of the row.

        While one with the same support is followed it is passed over. (One at a time for all supports would
        learn little of drafts that come in the midst of a long copy, which are the best ones.)
        """
        followed, support = self._followed[row], min(draft.support, SUPPORTS)
        if support not in followed:
            followed[support] = FollowedDraft(draft)

    def observe(self, row: int, tokens: Sequence[int]) -> Sequence[bool] | None:
        """The row went on with these tokens. Returns which tokens of its draft were right, once known; of
        several drafts those of the one that was right for longest."""
        followed, best = self._followed.get(row), None
        if not followed:
            return None
        for support, each in list(followed.items()):
            if not each.follow(tokens):
                continue
            del followed[support]
            hits, own = each.hits, self._rows[row]
            if (everyone := self._all.get(support)) is None:
                everyone = self._all[support] = Chances(ALL_MEMORY)
            if (one := own.get(support)) is None:
                one = own[support] = Chances(ROW_MEMORY)
            everyone.add(hits)
            one.add(hits)
            if self._steady:  # a token after a right one is as likely right as the first one
                for before, hit in pairwise(hits):
                    if before:
                        self._later.add((hit,))
            best = hits if best is None or sum(hits) > sum(best) else best
        return best

    def chances(self, row: int, support: int, count: int) -> tuple[list[float], list[float]]:
        """(chance that each of a draft's first `count` tokens is right, its standard error), none rising.

        Both end before a chance that is too small for any step to pay.
        """
        support = min(support, SUPPORTS)
        everyone, own = self._all.get(support), self._rows[row].get(support)
        chances: list[float] = []
        errors: list[float] = []
        guess, most = 0.5, 1.0
        for place in range(count):
            right, seen = guess * PRIOR, PRIOR
            if place == 0 and self._later.seen:
                more = min(self._later.seen[0], LATER)
                right, seen = right + more * self._later.right[0] / self._later.seen[0], seen + more
            if everyone is not None and place < len(everyone.seen):
                right, seen = right + everyone.right[place], seen + everyone.seen[place]
            mean = right / seen
            if own is not None and place < len(own.seen):
                mean = (mean * self._row_prior + own.right[place]) / (self._row_prior + own.seen[place])
                seen = min(seen, self._row_prior) + own.seen[place]
            most = min(mean, most)
            if most < SMALLEST:
                break
            chances.append(most)
            errors.append(math.sqrt(most * (1 - most) / (seen + 1)))
            guess = most * (chances[0] if self._steady else 0.5)
        return chances, errors
