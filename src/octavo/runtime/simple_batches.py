"""Batches of a simple shape: rows that compute one token each, and whole inputs of an encoder.

Where the backend has a decoder of its own (kernels.backend.Backend.decoder) it gathers decode steps itself.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from octavo.engine.step_plan import EncoderInput, RowStep
from octavo.kernels.forward_batch import I32, ForwardBatch

if TYPE_CHECKING:
    from octavo.runtime.states import I64, RequestStates


def refusal(steps: Sequence[RowStep], known: I64) -> ValueError:
    """Of the first step that cannot be computed: zeros, or what a row before it left, would be."""
    for step in steps:
        if step.drafts:
            return ValueError(f"row {step.row}: this runner verifies no drafts")
        if step.start + step.count > known[step.row]:
            span = f"[{step.start}, {step.start + step.count})"
            return ValueError(f"row {step.row}: positions {span} go beyond its {known[step.row]} tokens")
    raise AssertionError("nothing speaks against these steps")


def decode_batch(steps: Sequence[RowStep], states: RequestStates, known: I64) -> ForwardBatch:
    """states.gather_batch() where every row computes one token and samples: few calls, as most steps are so.

    A lone row's tokens and pages are views of its state, which changes only between steps.
    """
    page_size, each = states.page_size, _counting(len(steps) + 1)
    width = max(s.start for s in steps) // page_size + 1
    sliding_slots, sliding_tables = _sliding(states, steps, width)
    if len(steps) == 1:
        row, position = steps[0].row, steps[0].start
        if position >= known[row]:
            raise refusal(steps, known)
        page: int = states.pages.item(row, width - 1)
        return ForwardBatch(
            token_ids=states.tokens[row, position : position + 1],
            positions=np.array([position], np.int32),
            slots=np.array([page * page_size + position % page_size], np.int32),
            query_start=each,
            context_lens=np.array([position + 1], np.int32),
            page_tables=states.pages[row : row + 1, :width],
            sampled=each[:1],
            sliding_slots=sliding_slots,
            sliding_tables=sliding_tables,
        )
    rows = np.array([s.row for s in steps], np.int32)
    positions = np.array([s.start for s in steps], np.int32)
    if (positions >= known[rows]).any():
        raise refusal(steps, known)
    index = positions // page_size
    tables = np.ascontiguousarray(states.pages[rows, :width])
    return ForwardBatch(
        token_ids=states.tokens[rows, positions],
        positions=positions,
        slots=(tables[each[:-1], index] - index) * page_size + positions,
        query_start=each,
        context_lens=positions + 1,
        page_tables=tables,
        sampled=each[:-1],
        sliding_slots=sliding_slots,
        sliding_tables=sliding_tables,
    )


def _sliding(
    states: RequestStates, steps: Sequence[RowStep], width: int
) -> tuple[I32, I32] | tuple[None, None]:
    """What layers with a window read and write where each row computes one token; None: as the others."""
    if states.sliding_pages is None:
        return None, None
    rows = np.array([s.row for s in steps], np.int32)
    positions = np.array([s.start for s in steps], np.int32)
    pages = states.sliding_pages[rows, positions // states.page_size]
    slots = pages * np.int32(states.page_size) + positions % np.int32(states.page_size)
    return slots, np.ascontiguousarray(states.sliding_pages[rows, :width])


@lru_cache(maxsize=256)
def _counting(count: int) -> npt.NDArray[np.int32]:
    """0, 1, ... count - 1; not to be written to."""
    numbers = np.arange(count, dtype=np.int32)
    numbers.flags.writeable = False
    return numbers


def encoder_batch(inputs: Sequence[EncoderInput], page_size: int) -> ForwardBatch:
    """The batch of an encoder: these inputs, whole, whose keys and values go to the pages they name."""
    lengths = np.array([len(one.token_ids) for one in inputs], np.int32)
    query_start = np.zeros(len(inputs) + 1, np.int32)
    np.cumsum(lengths, out=query_start[1:])
    tables = np.zeros((len(inputs), max(len(one.pages) for one in inputs)), np.int32)
    for table, one in zip(tables, inputs, strict=True):
        table[: len(one.pages)] = one.pages
    positions = np.concatenate([np.arange(n, dtype=np.int32) for n in lengths])
    page = np.repeat(tables, lengths, axis=0)[np.arange(len(positions)), positions // page_size]
    return ForwardBatch(
        token_ids=np.concatenate([np.array(one.token_ids, np.int32) for one in inputs]),
        positions=positions,
        slots=page * np.int32(page_size) + positions % np.int32(page_size),
        query_start=query_start,
        context_lens=lengths,
        page_tables=tables,
        sampled=np.zeros(0, np.int32),
    )
