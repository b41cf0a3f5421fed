"""SamplingRows: what the sampler must remember of each row from step to step.

Each request keeps one permanent row; a step gathers the rows that it samples into a SamplingBatch. Most rows
are numbers alone. What else a row asks for stands in its Wishes, and costs the steps that the row is in.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from octavo.params import SEED_MASK, SamplingParams
from octavo.sampling.candidates import with_candidates
from octavo.sampling.constraints import AllowedTokens, Constraint, ConstraintError, full_mask
from octavo.sampling.limits import LimitMasks, RowLimits
from octavo.sampling.sampling_batch import ROW, U32, SamplingBatch, TokenLists, drawn_free
from octavo.sampling.watermark import GreenLists, Marked
from octavo.sampling.wishes import OtherRows, TokenCounts, Wishes, bias_lists, stops


class SamplingRows:
    """Owner of the sampling state of max_rows rows, each in use between add() and remove().

    Args:
        max_rows: rows are numbered 0 <= row < max_rows.
        vocab_size: width of the logits.
        eos_token_ids: end a sequence, so they are banned until min_tokens (unless ignore_eos).
        mask_threads: compute the masks of rows with grammars.

    Attributes:
        row_mask [ceil(V / 32)]: where mask() leaves its answer.
        green: the lists of rows with a watermark.
    """

    def __init__(
        self, max_rows: int, vocab_size: int, eos_token_ids: Sequence[int] = (), mask_threads: int = 1
    ) -> None:
        self._vocab_size = vocab_size
        self._eos = tuple(eos_token_ids)
        self._rows = np.zeros(max_rows, ROW)
        self._wishes: dict[int, Wishes] = {}  # of rows that have any
        self._limit_masks = LimitMasks(vocab_size, mask_threads)
        self.green = GreenLists(vocab_size)
        self.row_mask = full_mask(1, vocab_size)[0]
        self._mask_pointer = self.row_mask.ctypes.data
        self._gathered_rows: Sequence[int] | None = None
        self._nothing = TokenLists.none(0)
        self._gathered = self._rows[:0], self._nothing

    def add(
        self,
        row: int,
        params: SamplingParams,
        seed: int,
        sample_index: int,
        token_ids: Sequence[int],
        num_prompt_tokens: int,
    ) -> None:
        """A sequence enters a row: its prompt, and behind it what it has generated already (after a
        preemption, or where a request began with it): output to penalties, min_tokens and constraints.

        Raises:
            InvalidRequestError: logit_bias names a token beyond the vocabulary. The row stays free.
        """
        self.remove(row)
        bias = bias_lists(params.logit_bias, self._vocab_size) if params.logit_bias else None
        self._gathered_rows = None
        own = {
            "seed": seed & SEED_MASK,
            "min_position": num_prompt_tokens + params.min_tokens,
            "sample_index": sample_index,
            "num_logprobs": -1 if params.logprobs is None else params.logprobs,
        }
        names = ROW.names or ()
        self._rows[row] = tuple(own[name] if name in own else getattr(params, name) for name in names)
        counts, limits, constraints = None, None, _constraints(params)
        mark = None if params.watermark is None else Marked.of(params.watermark, token_ids)
        if params.repetition_penalty != 1 or params.frequency_penalty or params.presence_penalty:
            prompt, output = token_ids[:num_prompt_tokens], token_ids[num_prompt_tokens:]
            counts = TokenCounts(prompt, output, self._vocab_size)
        if constraints:
            narrowed = not drawn_free(self._rows[row])
            limits = RowLimits(constraints, list(token_ids[num_prompt_tokens:]), narrowed)
        banned = stops(params, self._eos, self._vocab_size) if params.min_tokens else None
        scored, beam = params.logprobs is not None, params.beam_search is not None
        if scored or beam or any(each is not None for each in (bias, banned, counts, limits, mark)):
            until = num_prompt_tokens + params.min_tokens
            self._wishes[row] = Wishes(bias, banned, until, counts, limits, scored, mark, beam)

    def remove(self, row: int) -> None:
        """The row is free again. Free rows may be removed too."""
        self._wishes.pop(row, None)

    @property
    def records(self) -> npt.NDArray[Any]:
        """Each row's numbers, of dtype ROW; add() changes them."""
        return self._rows

    def others(self, rows: Sequence[int], starts: Sequence[int]) -> OtherRows | None:
        """Of rows that draw the token after starts[i]: those that ask for more than their record says."""
        if self._wishes.keys().isdisjoint(rows):
            return None
        others = OtherRows()
        for place, row in enumerate(rows):
            wishes = self._wishes.get(row)
            if wishes is None:
                continue
            if wishes.needs_sampler(starts[place] + 1):
                others.left.append(place)
            elif wishes.limits is not None:
                others.asked.append(place)
            elif wishes.scored:
                others.scored.append(place)
                others.most = max(others.most, int(self._rows["num_logprobs"][row]))
            elif wishes.mark is not None:
                others.marked[place] = wishes.mark.before()
        return others if any((others.left, others.asked, others.scored, others.marked)) else None

    def masks_after(self, rows: Sequence[int]) -> tuple[U32, dict[int, str]]:
        """(which tokens may follow in rows whose tokens were not taken, place -> why a row's limits cannot
        be followed), computed on several threads at once."""
        limits = {place: self._limits_of(row) for place, row in enumerate(rows)}
        return self._limit_masks.of(limits, [()] * len(rows), alone_s=0)

    def _limits_of(self, row: int) -> RowLimits:
        limits = self._wishes[row].limits
        assert limits is not None, "what refuses is a limit"
        return limits

    def take(self, row: int, token: int) -> bool:
        """Append the token, but not one that a limit of this row forbids: whether it was appended."""
        return self._limits_of(row).take(token)

    def mask(self, row: int) -> str | None:
        """Set `row_mask` to what may follow in a row whose token was not taken; why that is not known."""
        alone = self._limits_of(row).alone
        if alone is not None:
            try:
                alone.fill(self.row_mask, self._mask_pointer)
            except ConstraintError as error:
                return str(error)
            return None
        mask, errors = self.masks_after([row])
        self.row_mask[:] = mask[0]
        return errors.get(0)

    def append_masked(self, row: int, token: int) -> None:
        """Append a token that was drawn under mask(): its grammar is told of it while it is at hand."""
        limits = self._limits_of(row)
        limits.append((token,))
        limits.follow()

    def constrained(self, rows: Sequence[int]) -> bool:
        """Whether any of these rows has a mask to be computed: batch() is then worth a thread of its own."""
        found = (self._wishes.get(row) for row in rows)
        return any(wishes is not None and wishes.limits is not None for wishes in found)

    def follows(self, rows: Sequence[int]) -> bool:
        """Whether the draw of any of these rows depends on which tokens were drawn before it (penalties,
        masks, watermarks): batch() must then know them."""
        found = [self._wishes[row] for row in rows if row in self._wishes]
        return any(
            each is not None for wishes in found for each in (wishes.counts, wishes.limits, wishes.mark)
        )

    def append(self, row: int, token_ids: Sequence[int]) -> None:
        """These tokens are now the row's own output; not so of a beam."""
        wishes = self._wishes.get(row)
        if wishes is None or wishes.beam:
            return
        if wishes.counts is not None:
            wishes.counts.append(token_ids)
        if wishes.limits is not None:
            wishes.limits.append(token_ids)
        if wishes.mark is not None:
            wishes.mark.append(token_ids)

    def batch(
        self, rows: Sequence[int], positions: Sequence[int], ahead: Sequence[Sequence[int]] | None = None
    ) -> SamplingBatch:
        """Gather a step's batch; a row may come several times, once for each position to draw.

        Args:
            rows [R]: in the order of the logits' rows.
            positions [R]: index in its sequence of the token to draw.
            ahead [R]: draft tokens between the row's last own token and the position; penalties
                count them as output. None: no drafts.
        """
        where = np.array(positions, np.int64)
        if rows != self._gathered_rows:  # mostly they are those of the last step
            starts = np.zeros(len(rows) + 1, np.int64)
            none = TokenLists(starts, self._nothing.tokens, self._nothing.values)
            self._gathered = self._rows[np.array(rows, np.intp)], none
            self._gathered_rows = list(rows)
        gathered, none = self._gathered
        known = self._wishes
        wishes = {index: known[row] for index, row in enumerate(rows) if row in known} if known else {}
        if not any(each.edits for each in wishes.values()):
            return SamplingBatch(gathered, where, none, none, none, edits=False)
        drafts: Sequence[Sequence[int]] = [()] * len(rows) if ahead is None else ahead
        mask, errors, forced = self._masks(wishes, drafts)
        early = [index for index, each in wishes.items() if positions[index] < each.min_position]
        counted = {i: each.counts for i, each in wishes.items() if each.counts is not None}
        bias = TokenLists.at(len(rows), {index: each.bias for index, each in wishes.items()})
        banned = TokenLists.at(len(rows), {i: wishes[i].banned for i in early if i not in forced})
        seen = TokenLists.at(len(rows), {i: counts.lists(drafts[i]) for i, counts in counted.items()})
        beams = {index: forced.get(index) for index, each in wishes.items() if each.beam and each.edits}
        marked = {i: each.mark.before(drafts[i]) for i, each in wishes.items() if each.mark is not None}
        boost = self.green.boost(len(rows), marked)
        edits = any(each is not None for each in (mask, boost)) or not all(
            each.empty for each in (bias, banned, seen)
        )
        after = with_candidates if beams else None
        return SamplingBatch(
            gathered, where, bias, banned, seen, mask, errors, beams, boost, edits=edits, after=after
        )

    def _masks(
        self, wishes: Mapping[int, Wishes], drafts: Sequence[Sequence[int]]
    ) -> tuple[U32 | None, dict[int, str], dict[int, int]]:
        """Of a batch: its mask, why limits cannot be followed, and the one token that is forced, by index."""
        limits = {index: each.limits for index, each in wishes.items() if each.limits is not None}
        if not limits:
            return None, {}, {}
        return self._limit_masks.forced(limits, drafts)


def _constraints(params: SamplingParams) -> list[Constraint]:
    constraints: list[Constraint] = list(params.constraints)
    if params.allowed_token_ids is not None:
        constraints.append(AllowedTokens(params.allowed_token_ids))
    return constraints
