"""Constraints: which tokens a row may draw next, as bits that every constraint may only clear.

A Constraint is compiled once per request and shared by its n rows; each row starts a Matcher of its
own, which follows the row's output. Drafts are looked ahead at, and leave no trace.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any, Protocol

import numpy as np

from octavo.sampling.sampling_batch import U32

ALL = np.uint32(0xFFFFFFFF)

ALONE_S = 0.001
"""So long masks are computed on the calling thread: on a busy machine, to have others begin and to wait may
take as long."""


class ConstraintError(Exception):
    """The constraint cannot be followed any further; a one-line message. Ends the row's request."""


class Matcher(Protocol):
    """One row's place in a constraint."""

    def restrict(self, mask: U32, ahead: Sequence[int] = ()) -> None:
        """Clear the bits of tokens that must not follow the output and the draft tokens `ahead`.

        After drafts that the constraint itself forbids the mask may be anything: such a draft is
        never accepted, so nothing is drawn behind it.

        Raises:
            ConstraintError: nothing is known about what may follow.
        """
        ...

    def allows(self, token_id: int) -> bool:
        """Whether restrict() would leave the token's bit set after the output, without a mask if possible.

        Raises:
            ConstraintError: as restrict(); or False, and restrict() raises it.
        """
        ...

    def append(self, token_ids: Sequence[int]) -> None:
        """These tokens are now the row's output."""
        ...

    def fork(self) -> Matcher:
        """Another one in the same place, for a beam that goes on from this one."""
        ...


class BatchedMatcher:
    """A Matcher that LimitMasks asks together with those of other rows (a grammar's).

    A plain class to inherit from: isinstance() is asked at every token, and is slow on a Protocol or an ABC.
    """

    @abstractmethod
    def masks(self, threads: int) -> BatchedMasks:
        """What computes the masks of many such matchers, on so many threads."""

    @abstractmethod
    def fill(self, mask: U32, pointer: int) -> None:
        """Set the mask, which lies there, to what may follow.

        Raises:
            ConstraintError: as restrict().
        """

    @abstractmethod
    def take(self, token_id: int) -> bool:
        """Append the token if it is allowed."""


class BatchedMasks(Protocol):
    """Computes masks of many batched matchers of one kind."""

    def fill(self, matchers: Mapping[int, Any], mask: U32, alone_s: float) -> dict[int, str]:
        """Set rows of the mask to what their matchers allow; row -> why its matcher knows nothing.

        Args:
            matchers: by row of the mask; none twice, all over one vocabulary.
            mask [R, words]: contiguous.
            alone_s: how long they are computed on the calling thread, before others are woken.
        """
        ...


class Constraint(Protocol):
    """What a request asks for, compiled."""

    def start(self, output: Sequence[int]) -> Matcher:
        """A matcher for a row that has generated output already (after a preemption)."""
        ...


def full_mask(rows: int, vocab_size: int) -> U32:
    """[rows, ceil(V / 32)] with all bits set, those beyond the vocabulary too."""
    return np.full((rows, -(-vocab_size // 32)), ALL, np.uint32)


def mask_of(tokens: Sequence[int] | np.ndarray[tuple[int], np.dtype[np.int64]], words: int) -> U32:
    """[words] with the bits of these tokens set; tokens beyond the words are left out."""
    bits = np.zeros(words * 32, np.uint8)
    ids = np.asarray(tokens, np.int64)
    bits[ids[ids < len(bits)]] = 1
    return np.packbits(bits, bitorder="little").view("<u4").astype(np.uint32, copy=False)


class AllowedTokens:
    """allowed_token_ids: nothing else is drawn. Constraint and matcher in one, as it has no state."""

    def __init__(self, token_ids: Sequence[int]) -> None:
        self._token_ids = frozenset(token_ids)
        self._mask = np.zeros(0, np.uint32)

    def start(self, output: Sequence[int]) -> AllowedTokens:
        return self

    def restrict(self, mask: U32, ahead: Sequence[int] = ()) -> None:
        if len(self._mask) != len(mask):
            self._mask = mask_of(sorted(self._token_ids), len(mask))
        mask &= self._mask

    def allows(self, token_id: int) -> bool:
        return token_id in self._token_ids

    def append(self, token_ids: Sequence[int]) -> None:
        pass

    def fork(self) -> AllowedTokens:
        return self


class ForcedTokens:
    """At some places one token and no other, whatever else is asked (forced beginnings and ends).

    A beam search counts a forced token as certain, as transformers does: its log-probability is 0.

    Args:
        at: place in the output (0 is the first token) -> token.
    """

    def __init__(self, at: Mapping[int, int]) -> None:
        self.at = dict(at)

    def start(self, output: Sequence[int]) -> ForcedTokensMatcher:
        return ForcedTokensMatcher(self.at, len(output))


class ForcedTokensMatcher:
    """A row's place: how long its output is."""

    def __init__(self, at: Mapping[int, int], length: int) -> None:
        self._at, self._length = at, length

    def forced(self, ahead: Sequence[int] = ()) -> int | None:
        """The token that follows the output and the draft tokens `ahead`; None: any."""
        return self._at.get(self._length + len(ahead))

    def restrict(self, mask: U32, ahead: Sequence[int] = ()) -> None:
        token = self.forced(ahead)
        if token is not None:
            mask &= mask_of([token], len(mask))

    def allows(self, token_id: int) -> bool:
        return self.forced() in (None, token_id)

    def append(self, token_ids: Sequence[int]) -> None:
        self._length += len(token_ids)

    def fork(self) -> ForcedTokensMatcher:
        return ForcedTokensMatcher(self._at, self._length)
