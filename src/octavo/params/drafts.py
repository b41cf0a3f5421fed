"""Draft: tokens that may follow a row's last known one, proposed by a drafter and verified by the model.

    node 0: the row's last known token      Draft((8, 9, 4), (-1, -1, 0))
     ├─ node 1: 8 ── node 3: 4              tokens 8 and 9 are two guesses for the next token,
     └─ node 2: 9                           4 a guess for the one after 8

It stands on this floor because those who propose drafts (spec), plan their steps (engine) and verify them
(sampling) know nothing of each other.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

_CHAIN = tuple(range(-1, 64))


def _chained(count: int) -> tuple[int, ...]:
    """Parents of a chain of so many tokens."""
    return _CHAIN[:count] if count <= len(_CHAIN) else tuple(range(-1, count - 1))


@dataclass(frozen=True, slots=True)
class Draft:
    """Drafted tokens of one row. Draft i is node i + 1; node 0 is the row's last known token.

    Attributes:
        tokens [N]: drafted token ids.
        parents [N]: the parent's draft index, below the child's own; -1 hangs on node 0.
        support: how much speaks for the draft, as its proposer counts that, from 0 on. Only the policy that
            chooses how many tokens to verify reads it: it learns how often drafts of equal support are right.
        q: [N, V] float64, what each token was drawn from, its elder siblings left out; None: the tokens were
            chosen. Only the p/q test reads it (sampling/verify.py).

    Raises:
        ValueError: a parent comes after its child, or two siblings are the same token: the second
            could never be reached, and would bias the p/q test.
    """

    tokens: tuple[int, ...]
    parents: tuple[int, ...]
    support: int = field(default=0, compare=False)
    q: Any = field(default=None, compare=False, repr=False)

    def __post_init__(self) -> None:
        if self.parents == _chained(len(self.tokens)):  # as most are
            return
        if len(self.tokens) != len(self.parents):
            raise ValueError("a draft needs one parent per token")
        if any(not -1 <= parent < child for child, parent in enumerate(self.parents)):
            raise ValueError("a draft's parent must come before it")
        if len({*zip(self.parents, self.tokens, strict=True)}) != len(self.tokens):
            raise ValueError("siblings of a draft must be different tokens")

    @classmethod
    def chain(cls, tokens: Sequence[int], support: int = 0) -> Draft:
        return cls(tuple(tokens), _chained(len(tokens)), support)

    @property
    def is_chain(self) -> bool:
        """Whether every token hangs on the one before it."""
        return self.parents == _chained(len(self.parents))

    def first(self, count: int) -> Draft:
        """Its first `count` tokens, which are a draft themselves: parents come before their children."""
        if count >= len(self.tokens):
            return self
        q = None if self.q is None else self.q[:count]
        return Draft(self.tokens[:count], self.parents[:count], self.support, q)

    def paths(self) -> list[tuple[int, ...]]:
        """Drafted tokens from node 0 to each node [N + 1], the node's own included."""
        paths: list[tuple[int, ...]] = [()]
        for token, parent in zip(self.tokens, self.parents, strict=True):
            paths.append((*paths[parent + 1], token))
        return paths
