"""Masks of rows with limits: batched matchers are asked in one call, whatever else restricts a row apart."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from octavo.sampling.constraints import (
    AllowedTokens,
    BatchedMatcher,
    ConstraintError,
    ForcedTokens,
    Matcher,
)
from octavo.sampling.limits import LimitMasks, RowLimits
from octavo.sampling.sampling_batch import U32

VOCAB = 40


class Only(BatchedMatcher):
    """One token may follow; asked alone or in a batch, it writes down how."""

    def __init__(self, token: int, asked: list[Any]) -> None:
        self._token, self.asked = token, asked

    def start(self, output: Sequence[int]) -> Matcher:
        return self

    def masks(self, threads: int) -> Together:
        self.asked.append(threads)
        return Together(self.asked)

    def restrict(self, mask: U32, ahead: Sequence[int] = ()) -> None:
        self.asked.append(tuple(ahead))
        AllowedTokens([self._token]).restrict(mask)

    def fill(self, mask: U32, pointer: int) -> None: ...

    def take(self, token_id: int) -> bool:
        return token_id == self._token

    def allows(self, token_id: int) -> bool:
        return token_id == self._token

    def append(self, token_ids: Sequence[int]) -> None: ...

    def fork(self) -> Matcher:
        return self


class Together:
    def __init__(self, asked: list[Any]) -> None:
        self._asked = asked

    def fill(self, matchers: Mapping[int, Only], mask: U32, alone_s: float) -> dict[int, str]:
        self._asked.append(sorted(matchers))
        for row, matcher in matchers.items():
            AllowedTokens([matcher._token]).restrict(mask[row])
        return {row: "unknown" for row, matcher in matchers.items() if matcher._token == 13}


class Lost(AllowedTokens):
    def restrict(self, mask: U32, ahead: Sequence[int] = ()) -> None:
        raise ConstraintError("lost")


def limits(*constraints: Any) -> RowLimits:
    return RowLimits(constraints, [], narrowed=False)


def bits(mask: U32) -> list[int]:
    return np.flatnonzero(np.unpackbits(mask.view(np.uint8), bitorder="little")[:VOCAB]).tolist()


def test_batched_matchers_are_asked_in_one_call_and_made_ready_once() -> None:
    asked: list[Any] = []
    masks, drafts = LimitMasks(VOCAB, 3), [()] * 4
    rows = {0: limits(Only(5, asked)), 2: limits(Only(7, asked), AllowedTokens([7, 8]))}
    mask, errors = masks.of(rows, drafts)
    assert [bits(row) for row in mask] == [[5], list(range(VOCAB)), [7], list(range(VOCAB))]
    assert errors == {}
    masks.of(rows, drafts)
    assert asked == [3, [0, 2], [0, 2]]


def test_a_matcher_met_twice_and_one_behind_a_draft_are_asked_apart() -> None:
    asked: list[Any] = []
    shared = Only(5, asked)
    rows = {0: limits(shared), 1: limits(shared), 2: limits(Only(7, asked)), 3: limits(Only(8, asked))}
    mask, _ = LimitMasks(VOCAB, 1).of(rows, [(), (), (9,), ()])
    assert [bits(row) for row in mask] == [[5], [5], [7], [8]]
    assert asked == [1, [0, 3], (), (9,)]


def test_errors_are_those_of_their_rows() -> None:
    rows = {0: limits(Only(13, [])), 1: limits(Only(4, [])), 2: limits(Lost([1]))}
    _, errors = LimitMasks(VOCAB, 1).of(rows, [()] * 3)
    assert errors == {0: "unknown", 2: "lost"}


def test_a_forced_token_is_all_that_its_mask_allows() -> None:
    rows = {0: limits(AllowedTokens([1, 2]), ForcedTokens({0: 6})), 1: limits(AllowedTokens([1, 2]))}
    mask, errors, forced = LimitMasks(VOCAB, 1).forced(rows, [(), ()])
    assert (bits(mask[0]), bits(mask[1]), errors, forced) == ([6], [1, 2], {}, {0: 6})
