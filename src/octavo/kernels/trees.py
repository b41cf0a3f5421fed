"""Tree masks: which tokens of a verify step are ancestors of which (Miao et al. 2023, SpecInfer).

    tokens of the step     0 - 1 - 3        parents  -1  0  0  1
                             \\ 2            masks    0001  0011  0101  1011 (bit i: token i is seen)

Word w of a token's row holds tokens 64 w to 64 w + 63 of its own sequence's step, lowest bit first. A
token sees its ancestors and itself; a row of zeros is a token of a sequence that is no tree.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

I32 = npt.NDArray[np.int32]
U64 = npt.NDArray[np.uint64]


def masks_of(parents: Sequence[int], words: int | None = None) -> U64:
    """Tree masks [T, words] of one sequence.

    Args:
        parents: of each token the index of its parent in the step, which comes before it; -1: none.
        words: of a row; None: as few as hold T bits.

    Raises:
        ValueError: a parent that does not come before its child, or too few words.
    """
    count = len(parents)
    words = -(-count // 64) if words is None else words
    if count > 64 * words:
        raise ValueError(f"{count} tokens of a tree need {-(-count // 64)} words, not {words}")
    masks = np.zeros((count, words), np.uint64)
    for token, parent in enumerate(parents):
        if not -1 <= parent < token:
            raise ValueError(f"token {token} of a tree has the parent {parent}, which is not before it")
        if parent >= 0:
            masks[token] = masks[parent]
        masks[token, token // 64] |= np.uint64(1) << np.uint64(token % 64)
    return masks


def seen(masks: U64, count: int) -> npt.NDArray[np.bool_]:
    """[T, count]: whether a token sees token i of its sequence's step."""
    little = np.ascontiguousarray(masks).astype("<u8", copy=False).view(np.uint8)
    bits = np.unpackbits(little, axis=1, bitorder="little", count=min(count, 64 * masks.shape[1]))
    wide = np.zeros((len(masks), count), bool)
    wide[:, : bits.shape[1]] = bits
    return wide


def check(masks: U64, positions: I32, query_start: I32, context_lens: I32) -> None:
    """Arguments as in ForwardBatch.

    Raises:
        ValueError: the masks are not of forests whose roots follow the context and whose children
            follow their parents.
    """
    if masks.dtype != np.uint64 or masks.ndim != 2 or len(masks) != len(positions) or not masks.shape[1]:
        raise ValueError(f"tree_masks must be uint64 [tokens, words], not {masks.dtype} {masks.shape}")
    for s, (start, end) in enumerate(itertools.pairwise(query_start)):
        rows, at, count = masks[start:end], positions[start:end], int(end - start)
        first = int(context_lens[s]) - count
        if not rows.any():
            if not np.array_equal(at, np.arange(first, first + count)):
                raise ValueError(f"sequence {s} has no tree, and positions that are not consecutive")
            continue
        if count > 64 * masks.shape[1]:
            raise ValueError(f"sequence {s} has {count} tokens, its tree masks {64 * masks.shape[1]} bits")
        dense = seen(rows, 64 * masks.shape[1])
        before = np.tril(dense[:, :count], -1)
        parent = np.where(before.any(axis=1), count - 1 - before[:, ::-1].argmax(axis=1), -1)
        rooted = np.concatenate([dense[:, :count], np.zeros((1, count), bool)])  # row -1: no ancestors
        if not np.array_equal(dense[:, :count], rooted[parent] | np.eye(count, dtype=bool)) or (
            dense[:, count:].any()
        ):
            raise ValueError(
                f"sequence {s}: a tree's token sees itself, its parent, and what its parent sees"
            )
        if not np.array_equal(at, np.concatenate([at, [np.int32(first - 1)]])[parent] + 1):
            raise ValueError(f"sequence {s}: a tree's token is one position after its parent")
