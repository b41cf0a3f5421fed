"""ForwardBatch: the arrays of one forward pass. Frozen, and passed as an argument."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from octavo.kernels import trees

I32 = npt.NDArray[np.int32]


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
        local_slots [T], local_tables [S, P]: slots and page_tables of the layers with a window, where these
            have pages of their own (kernels/split_kv.py); None where all layers share pages.
        tree_masks [T, W]: uint64 words of which tokens of its sequence's step a token sees
            (kernels/trees.py); None: no sequence is a tree. Token i of a tree is stored where
            position context_lens[s] - query_len + i would be; its position is its parent's + 1.

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
    local_slots: I32 | None = None
    local_tables: I32 | None = None

    def __post_init__(self) -> None:
        if self.tree_masks is not None:
            trees.check(self.tree_masks, self.positions, self.query_start, self.context_lens)

    def slots_of(self, local: bool) -> I32:
        """slots, or local_slots.

        Raises:
            ValueError: the batch lacks them.
        """
        return _there(self.local_slots) if local else self.slots

    def tables_of(self, local: bool) -> I32:
        """page_tables, or local_tables.

        Raises:
            ValueError: the batch lacks them.
        """
        return _there(self.local_tables) if local else self.page_tables

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
