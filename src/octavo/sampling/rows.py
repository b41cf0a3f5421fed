"""SamplingRows: what the sampler must remember of each row from step to step.

Each request keeps one permanent row; a step gathers the rows that it samples into a SamplingBatch.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from octavo.errors import InvalidRequestError
from octavo.params import SEED_MASK, SamplingParams
from octavo.sampling.batch import F32, I32, ROW, U32, SamplingBatch, TokenLists, drawn_free
from octavo.sampling.constraints import (
    AllowedTokens,
    Constraint,
    ConstraintError,
    ForcedTokensMatcher,
    Matcher,
    full_mask,
    mask_of,
)
from octavo.sampling.grammar import ALONE_S, GrammarMasks, GrammarMatcher


class TokenCounts:
    """Which tokens a sequence holds and how often its output does: what penalties need.

    Memory grows with the distinct tokens of the sequence, not with the vocabulary.
    """

    def __init__(self, prompt: Sequence[int], output: Sequence[int], vocab_size: int) -> None:
        distinct = dict.fromkeys([*prompt, *output])
        self._vocab_size = vocab_size
        self._index = {t: i for i, t in enumerate(t for t in distinct if t < vocab_size)}
        self._tokens = np.zeros(len(self._index) + 64, np.int32)
        self._counts = np.zeros(len(self._tokens), np.float32)
        self._tokens[: len(self._index)] = list(self._index)
        self.append(output)

    def append(self, token_ids: Sequence[int]) -> None:
        """Output tokens were added to the sequence."""
        for token in token_ids:
            if token >= self._vocab_size:  # nothing that logits could name
                continue
            at = self._index.setdefault(token, len(self._index))
            if at == len(self._tokens):
                self._tokens = np.concatenate([self._tokens, np.zeros(at, np.int32)])
                self._counts = np.concatenate([self._counts, np.zeros(at, np.float32)])
            self._tokens[at] = token
            self._counts[at] += 1

    def lists(self, ahead: Sequence[int] = ()) -> tuple[I32, F32]:
        """(tokens, output counts) as they would be after the output tokens `ahead`.

        Valid until the next append.
        """
        size = len(self._index)
        tokens, counts = self._tokens[:size], self._counts[:size]
        if not ahead:
            return tokens, counts
        counts = counts.copy()
        new: dict[int, float] = {}
        for token in ahead:
            at = self._index.get(token)
            if at is not None:
                counts[at] += 1
            elif token < self._vocab_size:
                new[token] = new.get(token, 0.0) + 1.0
        new_tokens = np.fromiter(new.keys(), np.int32, len(new))
        return np.concatenate([tokens, new_tokens]), np.concatenate(
            [counts, np.fromiter(new.values(), np.float32, len(new))]
        )


class SamplingRows:
    """Owner of the sampling state of max_rows rows, each in use between add() and remove().

    Args:
        max_rows: rows are numbered 0 <= row < max_rows.
        vocab_size: width of the logits.
        eos_token_ids: end a sequence, so they are banned until min_tokens (unless ignore_eos).
        mask_threads: compute the masks of rows with grammars.

    Attributes:
        room [ceil(V / 32)]: where mask() leaves its answer.
    """

    def __init__(
        self, max_rows: int, vocab_size: int, eos_token_ids: Sequence[int] = (), mask_threads: int = 1
    ) -> None:
        self._vocab_size = vocab_size
        self._eos = tuple(eos_token_ids)
        self._rows = np.zeros(max_rows, ROW)
        self._scored: set[int] = set()
        self._bias: dict[int, tuple[I32, F32]] = {}
        self._banned: dict[int, tuple[I32, F32]] = {}
        self._counts: dict[int, TokenCounts] = {}
        self._matchers: dict[int, list[Matcher]] = {}
        self._unheard: dict[int, list[int]] = {}  # followed with the next mask
        self._beams: set[int] = set()
        self._forcing: set[int] = set()  # rows with forced tokens
        self._narrow: set[int] = set()  # rows whose mask comes before what narrows the draw (top_p, ...)
        self._grammar_masks = GrammarMasks(mask_threads)
        self.room = full_mask(1, vocab_size)[0]
        self._room_pointer = self.room.ctypes.data
        self._gathered_rows: Sequence[int] | None = None
        self._gathered = self._rows[:0], TokenLists.none(0)

    def add(
        self,
        row: int,
        params: SamplingParams,
        seed: int,
        sample_index: int,
        token_ids: Sequence[int],
        num_prompt_tokens: int,
    ) -> None:
        """A sequence enters a row: its prompt, and after a preemption also what it generated.

        Raises:
            InvalidRequestError: logit_bias names a token beyond the vocabulary. The row stays free.
        """
        self.remove(row)
        if params.logit_bias:
            self._bias[row] = self._bias_lists(params)
        self._gathered_rows = None
        self._rows[row] = (
            seed & SEED_MASK,
            num_prompt_tokens + params.min_tokens,
            params.top_p,
            params.temperature,
            params.min_p,
            params.repetition_penalty,
            params.frequency_penalty,
            params.presence_penalty,
            params.top_k,
            sample_index,
            -1 if params.logprobs is None else params.logprobs,
        )
        if params.logprobs is not None:
            self._scored.add(row)
        stops = {*params.stop_token_ids, *(() if params.ignore_eos else self._eos)}
        stops = {token for token in stops if token < self._vocab_size}
        if params.min_tokens and stops:
            self._banned[row] = np.array(sorted(stops), np.int32), np.zeros(len(stops), np.float32)
        if params.repetition_penalty != 1 or params.frequency_penalty or params.presence_penalty:
            prompt, output = token_ids[:num_prompt_tokens], token_ids[num_prompt_tokens:]
            self._counts[row] = TokenCounts(prompt, output, self._vocab_size)
        constraints: list[Constraint] = list(params.constraints)
        if params.allowed_token_ids is not None:
            constraints.append(AllowedTokens(params.allowed_token_ids))
        if constraints:
            output = list(token_ids[num_prompt_tokens:])
            self._matchers[row] = [constraint.start(output) for constraint in constraints]
            if not drawn_free(self._rows[row]):
                self._narrow.add(row)
            if any(isinstance(matcher, ForcedTokensMatcher) for matcher in self._matchers[row]):
                self._forcing.add(row)
        if params.beam_search is not None:
            self._beams.add(row)

    def _bias_lists(self, params: SamplingParams) -> tuple[I32, F32]:
        bias = params.logit_bias or {}
        if max(bias) >= self._vocab_size:
            raise InvalidRequestError(
                f"logit_bias names token {max(bias)}, the vocabulary has {self._vocab_size}", "logit_bias"
            )
        return np.array(list(bias), np.int32), np.array(list(bias.values()), np.float32)

    def remove(self, row: int) -> None:
        """The row is free again. Free rows may be removed too."""
        self._scored.discard(row)
        self._bias.pop(row, None)
        self._banned.pop(row, None)
        self._counts.pop(row, None)
        self._matchers.pop(row, None)
        self._unheard.pop(row, None)
        self._beams.discard(row)
        self._forcing.discard(row)
        self._narrow.discard(row)

    @property
    def records(self) -> npt.NDArray[Any]:
        """Each row's numbers, of dtype ROW; add() changes them."""
        return self._rows

    @property
    def plain(self) -> bool:
        """Every row in use draws by its record alone, and wants no log-probabilities."""
        return not (self._bias or self._banned or self._counts or self._matchers or self._scored)

    @property
    def only_masked(self) -> bool:
        """Beside its record a row may have a mask: no bias, counts, scores, forced tokens or beams."""
        others = self._bias or self._banned or self._counts or self._scored or self._forcing or self._beams
        return not others

    @property
    def narrowed(self) -> bool:
        """Whether any row's mask must be known before its draw (batch.drawn_free: the others' need not)."""
        return bool(self._narrow)

    def masks_before(self, rows: Sequence[int]) -> tuple[U32 | None, dict[int, str]]:
        """(which tokens may follow, where that must be known before the draw, and elsewhere all; None: no row
        is so; index -> why a row's limits cannot be followed)."""
        return self._masks(rows, [()] * len(rows), self._narrow) if self._narrow else (None, {})

    def masks_after(self, rows: Sequence[int]) -> tuple[U32, dict[int, str]]:
        """The same of rows whose tokens were not taken, computed on several threads at once."""
        mask, errors = self._masks(rows, [()] * len(rows), alone_s=0)
        assert mask is not None, "what refuses is a matcher, and these have masks"
        return mask, errors

    def take(self, row: int, token: int) -> bool:
        """Append the token, but not one that a constraint forbids: whether it was appended.

        Where the mask came before the draw there is nothing to forbid.
        """
        matchers = self._matchers.get(row)
        if not matchers or row in self._narrow:
            self.append(row, (token,))
            return True
        if row in self._unheard:
            self._tell(row, matchers)
        try:
            if len(matchers) == 1 and isinstance(matchers[0], GrammarMatcher):
                taken = matchers[0].take(token)
            elif taken := all(matcher.allows(token) for matcher in matchers):
                self._unheard[row] = [token]
        except ConstraintError:  # mask() says it
            return False
        if taken and row in self._counts:
            self._counts[row].append((token,))
        return taken

    def mask(self, row: int) -> str | None:
        """Set `room` to what may follow in a row whose token was not taken; why that is not known."""
        matchers = self._matchers[row]
        if len(matchers) == 1 and isinstance(matchers[0], GrammarMatcher):
            try:
                matchers[0].fill(self.room, self._room_pointer)
            except ConstraintError as error:
                return str(error)
            return None
        mask, errors = self.masks_after([row])
        self.room[:] = mask[0]
        return errors.get(0)

    def append_masked(self, row: int, token: int) -> None:
        """Append a token that was drawn under mask(): its grammar hears of it while it is at hand."""
        self.append(row, (token,))
        if row in self._unheard:
            self._tell(row, self._matchers[row])

    @property
    def constrained(self) -> bool:
        """Whether any row has a mask to be computed: batch() is then worth a thread of its own."""
        return bool(self._matchers)

    def follows(self, rows: Sequence[int]) -> bool:
        """Whether the draw of any of these rows depends on which tokens were drawn before it (penalties,
        masks): batch() must then know them."""
        return any(row in self._counts or row in self._matchers for row in rows)

    def append(self, row: int, token_ids: Sequence[int]) -> None:
        """These tokens are now the row's own output.

        Not so of a beam: the search decides, and what goes on enters a row anew.
        """
        if row in self._beams:
            return
        if row in self._counts:
            self._counts[row].append(token_ids)
        if row in self._matchers:  # beside the next forward, not between two
            self._unheard.setdefault(row, []).extend(token_ids)

    def _tell(self, row: int, matchers: Sequence[Matcher]) -> None:
        """The row's matchers follow it to where it is now."""
        unheard = self._unheard.pop(row, None)
        if unheard:
            for matcher in matchers:
                matcher.append(unheard)

    def _masks(
        self,
        rows: Sequence[int],
        drafts: Sequence[Sequence[int]],
        only: Collection[int] | None = None,
        alone_s: float = ALONE_S,
    ) -> tuple[U32 | None, dict[int, str]]:
        """(mask [R, ceil(V / 32)] or None, errors by index) of a batch; only None: of all its rows."""
        if not any(row in self._matchers for row in rows):
            return None, {}
        mask = full_mask(len(rows), self._vocab_size)
        together: dict[int, GrammarMatcher] = {}  # no row and no matcher twice, and none with a draft
        joined: set[GrammarMatcher] = set()
        others: list[tuple[int, Matcher]] = []
        for index, (row, draft) in enumerate(zip(rows, drafts, strict=True)):
            if only is not None and row not in only:
                continue
            matchers = self._matchers.get(row, ())
            self._tell(row, matchers)
            for matcher in matchers:
                alone = bool(draft) or index in together or matcher in joined
                if isinstance(matcher, GrammarMatcher) and not alone:
                    together[index] = matcher
                    joined.add(matcher)
                else:
                    others.append((index, matcher))
        errors = self._grammar_masks.fill(together, mask, alone_s)
        for index, matcher in others:
            try:
                matcher.restrict(mask[index], drafts[index])
            except ConstraintError as error:
                errors[index] = str(error)
        return mask, errors

    def batch(
        self,
        rows: Sequence[int],
        positions: Sequence[int],
        ahead: Sequence[Sequence[int]] | None = None,
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
            self._gathered = self._rows[np.array(rows, np.intp)], TokenLists.none(len(rows))
            self._gathered_rows = list(rows)
        gathered, none = self._gathered
        if not (self._bias or self._banned or self._counts or self._matchers):
            return SamplingBatch(gathered, where, none, none, none)
        drafts: Sequence[Sequence[int]] = [()] * len(rows) if ahead is None else ahead
        mask, errors = self._masks(rows, drafts)
        forced = self._forced(rows, drafts)
        for index, token in forced.items():  # whatever else is asked
            assert mask is not None, "what forces is a matcher, and these have masks"
            mask[index] = mask_of([token], mask.shape[1])
        bias, banned, seen = none, none, none
        if self._bias:
            bias = TokenLists.of([self._bias.get(row) for row in rows])
        if self._banned:
            early = where < gathered["min_position"]
            early[list(forced)] = False
            banned = TokenLists.of(
                [self._banned.get(row) if soon else None for row, soon in zip(rows, early, strict=True)]
            )
        if self._counts:
            seen = TokenLists.of(
                [
                    self._counts[row].lists(draft) if row in self._counts else None
                    for row, draft in zip(rows, drafts, strict=True)
                ]
            )
        beams = {index: forced.get(index) for index, row in enumerate(rows) if row in self._beams}
        return SamplingBatch(gathered, where, bias, banned, seen, mask, errors, beams)

    def _forced(self, rows: Sequence[int], drafts: Sequence[Sequence[int]]) -> dict[int, int]:
        """Index -> the one token that may be drawn there."""
        if not self._forcing:
            return {}
        found = (
            (index, matcher.forced(draft))
            for index, (row, draft) in enumerate(zip(rows, drafts, strict=True))
            for matcher in self._matchers.get(row, ())
            if isinstance(matcher, ForcedTokensMatcher)
        )
        return {index: token for index, token in found if token is not None}
