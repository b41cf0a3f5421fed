"""SamplingBatch: what one step's R sampled rows ask for. Frozen, and passed as an argument."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy.typing as npt

from octavo.kernels.draws import F32, I32, I64, ROW, U32, Boost, TokenLists, drawn_free

__all__ = ["F32", "I32", "I64", "ROW", "U32", "Boost", "SamplingBatch", "TokenLists", "drawn_free"]


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
        beams: index of each beam that has limits or edits -> the token that it must go on with, or None.
        boost: tokens that are more likely, or less; None: no row has any.
        after: scores what may follow beams (candidates.py), of what is drawn, logits and this.
        edits: False: no row's logits are changed before the draw.
    """

    rows: npt.NDArray[Any]
    positions: I64
    bias: TokenLists
    banned: TokenLists
    seen: TokenLists
    mask: U32 | None = None
    errors: Mapping[int, str] = field(default_factory=dict)
    beams: Mapping[int, int | None] = field(default_factory=dict)
    boost: Boost | None = None
    edits: bool = True
    after: Callable[..., list[Any]] | None = None

    def __len__(self) -> int:
        return len(self.positions)
