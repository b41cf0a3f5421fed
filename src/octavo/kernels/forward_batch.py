"""ForwardBatch: the arrays of one forward pass, frozen, and passed as an argument. Limits of such batches."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from octavo.errors import CapacityError
from octavo.kernels import trees

I32 = npt.NDArray[np.int32]
F32 = npt.NDArray[np.float32]


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class Extras:
    """Parts of a batch that few have. A program takes those alone that Limits.extras named at capture.

    Attributes:
        rope_positions [T]: what rotation turns by in place of positions; attention, windows and noise go
            on with. [T, 3], of one number for each section of a head, is refused so far.
        horizons [T]: the last position that each token sees. Refused so far.
        adapters [T]: whose low-rank weights each token meets; 0: none. Refused so far.
        replaced [n]: tokens, ascending, whose embeddings are not their ids' but
        rows [n, width]: f32, as wide as the table of embeddings; they are taken as they are, not scaled.
    """

    rope_positions: I32 | None = None
    horizons: I32 | None = None
    adapters: I32 | None = None
    replaced: I32 | None = None
    rows: F32 | None = None

    @property
    def names(self) -> frozenset[str]:
        """Of those that are there; rows belong to replaced."""
        return frozenset(name for name in EXTRAS if getattr(self, name) is not None)

    def check(self, num_tokens: int) -> None:
        """
        Raises:
            ValueError: a part does not fit a batch of so many tokens.
        """
        for name in ("rope_positions", "horizons", "adapters"):
            array: I32 | None = getattr(self, name)
            if array is not None and array.shape != (num_tokens,):
                shape = array.shape
                raise ValueError(f"{name} has a number for each of {num_tokens} tokens, not shape {shape}")
        if self.replaced is None or self.rows is None:
            if (self.replaced is None) != (self.rows is None):
                raise ValueError("replaced tokens and their rows come together")
            return
        if self.rows.ndim != 2 or self.replaced.shape != (len(self.rows),):
            raise ValueError(f"rows {self.rows.shape} are not one for each of {self.replaced.shape} replaced")
        ends = np.concatenate([[-1], self.replaced, [num_tokens]])
        if (np.diff(ends) <= 0).any():
            raise ValueError(f"replaced tokens ascend, and are of the batch's {num_tokens}")


EXTRAS = ("rope_positions", "horizons", "adapters", "replaced")
"""What Limits.extras may name."""


@dataclass(frozen=True, slots=True, eq=False)
class ForwardBatch:
    """T tokens of S sequences, R of which are sampled after. Arrays are C-contiguous int32, masks apart.

        tokens   | seq 0 (decode: 1) | seq 1 (a chunk: 5)         | seq 2 ...
        query_start  0                 1                            6

    Attributes:
        token_ids [T]: what is embedded.
        positions [T]: absolute position of each token in its sequence.
        slots [T]: where its K and V go: page * page_size + offset.
        query_start [S + 1]: tokens of sequence s are query_start[s] <= t < query_start[s + 1];
            their positions are consecutive and end at context_lens[s] - 1 (trees excepted).
        context_lens [S]: KV length of each sequence, this step's tokens included.
        page_tables [S, P]: page of positions [i * page_size, (i + 1) * page_size); unused: 0.
        sampled [R]: indices into the tokens whose logits are wanted, ascending.
        cross_lens [S], cross_tables [S, P']: the same of each sequence's encoder pages, which cross
            attention reads; None where the model has no encoder.
        sliding_slots [T], sliding_tables [S, P]: slots and page_tables of the sliding-window layers, where
            these have pages of their own (kernels/split_kv.py); None where all layers share pages.
        tree_masks [T, W]: uint64 words of which tokens of its sequence's step a token sees
            (kernels/trees.py); None: no sequence is a tree. Token i of a tree is stored where
            position context_lens[s] - query_len + i would be; its position is its parent's + 1.
        extras: parts that few batches have; None: none of them.

    Raises:
        ValueError: tree_masks that are not of trees.
    """

    token_ids: I32
    positions: I32
    slots: I32
    query_start: I32
    context_lens: I32
    page_tables: I32
    sampled: I32
    cross_lens: I32 | None = None
    cross_tables: I32 | None = None
    tree_masks: trees.U64 | None = None
    sliding_slots: I32 | None = None
    sliding_tables: I32 | None = None
    extras: Extras | None = None

    def __post_init__(self) -> None:
        if self.tree_masks is not None:
            trees.check(self.tree_masks, self.positions, self.query_start, self.context_lens)

    def slots_of(self, sliding: bool) -> I32:
        """slots, or sliding_slots.

        Raises:
            ValueError: the batch lacks them.
        """
        return _there(self.sliding_slots) if sliding else self.slots

    def tables_of(self, sliding: bool) -> I32:
        """page_tables, or sliding_tables.

        Raises:
            ValueError: the batch lacks them.
        """
        return _there(self.sliding_tables) if sliding else self.page_tables

    @property
    def num_tokens(self) -> int:
        return int(self.token_ids.shape[0])

    @property
    def num_sequences(self) -> int:
        return int(self.context_lens.shape[0])

    @property
    def num_sampled(self) -> int:
        return int(self.sampled.shape[0])


def _there(array: I32 | None) -> I32:
    if array is None:
        raise ValueError("the batch lacks the pages of layers with a window")
    return array


@dataclass(frozen=True, slots=True)
class Limits:
    """Upper bounds of one batch; static buffers are sized by them.

    Attributes:
        sliding: batches have sliding_slots and sliding_tables.
        max_given: rows of the arrays of Rows.GIVEN.
        extras: names of the optional parts that batches may bring (Extras).
    """

    max_tokens: int
    max_sequences: int
    max_sampled: int
    max_pages_per_sequence: int
    sliding: bool = False
    max_given: int = 0
    extras: frozenset[str] = frozenset()

    def check(self, batch: ForwardBatch) -> None:
        """
        Raises:
            CapacityError: the batch is larger than what was planned for.
            ValueError: it brings a part that the program was not captured for.
        """
        if (
            batch.num_tokens > self.max_tokens
            or batch.num_sequences > self.max_sequences
            or batch.num_sampled > self.max_sampled
            or batch.page_tables.shape[1] > self.max_pages_per_sequence
            or (batch.cross_tables is not None and batch.cross_tables.shape[1] > self.max_pages_per_sequence)
        ):
            raise CapacityError(
                f"a batch of {batch.num_tokens} tokens and {batch.num_sequences} sequences exceeds {self}"
            )
        if batch.extras is not None:
            foreign = batch.extras.names - self.extras
            if foreign:
                raise ValueError(f"this program was not captured for {', '.join(sorted(foreign))}")
            batch.extras.check(batch.num_tokens)
