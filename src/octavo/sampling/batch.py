"""SamplingBatch: what one step's R sampled rows ask for. Frozen, and passed as an argument."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

I32 = npt.NDArray[np.int32]
I64 = npt.NDArray[np.int64]
F32 = npt.NDArray[np.float32]
U32 = npt.NDArray[np.uint32]

# One record per row: what SamplingRows keeps and what native code reads (C layout, aligned).
ROW = np.dtype(
    [
        ("seed", np.uint64),
        ("min_position", np.int64),  # up to this position stop ids are banned (min_tokens)
        ("top_p", np.float64),  # 1: all
        ("temperature", np.float32),  # 0: greedy
        ("min_p", np.float32),  # 0: all
        ("repetition_penalty", np.float32),  # 1: none
        ("frequency_penalty", np.float32),  # 0: none
        ("presence_penalty", np.float32),  # 0: none
        ("top_k", np.int32),  # 0: all
        ("sample_index", np.uint32),
        ("num_logprobs", np.int32),  # -1: not asked for; 0: the drawn token's only
    ],
    align=True,
)


def drawn_free(rows: npt.NDArray[Any]) -> npt.NDArray[np.bool_]:
    """Whether such a row [R] of dtype ROW is drawn without its mask first (Sampler, step 7).

    A greedy one may be too: the likeliest token, if it is allowed, is the likeliest of those allowed.
    """
    plain = (rows["min_p"] == 0) & (rows["top_k"] == 0) & (rows["top_p"] == 1)
    found: npt.NDArray[np.bool_] = plain | (rows["temperature"] == 0)
    return found


_NO_TOKENS, _NO_VALUES = np.zeros(0, np.int32), np.zeros(0, np.float32)


@dataclass(frozen=True, slots=True, eq=False)
class TokenLists:
    """One list of (token, value) per row, stored end to end; most rows' lists are empty.

    Attributes:
        starts [R + 1] int64: row r owns entries starts[r] <= e < starts[r + 1].
        tokens [E] int32: no token twice in one row.
        values [E] float32: what they mean is said where the lists are used.
    """

    starts: I64
    tokens: I32
    values: F32

    @classmethod
    def of(cls, lists: Sequence[tuple[I32, F32] | None]) -> TokenLists:
        """Concatenate one (tokens, values) per row; None is an empty list."""
        full = [pair for pair in lists if pair is not None]
        if not full:
            return cls.none(len(lists))
        starts = np.zeros(len(lists) + 1, np.int64)
        np.cumsum([0 if pair is None else len(pair[0]) for pair in lists], out=starts[1:])
        tokens = np.concatenate([pair[0] for pair in full])
        return cls(starts, tokens, np.concatenate([pair[1] for pair in full]))

    @classmethod
    def none(cls, rows: int) -> TokenLists:
        """An empty list for each row."""
        return cls(np.zeros(rows + 1, np.int64), _NO_TOKENS, _NO_VALUES)

    def row(self, index: int) -> tuple[I32, F32]:
        span = slice(int(self.starts[index]), int(self.starts[index + 1]))
        return self.tokens[span], self.values[span]

    @property
    def empty(self) -> bool:
        return not len(self.tokens)


@dataclass(frozen=True, slots=True, eq=False)
class SamplingBatch:
    """R rows to draw for, in the order of the logits' rows. Made by SamplingRows.batch.

    Attributes:
        rows [R] of dtype ROW: each row's numbers.
        positions [R] int64: index in its sequence of the token to draw (= tokens before it).
        bias: logit_bias; values are added to the logits.
        banned: tokens that must not come yet (min_tokens); values are unused.
        seen: rows with penalties: every token of prompt and output; values count it in the output.
        mask [R, ceil(V / 32)] uint32: bit t % 32 of word t // 32 is set where token t may be drawn
            (allowed_token_ids, bad_words, grammars); None: no row has such limits.
        errors: index into the batch -> why this row's limits cannot be followed any further.
        beams: index of each beam that has limits or edits -> the token that it must go on with, or None;
            sampler.with_candidates scores what may follow.
    """

    rows: npt.NDArray[Any]
    positions: I64
    bias: TokenLists
    banned: TokenLists
    seen: TokenLists
    mask: U32 | None = None
    errors: Mapping[int, str] = field(default_factory=dict)
    beams: Mapping[int, int | None] = field(default_factory=dict)

    def __len__(self) -> int:
        return len(self.positions)

    @property
    def edits(self) -> bool:
        """Whether any row's logits are changed before the draw."""
        return not (self.bias.empty and self.banned.empty and self.seen.empty and self.mask is None)
