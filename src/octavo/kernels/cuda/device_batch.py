"""DeviceBatch: a ForwardBatch's arrays on a device, moved by one copy from pinned memory."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from octavo.kernels.cuda.attention_shape import Queries
from octavo.kernels.cuda.lane import Lane
from octavo.kernels.forward_batch import ForwardBatch

FIELDS = ("token_ids", "positions", "slots", "query_start", "context_lens", "page_tables", "sampled")


def words_of(tree_masks: npt.NDArray[np.uint64]) -> npt.NDArray[np.int32]:
    """Tree masks [T, W] in words of 32 bits [T, 2 W], low ones first."""
    return tree_masks.astype("<u8", copy=False).view(np.int32)


@dataclass(frozen=True, slots=True, eq=False)
class DeviceBatch:
    """int32 tensors of the batch, named as in ForwardBatch.

    Attributes:
        rope_positions: what rotation turns by; replaced: tokens and the rows of theirs (Extras), or None.
        queries: what attention reads; cross: the same over the encoder's pages; sliding: over those of layers
            with a window, where these have pages of their own.
    """

    token_ids: torch.Tensor
    rope_positions: torch.Tensor
    sampled: torch.Tensor
    queries: Queries
    cross: Queries | None = None
    sliding: Queries | None = None
    replaced: tuple[torch.Tensor, torch.Tensor] | None = None

    def of(self, sliding: bool) -> Queries:
        """queries, or those over sliding pages.

        Raises:
            ValueError: the batch lacks them.
        """
        if not sliding:
            return self.queries
        if self.sliding is None:
            raise ValueError("the batch lacks the pages of layers with a window")
        return self.sliding


class Staging(Lane):
    """The arrays of a batch, int32, on the host (pinned, where there is a GPU) and on the device.

    Args:
        shapes: of each of FIELDS; of "trees" [T, 2 W] where sequences may have them; of "sliding_slots" and
            "sliding_tables" where sliding-window layers have pages of their own; of "rope_positions" where
            batches may bring them.
    """

    def __init__(self, shapes: Mapping[str, tuple[int, ...]], device: torch.device) -> None:
        super().__init__({name: (torch.int32, shape) for name, shape in shapes.items()}, device)

    def batch(self, max_query: int, max_context: int) -> DeviceBatch:
        at = self.device
        queries = Queries(
            at["query_start"], at["context_lens"], at["positions"], at["slots"], at["page_tables"],
            max_query, max_context, at.get("trees"),
        )  # fmt: skip
        sliding = None
        if "sliding_tables" in at:
            sliding = replace(queries, slots=at["sliding_slots"], page_tables=at["sliding_tables"])
        return DeviceBatch(
            token_ids=at["token_ids"],
            rope_positions=at.get("rope_positions", at["positions"]),
            sampled=at["sampled"],
            queries=queries,
            sliding=sliding,
        )


def move(batch: ForwardBatch, device: torch.device) -> DeviceBatch:
    """A batch of any shape, for a forward that runs eagerly."""
    arrays: dict[str, Any] = {name: getattr(batch, name) for name in FIELDS}
    if batch.tree_masks is not None:
        arrays["trees"] = words_of(batch.tree_masks)
    if batch.sliding_slots is not None and batch.sliding_tables is not None:
        arrays |= {"sliding_slots": batch.sliding_slots, "sliding_tables": batch.sliding_tables}
    extras = batch.extras
    if extras is not None and extras.rope_positions is not None:
        arrays["rope_positions"] = extras.rope_positions
    staging = Staging({name: array.shape for name, array in arrays.items()}, device)
    host = staging.writable()
    for name, array in arrays.items():
        host[name][...] = array
    staging.send()
    longest = int(np.diff(batch.query_start).max(initial=1))
    moved = staging.batch(longest, int(batch.context_lens.max(initial=1)))
    if extras is not None and extras.replaced is not None and extras.rows is not None:
        there = (torch.tensor(array, device=device) for array in (extras.replaced, extras.rows))
        moved = replace(moved, replaced=(next(there), next(there)))
    if batch.cross_lens is None or batch.cross_tables is None:
        return moved
    cross = replace(
        moved.queries,
        context_lens=torch.tensor(batch.cross_lens, device=device),
        page_tables=torch.tensor(batch.cross_tables, device=device),
        max_context=int(batch.cross_lens.max(initial=1)),
        trees=None,
    )
    return replace(moved, cross=cross)
