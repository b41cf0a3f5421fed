"""The messages between the engine and the runtime: StepPlan out, StepResult back. Plain ints only.

    Scheduler.schedule() -> StepPlan -> Executor.submit -> Handle.result() -> StepResult -> update

A request that runs owns a *row*, a small integer that stays its own until it ends or is preempted.
The runner keeps per row what would be too large to send with every step: token ids, page table,
sampling parameters. Tokens sampled by the runner are appended to the row by the runner itself, so
the engine may plan the next step before it has seen them.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Protocol

from octavo.params import SampledToken as SampledToken  # the sampler, a floor below, makes them
from octavo.params import SamplingParams

PageSave = tuple[int, int, bytes]
"""(page, block of the file on disk, key): what the prefix cache has evicted."""


@dataclass(frozen=True, slots=True)
class EncoderInput:
    """What a row's cross attention reads: the encoder's input and the pages of its keys and values.

    Attributes:
        compute: the encoder runs over it in this step, before the decoder; otherwise the pages were
            written for an equal input that is in use.
    """

    token_ids: tuple[int, ...]
    pages: tuple[int, ...]
    compute: bool


@dataclass(frozen=True, slots=True)
class NewRow:
    """A request enters a row: for the first time, or again after preemption.

    Attributes:
        row: 0 <= row < max_num_seqs; free until now.
        token_ids: all tokens known so far, the prompt and what was already generated.
        num_prompt_tokens: how many of them are the prompt (penalties tell them apart).
        seed, sample_index: with the position they key the row's noise.
        encoder: None where the model has no encoder.
        namespace: rows with equal ones may share what was computed of their tokens (Namespace.key).
    """

    row: int
    request_id: str
    token_ids: tuple[int, ...]
    num_prompt_tokens: int
    params: SamplingParams
    seed: int
    sample_index: int
    encoder: EncoderInput | None = None
    namespace: str | None = None


@dataclass(slots=True)
class RowStep:
    """What one row computes in one step: the tokens at positions [start, start + count).

    (Not frozen, because one is made per running request and step, and freezing doubles the time.)

    Attributes:
        pages: new page ids at the end of the row's page table, which covers just start + count slots then:
            what rejected drafts have left beyond that is not in it any more. (The first step of a row brings
            its cached pages too.)
        copied_page: takes the place of the page that holds position start, which others share; the
            plan's copies fill it (copy-on-write). None: nothing is replaced.
        sample: the last computed token is the last known one, so a next token is drawn after it.
        drafts: draft tokens, the last len(drafts) of the count; they are not yet the row's own. Each lies in
            the slot of its index; parents: of each, where they are a tree (engine.drafts).
        sliding_pages, copied_sliding_page: the sliding pages of `pages` and `copied_page`, where the
            sliding-window layers have pages of their own (groups.sliding_pages). A page behind the window may
            have none (NO_PAGE), and is not read.
    """

    row: int
    start: int
    count: int
    pages: tuple[int, ...]
    sample: bool
    drafts: tuple[int, ...] = ()
    copied_page: int | None = None
    sliding_pages: tuple[int, ...] = ()
    copied_sliding_page: int | None = None
    parents: tuple[int, ...] = ()


def counted(steps: Iterable[RowStep]) -> tuple[int, int, float]:
    """(tokens computed, rows of logits drawn from, pairs of a token and one that it attends to) of a step."""
    tokens, sampled, pairs = 0, 0, 0.0
    for step in steps:
        tokens += step.count
        sampled += step.sample + len(step.drafts)
        pairs += step.count * (step.start + (step.count + 1) / 2)
    return tokens, sampled, pairs


@dataclass(slots=True)
class StepPlan:
    """One step. Executed in this order: freed rows, new rows, saves to disk, page copies, loads from disk,
    encoder, decoder, sampling.

    (Neither this nor its result is frozen: what a step makes is made anew every few milliseconds.)

    Attributes:
        freed_rows: rows whose request is gone; named again after a step that failed.
        copies: (source page, destination page) pairs, all read before any is written.
        swaps_out: (page, block of the swap space); swaps_in: (block, page). Part of the copies: all are
            read before any is written.
        saves: pages whose content goes to the disk tier, before anything is written to them.
        loads: (block of the disk tier, page), checked before.
        sliding_sources: page -> its sliding page, for pages that copies, swaps_out and saves read.
        sliding_targets: the same for pages that copies, swaps_in and loads write. A page that is not in these
            has no sliding page to be copied. None: all layers share pages.
    """

    step_id: int
    freed_rows: tuple[int, ...]
    new_rows: tuple[NewRow, ...]
    steps: tuple[RowStep, ...]
    copies: tuple[tuple[int, int], ...] = ()
    swaps_out: tuple[tuple[int, int], ...] = ()
    swaps_in: tuple[tuple[int, int], ...] = ()
    saves: tuple[PageSave, ...] = ()
    loads: tuple[tuple[int, int], ...] = ()
    sliding_sources: Mapping[int, int] | None = None
    sliding_targets: Mapping[int, int] | None = None

    @property
    def num_tokens(self) -> int:
        tokens = 0
        for step in self.steps:
            tokens += step.count
        if self.new_rows:
            tokens += sum(len(encoder.token_ids) for encoder in self.encodes)
        return tokens

    @property
    def moves_pages(self) -> bool:
        """Whether anything is saved, copied or loaded."""
        return bool(self.copies or self.swaps_out or self.swaps_in or self.saves or self.loads)

    @property
    def encodes(self) -> tuple[EncoderInput, ...]:
        """What the encoder computes in this step, each whole."""
        return tuple([new.encoder for new in self.new_rows if new.encoder and new.encoder.compute])


@dataclass(slots=True)
class StepResult:
    """Tokens drawn per row (more than one when drafts were accepted), rows that failed, new drafts.

    Attributes:
        tokens: row -> tokens in order; every RowStep with sample=True is here or in errors.
        errors: row -> one-line message; the request of that row ends, the others go on.
        drafts: row -> proposed continuation of its tokens, for the row's next step to verify. parents: of
            the rows whose drafts are trees.
        prompt_logprobs: row -> (position of the first, the prompt's own tokens from there on with
            their logprobs), for rows whose params ask for them.
        vectors: row -> the pooled hidden states of its prompt; the one token of such a row is none.
    """

    step_id: int
    tokens: dict[int, tuple[SampledToken, ...]]
    errors: dict[int, str]
    drafts: dict[int, tuple[int, ...]] = field(default_factory=dict)
    prompt_logprobs: dict[int, tuple[int, tuple[SampledToken, ...]]] = field(default_factory=dict)
    vectors: dict[int, tuple[float, ...]] = field(default_factory=dict)
    parents: dict[int, tuple[int, ...]] = field(default_factory=dict)


class Handle(Protocol):
    """A submitted step."""

    def result(self) -> StepResult:
        """Wait for the step and return what it drew."""
        ...


class Executor(Protocol):
    """Who executes plans. Steps are submitted in order; at most two are in flight."""

    def submit(self, plan: StepPlan) -> Handle: ...
