"""SchedulerConfig: the numbers that the engine needs, all resolved."""

from __future__ import annotations

from dataclasses import dataclass, field

from octavo.checks import need, one_of
from octavo.errors import InvalidRequestError

MAX_IN_FLIGHT = 2
"""Steps that may be planned before the first one's result."""

POLICIES = ("fcfs", "priority", "lpm")
"""How requests of equal priority enter, which all obey: in order of arrival ("fcfs", and "priority", with
which alone the server takes negative ones), or the longest cached prefix first ("lpm", SGLang's name)."""


@dataclass(frozen=True, slots=True)
class SchedulerConfig:
    """The numbers that the engine needs, all resolved.

    Attributes:
        num_pages: pages in the pool, each of page_size KV slots.
        max_num_batched_tokens: token budget of one step.
        step_target_s: while anything decodes, a step should take no longer than this: the budget is then also
            bounded by the measured rate (TokenBudget, which aims at less). None: tokens only.
        max_waiting: waiting sequences above this many are refused (OverloadedError); each of n is one.
        num_swap_pages: blocks of the swap space, for pages of preempted requests; swap_page_s: seconds
            that copying a page takes, measured when the model was loaded.
        scheduling_policy, fair_share: who enters next, see engine.admission.QueueOrder.
        max_encoder_len: tokens of an encoder's input, computed in one step; 0: the model has no encoder.
        window: tokens that the model's widest sliding window sees; None: some layer sees all.
        sliding_window: tokens that the sliding-window layers see, where other layers see all and these have
            pages of their own: num_sliding_pages, at most num_pages. None: all layers share pages.
        max_sampled_rows: rows of logits that a step may draw from, verified drafts included; 0: as many as it
            has tokens.
        max_sequences: most sequences that run and wait.
    """

    num_pages: int
    page_size: int = 16
    max_model_len: int = 8192
    max_num_seqs: int = 64
    max_num_batched_tokens: int = 2048
    step_target_s: float | None = None
    enable_prefix_caching: bool = True
    max_waiting: int = 1024
    num_swap_pages: int = 0
    swap_page_s: float = 0.0
    scheduling_policy: str = "fcfs"
    fair_share: int = 16
    max_encoder_len: int = 0
    window: int | None = None
    sliding_window: int | None = None
    num_sliding_pages: int = 0
    max_sampled_rows: int = 0
    max_sequences: int = field(init=False)

    @property
    def pages_at_a_time(self) -> int:
        """Pages that the longest sequence needs at a time, its encoder's input included."""
        own = pages_at_a_time(self.max_model_len, self.page_size, self.window, self.max_num_batched_tokens)
        return own + -(-self.max_encoder_len // self.page_size)

    @property
    def sliding_pages_at_a_time(self) -> int:
        """Pages of sliding-window layers that the longest sequence needs at a time."""
        return pages_at_a_time(
            self.max_model_len, self.page_size, self.sliding_window, self.max_num_batched_tokens
        )

    def __post_init__(self) -> None:
        object.__setattr__(self, "max_sequences", self.max_num_seqs + self.max_waiting)
        one_of("scheduling_policy", self.scheduling_policy, POLICIES)
        for name in (
            "num_pages",
            "page_size",
            "max_model_len",
            "max_num_seqs",
            "max_num_batched_tokens",
            "fair_share",
        ):
            need(getattr(self, name) >= 1, f"must be at least 1, not {getattr(self, name)}", name)
        rows = self.max_sampled_rows
        drawn = rows == 0 or rows >= self.max_num_seqs
        need(drawn, f"{rows} is below max_num_seqs {self.max_num_seqs}", "max_sampled_rows")
        need(self.window is None or self.window >= 1, f"must be at least 1, not {self.window}", "window")
        if (needed := self.pages_at_a_time) > self.num_pages:
            encoder = f" and max_encoder_len {self.max_encoder_len}" if self.max_encoder_len else ""
            window = f" with a window of {self.window}" if self.window else ""
            raise InvalidRequestError(
                f"max_model_len {self.max_model_len}{window}{encoder} needs {needed} pages, "
                f"the pool has {self.num_pages}",
                "max_model_len",
            )
        if self.sliding_window is not None:
            self._check_sliding(self.sliding_window)
        if not 0 <= self.max_encoder_len <= self.max_num_batched_tokens:
            raise InvalidRequestError(
                f"an encoder input of {self.max_encoder_len} tokens is computed in one step: "
                f"max_num_batched_tokens {self.max_num_batched_tokens} must hold it",
                "max_num_batched_tokens",
            )

    def _check_sliding(self, window: int) -> None:
        if window < 1 or self.window is not None:
            raise InvalidRequestError(
                f"sliding_window must be at least 1, of a model without a window everywhere, not {window}",
                "sliding_window",
            )
        if not self.sliding_pages_at_a_time <= self.num_sliding_pages <= self.num_pages:
            raise InvalidRequestError(
                f"max_model_len {self.max_model_len} with a window of {window} in some layers needs "
                f"{self.sliding_pages_at_a_time} sliding pages, at most {self.num_pages} are of use, and "
                f"num_sliding_pages is {self.num_sliding_pages}",
                "num_sliding_pages",
            )


def pages_at_a_time(length: int, page_size: int, window: int | None, step_tokens: int) -> int:
    """Pages that a sequence of this length needs at a time.

    With a window that is what the next token sees and what the steps in flight write.
    """
    whole = -(-length // page_size)
    if window is None:
        return whole
    return min(whole, -(-(window + MAX_IN_FLIGHT * step_tokens - 2) // page_size) + 1)
