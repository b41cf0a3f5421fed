"""RequestStates: what the runner remembers per row, as arrays, so that a step is a few gathers.

    row      0        1        2   ...  max_num_seqs - 1
    tokens   [ids of the prompt, then of the answer ......]   [rows, max_model_len + 1]
    length   how many of them are known                       [rows]
    pages    [page of slots 0.., page of slots 16.., ...]     [rows, max_pages]
    local    the same of the layers with a window, where     [rows, max_pages]
             these have pages of their own
    cross    the same of the encoder's keys and values        [rows, max_cross_pages], for models with one

With a window, pages that it has passed are somebody else's (those of `local`, where there is one): spare_page
stands in their places, which is zero for ever. (Kernels mask what lies before the window, and may read a few
positions of it.)

A row belongs to a request until it ends or is preempted. The runner appends the tokens it draws;
the engine never sends a token twice.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from octavo.engine.plan import NewRow, RowStep


@dataclass(frozen=True, slots=True)
class Window:
    """What rows forget of the pages that their windows have passed.

    Attributes:
        tokens: that the widest window sees; None: pages are passed by none.
        spare_page: stands in for what is forgotten. local: that is pages of `local`.
    """

    tokens: int | None = None
    spare_page: int = 0
    local: bool = False


NO_WINDOW = Window()


class RequestStates:
    """Arrays [max_num_seqs, ...], touched lazily by the system, so unused rows cost no memory."""

    def __init__(
        self,
        max_num_seqs: int,
        max_model_len: int,
        page_size: int,
        max_encoder_len: int = 0,
        window: Window = NO_WINDOW,
    ) -> None:
        self.page_size, self.window, self._spare = page_size, window.tokens, window.spare_page
        self._passed = [0] * max_num_seqs  # leading pages of each row's table that are spare_page
        max_pages = -(-max_model_len // page_size)
        # One more than fits: the last sampled token is known, but never computed.
        self.tokens = np.zeros((max_num_seqs, max_model_len + 1), np.int32)
        self.length = np.zeros(max_num_seqs, np.int64)
        self.pages = np.zeros((max_num_seqs, max_pages), np.int32)
        self.local_pages = np.zeros((max_num_seqs, max_pages), np.int32) if window.local else None
        self._windowed = self.pages if self.local_pages is None else self.local_pages
        self.has_encoder = max_encoder_len > 0
        self.cross = np.zeros((max_num_seqs, -(-max_encoder_len // page_size)), np.int32)
        self.cross_length = np.zeros(max_num_seqs, np.int32)

    @property
    def nbytes(self) -> int:
        local = 0 if self.local_pages is None else self.local_pages.nbytes
        return self.tokens.nbytes + self.length.nbytes + self.pages.nbytes + local

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
        local = self.local_pages
        if step.copied_page is not None:
            self.pages[step.row, step.start // self.page_size] = step.copied_page
            if local is not None:
                assert step.copied_local_page is not None
                local[step.row, step.start // self.page_size] = step.copied_local_page
        if step.pages:
            end = -(-(step.start + step.count) // self.page_size)
            have = end - len(step.pages)
            self.pages[step.row, have:end] = step.pages
            if local is not None:
                local[step.row, have:end] = step.local_pages

    def pass_window(self, step: RowStep) -> None:
        """Forget the pages that none of the step's tokens, nor a later one, sees anything of."""
        assert self.window is not None
        first, passed = max(step.start - self.window + 1, 0) // self.page_size, self._passed[step.row]
        if first > passed:
            self._windowed[step.row, passed:first] = self._spare
            self._passed[step.row] = first

    def append(self, row: int, token_id: int) -> None:
        length = int(self.length[row])
        self.tokens[row, length] = token_id
        self.length[row] = length + 1
