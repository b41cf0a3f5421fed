"""RequestStates: what the runner remembers per row, as arrays, so that a step's batch is a few gathers.

    row      0        1        2   ...  max_num_seqs - 1
    tokens   [ids of the prompt, then of the answer ......]   [rows, max_model_len + 1]
    length   how many of them are known                       [rows]
    pages    [page of slots 0.., page of slots 16.., ...]     [rows, max_pages]
    sliding    the same of the layers with a window, where     [rows, max_pages]
             these have pages of their own
    cross    the same of the encoder's keys and values        [rows, max_cross_pages], for models with one

A page out of the window belongs to another request by now (a page of `sliding`, where there is one).
spare_page stands in its place, which is zero for ever: kernels mask what lies before the window, and may
read a few positions of it.

A row belongs to a request until it ends or is preempted. The runner appends the tokens it draws;
the engine never sends a token twice.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from octavo.engine.step_plan import NewRow, RowStep
from octavo.kernels.forward_batch import I32, ForwardBatch
from octavo.runtime.simple_batches import decode_batch, refusal

I64 = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class RowWindow:
    """What rows forget of the pages that their windows have passed.

    Attributes:
        tokens: that the widest window sees; None: pages are passed by none.
        spare_page: stands in for what is forgotten. sliding: that is pages of `sliding`.
    """

    tokens: int | None = None
    spare_page: int = 0
    sliding: bool = False


NO_WINDOW = RowWindow()


class RequestStates:
    """Arrays [max_num_seqs, ...], touched lazily by the system, so unused rows cost no memory."""

    def __init__(
        self,
        max_num_seqs: int,
        max_model_len: int,
        page_size: int,
        max_encoder_len: int = 0,
        window: RowWindow = NO_WINDOW,
    ) -> None:
        self.page_size, self.window, self._spare = page_size, window.tokens, window.spare_page
        self._passed = [0] * max_num_seqs  # leading pages of each row's table that are spare_page
        max_pages = -(-max_model_len // page_size)
        # One more than fits: the last sampled token is known, but never computed.
        self.tokens = np.zeros((max_num_seqs, max_model_len + 1), np.int32)
        self.length = np.zeros(max_num_seqs, np.int64)
        self.pages = np.zeros((max_num_seqs, max_pages), np.int32)
        self.sliding_pages = np.zeros((max_num_seqs, max_pages), np.int32) if window.sliding else None
        self.windowed = self.pages if self.sliding_pages is None else self.sliding_pages
        self.has_encoder = max_encoder_len > 0
        self.cross = np.zeros((max_num_seqs, -(-max_encoder_len // page_size)), np.int32)
        self.cross_length = np.zeros(max_num_seqs, np.int32)

    @property
    def nbytes(self) -> int:
        sliding = 0 if self.sliding_pages is None else self.sliding_pages.nbytes
        return self.tokens.nbytes + self.length.nbytes + self.pages.nbytes + sliding

    def start(self, new: NewRow) -> None:
        count = len(new.token_ids)
        self.tokens[new.row, :count] = new.token_ids
        self.length[new.row] = count
        self._passed[new.row] = 0
        if new.encoder is not None:
            self.cross[new.row, : len(new.encoder.pages)] = new.encoder.pages
            self.cross_length[new.row] = len(new.encoder.token_ids)

    def grow(self, step: RowStep) -> None:
        """Put the step's pages at the end of the row's table; a copied one replaces what it was copied from.

        The table ends with the step's last token then (RowStep.pages). What a draft was given may still
        stand there: the engine has taken it back, and the new pages replace it.
        """
        sliding = self.sliding_pages
        if step.copied_page is not None:
            self.pages[step.row, step.start // self.page_size] = step.copied_page
            if sliding is not None:
                assert step.copied_sliding_page is not None
                sliding[step.row, step.start // self.page_size] = step.copied_sliding_page
        if step.pages:
            end = -(-(step.start + step.count) // self.page_size)
            have = end - len(step.pages)
            self.pages[step.row, have:end] = step.pages
            if sliding is not None:
                sliding[step.row, have:end] = step.sliding_pages

    def pass_window(self, step: RowStep) -> None:
        """Forget the pages that none of the step's tokens, nor a later one, sees anything of."""
        assert self.window is not None
        first, passed = max(step.start - self.window + 1, 0) // self.page_size, self._passed[step.row]
        if first > passed:
            self.windowed[step.row, passed:first] = self._spare
            self._passed[step.row] = first

    def append(self, row: int, token_id: int) -> None:
        length = int(self.length[row])
        self.tokens[row, length] = token_id
        self.length[row] = length + 1


def gather_batch(
    steps: Sequence[RowStep], states: RequestStates, every: bool = False, coming: I64 | None = None
) -> ForwardBatch:
    """The batch of these steps, in their order.

    Sampled are the last tokens of the steps that ask for it.

    Args:
        every: the logits after every token are wanted.
        coming [rows]: tokens of each row that are drawn and not known here yet; None: there are none.

    Raises:
        ValueError: a step has drafts, or computes tokens that nobody knows.
    """
    known = states.length if coming is None else states.length + coming
    if steps and not every and not states.has_encoder and all(s.count == 1 and s.sample for s in steps):
        return decode_batch(steps, states, known)
    rows = np.array([s.row for s in steps], np.int32)
    start = np.array([s.start for s in steps], np.int32)
    count = np.array([s.count for s in steps], np.int32)
    if any(s.drafts for s in steps) or (start + count > known[rows]).any():  # would be computed on zeros
        raise refusal(steps, known)
    query_start = np.zeros(len(steps) + 1, np.int32)
    np.cumsum(count, out=query_start[1:])
    total = int(query_start[-1])
    if total == len(steps):  # every row decodes one token: no repeats to lay out
        row_of, positions = rows, start
    else:
        row_of = np.repeat(rows, count)  # a prompt's chunk: its row once for each token
        offset = np.arange(total, dtype=np.int32) - np.repeat(query_start[:-1], count)
        positions = np.repeat(start, count) + offset
    page_size = states.page_size
    page = states.pages[row_of, positions // page_size]
    sampled = np.array([i for i, s in enumerate(steps) if s.sample], np.int32)
    last = query_start[1:][sampled] - np.int32(1)
    context = start + count
    width = -(-int(context.max(initial=1)) // page_size)
    sliding_slots, sliding_tables = None, None
    if states.sliding_pages is not None:
        sliding_slots = _slots(states.sliding_pages[row_of, positions // page_size], positions, page_size)
        sliding_tables = np.ascontiguousarray(states.sliding_pages[rows, :width])
    cross_lens = states.cross_length[rows] if states.has_encoder else None  # T5 and BART
    cross_tables = None
    if cross_lens is not None:
        used = -(-int(cross_lens.max(initial=1)) // page_size)
        cross_tables = np.ascontiguousarray(states.cross[rows, :used])
    return ForwardBatch(
        token_ids=states.tokens[row_of, positions],
        positions=positions,
        slots=_slots(page, positions, page_size),
        query_start=query_start,
        context_lens=context,
        page_tables=np.ascontiguousarray(states.pages[rows, :width]),
        sampled=np.arange(total, dtype=np.int32) if every else last,
        cross_lens=cross_lens,
        cross_tables=cross_tables,
        sliding_slots=sliding_slots,
        sliding_tables=sliding_tables,
    )


def _slots(pages: I32, positions: I32, page_size: int) -> I32:
    return pages * np.int32(page_size) + positions % np.int32(page_size)
