"""A proposer that knows what requests will say: drafts right and wrong, chains and trees."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence

from octavo.params.drafts import Draft
from octavo.spec.base import Begin


class Scripted:
    """Drafts from texts that it is told of, spoilt by chance.

    Args:
        right: the chance that a drafted token is what the text says.
        trees: half of the drafts are trees, the text's own tokens anywhere among their nodes.

    Attributes:
        texts: prompts with their answers.
        rows: what each row has said so far.
    """

    nbytes = 0

    def __init__(self, rng: random.Random, vocab_size: int, right: float = 0.8, trees: bool = False) -> None:
        self._rng, self._vocab_size, self._right, self._trees = rng, vocab_size, right, trees
        self.texts: list[list[int]] = []
        self.rows: dict[int, list[int]] = {}

    def start(self, row: int, begin: Begin) -> None:
        assert row not in self.rows, "a row was not removed"
        self.rows[row] = list(begin.tokens)

    def remove(self, row: int) -> None:
        del self.rows[row]

    def observe(self, row: int, tokens: Sequence[int]) -> None:
        self.rows[row] += tokens

    def reset(self) -> None:
        pass

    def propose(self, most: Mapping[int, int]) -> dict[int, Draft]:
        drafts = {
            row: self._draft(self.rows[row], self._rng.randint(0, count)) for row, count in most.items()
        }
        return {row: draft for row, draft in drafts.items() if draft.tokens}

    def _draft(self, known: list[int], count: int) -> Draft:
        texts = [text for text in self.texts if text[: len(known)] == known]
        text = self._rng.choice(texts)[len(known) :] if texts else []
        tokens = (text + [self._rng.randrange(self._vocab_size) for _ in range(count)])[:count]
        if self._trees and self._rng.random() < 0.5:
            return self._tree(tokens[: (count + 1) // 2]).first(count)
        return Draft.chain([self._spoilt(token) for token in tokens])

    def _spoilt(self, token: int) -> int:
        return token if self._rng.random() < self._right else self._rng.randrange(self._vocab_size)

    def _tree(self, tokens: Sequence[int]) -> Draft:
        """The tokens as a path, other nodes before and between them."""
        drafted: list[tuple[int, int]] = []  # (token, parent)
        tip = -1
        for token in tokens:
            while self._rng.random() < 0.4 and len(drafted) < 2 * len(tokens):  # guesses that lead nowhere
                parent = self._rng.randrange(-1, len(drafted)) if drafted else -1
                drafted.append((self._rng.randrange(self._vocab_size), parent))
            drafted.append((self._spoilt(token), tip))
            tip = len(drafted) - 1
        kept: dict[tuple[int, int], int] = {}  # siblings differ: of equal ones the first stays
        place: list[int] = []
        for token, parent in drafted:
            key = token, -1 if parent < 0 else place[parent]
            place.append(kept.setdefault(key, len(kept)))
        return Draft(tuple(token for token, _ in kept), tuple(parent for _, parent in kept))
