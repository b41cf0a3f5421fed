"""From a StepPlan and the rows' states to the ForwardBatch of one step."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from octavo.engine.plan import RowStep
from octavo.kernels.batch import ForwardBatch
from octavo.runtime.states import RequestStates


def gather_batch(steps: Sequence[RowStep], states: RequestStates, every: bool = False) -> ForwardBatch:
    """The batch of these steps, in their order.

    Sampled are the last tokens of the steps that ask for it: drafts come with their own rule.

    Args:
        every: the logits after every token are wanted.
    """
    rows = np.array([s.row for s in steps], np.int32)
    start = np.array([s.start for s in steps], np.int32)
    count = np.array([s.count for s in steps], np.int32)
    query_start = np.zeros(len(steps) + 1, np.int32)
    np.cumsum(count, out=query_start[1:])
    total = int(query_start[-1])
    if total == len(steps):  # every row decodes one token: no repeats to lay out
        row_of, positions = rows, start
    else:
        row_of = np.repeat(rows, count)
        offset = np.arange(total, dtype=np.int32) - np.repeat(query_start[:-1], count)
        positions = np.repeat(start, count) + offset
    page_size = states.page_size
    page = states.pages[row_of, positions // page_size]
    sampled = np.array([i for i, s in enumerate(steps) if s.sample], np.int32)
    last = query_start[1:][sampled] - np.int32(1)
    context = start + count
    width = -(-int(context.max(initial=1)) // page_size)
    return ForwardBatch(
        token_ids=states.tokens[row_of, positions],
        positions=positions,
        slots=page * np.int32(page_size) + positions % np.int32(page_size),
        query_start=query_start,
        context_lens=context,
        page_tables=np.ascontiguousarray(states.pages[rows, :width]),
        sampled=np.arange(total, dtype=np.int32) if every else last,
    )
