"""ModelDrafts: a proposer whose drafts a model draws, one token of every row a forward.

    known tokens of a row        0 ................. 19 20        20: drawn by the target just now
    first forward                          [17  18  19  20]      what the drafter lacks, mostly the last one
    what it draws                                          21
    second forward                                        [21]
    what it draws                                              22

While it drafts, drafted tokens stand behind the row's own in RequestStates, and its length counts them; then
the length is what it was. So a forward's batch is gathered, and drawn from, as the target's are. Each token
is drawn with what the row asks of the sampler, and with its position's noise: where the two models say nearly
the same, the target draws the same token.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np

from octavo.engine.step_plan import RowStep, StepPlan
from octavo.kernels.draws import idle_rows
from octavo.kernels.forward_batch import ForwardBatch
from octavo.kernels.ops import Backend, DecodeRows, Program, RowDecoder
from octavo.params.drafts import Draft
from octavo.runtime.draft_pages import LoosePages, Written
from octavo.runtime.states import RequestStates, gather_batch
from octavo.sampling.native import NativeSampler, make_sampler
from octavo.sampling.sampler import RowError
from octavo.sampling.sampling_batch import SamplingBatch, TokenLists
from octavo.sampling.sampling_rows import SamplingRows
from octavo.spec.base import Begin, Drafting


class ModelDrafts:
    """A spec.base.Proposer.

    Args:
        drafting: what drafts. program: its forward, captured over the target's cache.
        loose: pages for what is drafted behind a row's own pages.
        written: which tokens have the keys and values that it reads.
        max_tokens: of a forward; what a row lacks beyond it is computed in later steps.

    Attributes:
        seconds: spent on drafts so far, but for prompts. forwards: how many there were.
        last_rows, last_seconds: of one of the last forwards, where each computed a token of the same rows.
        caught_up: (tokens, rows drawn of, seconds) of the last drafts' forward that computed more of a row
            than a draft may have left, if there was one.
    """

    def __init__(
        self, drafting: Drafting, program: Program, backend: Backend, *, loose: LoosePages,
        written: Written, max_tokens: int,
    ) -> None:  # fmt: skip
        self._drafting, self._program, self._backend = drafting, program, backend
        self.loose, self._written, self.max_tokens = loose, written, max_tokens
        self._sampler = make_sampler(backend, drafting.vocab_size)
        self._states: RequestStates
        self._samplings: SamplingRows
        self._decoder: RowDecoder | None = None
        self._ends: dict[int, int] = {}  # row -> slots that its pages were given for
        self.seconds, self.forwards = 0.0, 0
        self.last_rows, self.last_seconds = 0, 0.0
        self.caught_up: list[tuple[int, int, float]] = []

    def attach(self, states: RequestStates, samplings: SamplingRows, vocab_size: int) -> None:
        """The rows that are drafted for, and the tokens of the target. Once, before anything else."""
        self._states, self._samplings, self._vocab_size = states, samplings, vocab_size
        self._longest = min(states.tokens.shape[1] - 1, self._drafting.max_position + 1)
        if isinstance(self._sampler, NativeSampler):
            rows = DecodeRows(
                states.tokens, states.length, states.pages, states.page_size, samplings.records,
                states.sliding_pages,
            )  # fmt: skip
            self._decoder = self._backend.decoder(self._program, self._sampler.native, rows)

    @property
    def nbytes(self) -> int:
        return self._written.nbytes

    @property
    def activation_bytes(self) -> int:
        """Of the program's buffers; 0 where the backend allocates as it goes."""
        return int(getattr(self._program, "nbytes", 0))

    def follow(self, plan: StepPlan) -> None:
        """The step's pages are about to be given, copied and loaded."""
        self._written.follow(plan)
        for step in plan.steps:
            self._ends[step.row] = step.start + step.count

    def written(self, row: int, length: int) -> int:
        """How many of a row's tokens the drafter need not compute, of so many known ones."""
        return self._written.count(self._states, row, length)

    def compute_alone(self, batch: ForwardBatch, rows: Sequence[int]) -> None:
        """Compute and draw, for whoever measures that; nothing comes of it. The rows are nobody's yet."""
        none, at = TokenLists.none(len(rows)), np.ones(len(rows), np.int64)
        records = idle_rows(len(rows))
        self._sampler.sample(
            self._program.replay(batch), SamplingBatch(records, at, none, none, none, edits=False)
        )

    def start(self, row: int, begin: Begin) -> None:
        pass  # the row's tokens are in RequestStates

    def remove(self, row: int) -> None:
        pass

    def observe(self, row: int, tokens: Sequence[int]) -> None:
        pass

    def reset(self) -> None:
        pass  # what pages hold is as true as before

    def propose(self, most: Mapping[int, int]) -> dict[int, Draft]:
        begin, states, before = time.perf_counter(), self._states, self.forwards
        self.caught_up.clear()
        known = {row: states.length.item(row) for row in most}
        wanted = {row: self._fitting(row, known[row], count) for row, count in most.items()}
        try:
            going = self._catch_up({row: count for row, count in wanted.items() if count > 0}, known)
            drafting = list(going)
            while going := [row for row in going if states.length.item(row) - known[row] < wanted[row]]:
                starts = [states.length.item(row) - 1 for row in going]
                steps = [RowStep(row, at, 1, (), True) for row, at in zip(going, starts, strict=True)]
                going = self._draw(steps, known)
            drafts = {row: states.tokens[row, known[row] : states.length[row]].tolist() for row in drafting}
        finally:
            for row, length in known.items():
                states.length[row] = length
        for row, tokens in drafts.items():  # (the last one was drawn, and not computed)
            self._written.wrote(states, row, known[row], tokens[:-1], self._held(row))
        took, forwards = time.perf_counter() - begin, self.forwards - before
        caught_up = len(self.caught_up)
        if not caught_up:
            self.seconds += took
        # (A forward that catches up says nothing of those that draft one token of each row.)
        alike = not caught_up and {len(tokens) for tokens in drafts.values()} == {forwards}
        self.last_rows, self.last_seconds = (len(drafts), took / forwards) if alike else (0, 0.0)
        return {row: Draft.chain(tokens) for row, tokens in drafts.items() if tokens}

    def _fitting(self, row: int, length: int, count: int) -> int:
        """As many tokens as may be drafted, with pages for them; 0 where the drafter lacks a word."""
        count = min(count, self._longest - length)
        if count <= 0:
            return 0
        vocabulary = self._drafting.vocab_size
        if vocabulary < self._vocab_size and self._states.tokens[row, :length].max() >= vocabulary:
            return 0
        held, needed = self._held(row), (length + count - 2) // self._states.page_size + 1
        if needed > held:
            self.loose.lend(self._states, row, held, needed)
        return count

    def _held(self, row: int) -> int:
        """Pages of the row's table that are its own."""
        return -(-self._ends[row] // self._states.page_size)

    def _catch_up(self, wanted: Mapping[int, int], known: Mapping[int, int]) -> list[int]:
        """Compute what the drafter lacks of these rows, and draw a token of those that lack nothing then.

        What does not fit into one forward is computed in the next step, the rows that lack least first.
        """
        states, left = self._states, self.max_tokens
        done = {row: self._written.count(states, row, known[row]) for row in wanted}
        steps: list[RowStep] = []
        for row in sorted(wanted, key=lambda each: known[each] - done[each]):
            count = min(known[row] - done[row], left)
            if count <= 0:
                break
            left -= count
            steps.append(RowStep(row, done[row], count, (), done[row] + count == known[row]))
        begin = time.perf_counter()
        going = self._draw(steps, known) if steps else []
        if any(step.count > wanted[step.row] + 1 for step in steps):  # no draft has left so many
            took = time.perf_counter() - begin
            self.caught_up.append((sum(step.count for step in steps), len(going), took))
        for step in steps:
            tokens = states.tokens[step.row, step.start : step.start + step.count].tolist()
            self._written.wrote(states, step.row, step.start, tokens, self._held(step.row))
        return going

    def _draw(self, steps: Sequence[RowStep], known: Mapping[int, int]) -> list[int]:
        """Compute the steps, draw and append. Returns the rows that have drawn."""
        self.forwards += 1
        rows = [step.row for step in steps if step.sample]
        starts = [step.start + step.count - 1 for step in steps if step.sample]
        single = len(rows) == len(steps) and all(step.count == 1 for step in steps)
        if self._decoder is not None and single and self._samplings.others(rows, starts) is None:
            drawn = self._decoder.step(rows, starts)
            return [row for row, token in zip(rows, drawn, strict=True) if token >= 0]
        logits = self._program.replay(gather_batch(steps, self._states))
        if not rows:
            return []
        found = self._sampler.sample(logits, self._asked(rows, [at + 1 for at in starts], known))
        going: list[int] = []
        for row, token in zip(rows, found, strict=True):
            if not isinstance(token, RowError):  # of a grammar that ends there, or numbers that are none
                self._states.append(row, token.token_id)
                going.append(row)
        return going

    def _asked(
        self, rows: Sequence[int], positions: Sequence[int], known: Mapping[int, int]
    ) -> SamplingBatch:
        """What these rows ask of the sampler, their drafted tokens counted as output; but no scores."""
        states = self._states
        if self._drafting.vocab_size == self._vocab_size:
            ahead = [states.tokens[row, known[row] : states.length[row]].tolist() for row in rows]
            batch = replace(self._samplings.batch(rows, positions, ahead), beams={}, after=None)
        else:  # masks and lists are of the target's words
            none = TokenLists.none(len(rows))
            at = np.array(positions, np.int64)
            batch = SamplingBatch(self._samplings.records[list(rows)], at, none, none, none, edits=False)
        records = batch.rows.copy()
        records["num_logprobs"] = -1
        return replace(batch, rows=records)
