"""Speculation: the only one in the runtime that knows who proposes drafts. And the runners that verify them.

A step's tokens are told to the proposer when its result is fetched; what it proposes goes to the engine with
the result, and comes back in the row's next step as far as there is room for it (Scheduler, rule 12).
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from octavo.engine.step_plan import Handle, NewRow, RowStep, SampledToken, StepPlan, StepResult, counted
from octavo.errors import InvalidRequestError
from octavo.kernels.ops import F32
from octavo.params.drafts import Draft
from octavo.params.speculative import SpeculativeParams, speculates
from octavo.runtime.drafted import Draw, Walk, gather_drafted, slots_to_move, walk, walks_of
from octavo.runtime.model_runner import ModelRunner
from octavo.runtime.overlap import OverlappedRunner, finished
from octavo.runtime.prompt_logprobs import ByRow
from octavo.runtime.rejecting import RejectingDraws
from octavo.runtime.runner import Done
from octavo.runtime.states import RequestStates
from octavo.runtime.vectors import Vector
from octavo.sampling.device import read
from octavo.sampling.native import ERRORS
from octavo.sampling.sampler import RowError
from octavo.sampling.sampling_rows import SamplingRows
from octavo.spec.base import Begin, Proposer
from octavo.spec.costs import Load
from octavo.spec.policy import Policy

TOLD_ONE_IN = 4
"""Of so many steps without drafts the policy is told of one, how long it took: that costs the host as much as
a plan. It is told of every step with drafts."""


IDLE = 1.5


@dataclass(slots=True, eq=False)
class Occupant:
    """A request, in its row, that may have drafts. told: how many of its tokens proposer and policy know."""

    told: int


class Speculation:
    """Proposes for rows what their next steps may verify.

    Beams, pooled prompts and rows that ask for their prompt's log-probabilities have no drafts; no more has
    who asks for none.

    Args:
        policy: chooses how many tokens of a draft are verified.
        most: tokens of a row's draft where its request names no number.
        vocab_size: a draft ends before a token that is not below it.
        rejecting: drafts are put to the p/q test, rather than kept as far as the row draws them.

    Attributes:
        activation_bytes: of buffers that drafting takes beside the runner's.
        drawn_from: row -> Draft.q of its latest draft, where that was drawn.
        asking_s: seconds that asking for drafts took after the latest step.
    """

    activation_bytes = 0
    asking_apart = False
    """The policy is told apart what asking takes: it is no part of a step that verifies, either."""

    def __init__(
        self, proposer: Proposer, policy: Policy, most: int, vocab_size: int, rejecting: bool = False
    ) -> None:
        self._proposer, self.policy, self._most, self._vocab_size = proposer, policy, most, vocab_size
        self.rejecting = rejecting
        self.drawn_from: dict[int, Any] = {}
        self._rows: dict[int, Occupant] = {}
        self._states: RequestStates
        self._rests_until = 0  # the first step after which proposers are asked again
        self.asking_s = 0.0

    def attach(self, states: RequestStates, samplings: SamplingRows) -> None:
        """A runner has made its rows. Once, before anything else."""
        self._states = states

    def follow_pages(self, plan: StepPlan) -> None:
        """The plan is about to move pages. Who keeps something in them is told."""

    def start(self, new: NewRow) -> None:
        """A request enters a row, which was free; whoever was in it is gone without a word."""
        self._leave(new.row)
        try:
            wanted = SpeculativeParams.of(new.params.speculative)
        except InvalidRequestError:  # of a caller of the core, who is not worth a failed step
            return
        most = self._most if wanted.k is None else min(wanted.k, self._most)
        if most > 0 and speculates(new.params):
            self._rows[new.row] = Occupant(len(new.token_ids))
            self._rests_until = 0
            begin = Begin(new.token_ids, new.num_prompt_tokens, wanted.ids, new.namespace)
            self._proposer.start(new.row, begin)
            self.policy.start(new.row, most)

    def remove(self, row: int) -> None:
        """The row's request is gone, if it had any. Its tokens are still there."""
        if (occupant := self._rows.get(row)) is not None:
            self._catch_up(row, occupant, self._states.length.item(row))
            self._leave(row)

    def _leave(self, row: int) -> None:
        if self._rows.pop(row, None) is not None:
            self._proposer.remove(row)
            self.policy.remove(row)
            self.drawn_from.pop(row, None)

    def _catch_up(self, row: int, occupant: Occupant, length: int, drawn: Sequence[int] = ()) -> None:
        """Tell of the row's tokens since they were told last; it has `length`. drawn: the latest ones, of one
        step; the others came one by one while proposers rested."""
        missed = length - occupant.told
        if missed <= 0:
            return
        tokens, steps = drawn, 1
        if missed != len(drawn):
            tokens = self._states.tokens[row, occupant.told : length].tolist()
            steps = missed - max(len(drawn) - 1, 0)
        occupant.told = length
        self._proposer.observe(row, tokens)
        self.policy.observe(row, tokens, steps)

    def took(self, load: Load, computed: float, whole: float) -> None:
        """A step has taken so long, and so long until the next one began: drafts ask more of the host, too.

        Longer than IDLE beside what was computed, the engine had nothing to do.
        """
        self.policy.took(load, whole if whole < IDLE * computed else computed)

    def following(self, plan: StepPlan, handle: Handle) -> Handle:
        """The handle of this step whose result brings drafts, unless proposers rest or no row may have any.

        A step of a rest costs what one without drafts costs: not even its tokens are looked at.
        """
        self.asking_s = 0.0
        if plan.step_id < self._rests_until:
            return handle
        rows = self._rows
        drawing = {step.row: rows[step.row] for step in plan.steps if step.sample and step.row in rows}
        return Followed(handle, partial(self.follow, drawing)) if drawing else handle

    def followed(self, result: StepResult) -> StepResult:
        """follow() a step that was executed just now: each row is still the same request's."""
        self.asking_s = 0.0
        if result.step_id < self._rests_until or not self._rows:
            return result
        return self.follow(self._rows, result)

    def follow(self, rows: Mapping[int, Occupant], result: StepResult) -> StepResult:
        """Tell proposer and policy what was drawn, and add to the result what the next step may verify.

        Args:
            rows: those that drew in the step, when it was submitted; some may be other requests' by now.
        """
        if result.step_id < self._rests_until:  # since it was submitted a rest has begun
            return result
        begin = time.perf_counter()
        going: list[int] = []
        known: dict[int, int] = {}
        pairs = 0
        # (An array's elements one by one: its own operations cost more for the few rows of most steps.)
        lengths = self._states.length
        for row, drawn in result.tokens.items():
            known[row] = length = lengths.item(row)
            pairs += length
            occupant = rows.get(row)
            if drawn and occupant is not None and self._rows.get(row) is occupant:
                self._catch_up(row, occupant, length, [token.token_id for token in drawn])
                going.append(row)
        load = Load(len(known), len(known), pairs)
        asked = self._asked(going, known, load)
        if drafts := self._proposer.propose(asked) if asked else {}:
            self._offer(self.policy.choose(drafts, known, load), result)
        self.asking_s = time.perf_counter() - begin
        if going and not result.drafts:
            self._rests_until = result.step_id + 1 + self.policy.rest(load, self.asking_s)
        return result

    def _offer(self, drafts: Mapping[int, Draft], result: StepResult) -> None:
        """Add drafts to a result."""
        for row, draft in drafts.items():
            if min(draft.tokens) < 0 or max(draft.tokens) >= self._vocab_size:
                draft = self._known_words(draft)
            result.drafts[row] = draft.tokens
            if not draft.is_chain:
                result.parents[row] = draft.parents
            if draft.q is not None:
                self.drawn_from[row] = draft.q

    def _asked(self, going: Sequence[int], known: Mapping[int, int], load: Load) -> dict[int, int]:
        """Rows whose proposer is to be asked now -> tokens that a draft may have.

        Args:
            known: tokens known of each row that drew. load: of the next step if it verifies nothing.
        """
        return self.policy.wanted(going)

    def _known_words(self, draft: Draft) -> Draft:
        """The draft's tokens before the first one that the model has no word for."""
        return draft.first(next(i for i, t in enumerate(draft.tokens) if not 0 <= t < self._vocab_size))

    def reset(self) -> None:
        """Forget what requests before have left with the proposer."""
        for row, occupant in self._rows.items():
            self._catch_up(row, occupant, self._states.length.item(row))
        self._proposer.reset()


class Followed:
    """A handle whose result brings drafts."""

    def __init__(self, handle: Handle, follow: Callable[[StepResult], StepResult]) -> None:
        self._handle, self._follow = handle, follow

    def result(self) -> StepResult:
        return self._follow(self._handle.result())


class SpeculatingRunner(ModelRunner):
    """A ModelRunner that has drafts proposed, and verifies them (drafted.py)."""

    def __init__(self, *args: Any, speculation: Speculation, **more: Any) -> None:
        super().__init__(*args, **more)
        # (Bound once: super() looks through all classes each time.)
        self._execute_plain, self._begin_plain = super().execute, super()._begin
        self._draw_plain = super()._draw
        self._speculation = speculation
        self._untold: list[tuple[Load, float, float, bool]] = []  # a step; told of when the next begins
        speculation.attach(self._states, self._samplings)

    @property
    def activation_bytes(self) -> int:
        return super().activation_bytes + self._speculation.activation_bytes

    def execute(self, plan: StepPlan) -> StepResult:
        return self._speculation.followed(self._execute_plain(plan))

    def _begin(self, plan: StepPlan) -> None:
        self._speculation.follow_pages(plan)
        self._begin_plain(plan)

    def _start(self, new: NewRow) -> None:
        super()._start(new)
        self._speculation.start(new)

    def _free(self, row: int) -> None:
        super()._free(row)
        self._speculation.remove(row)

    def _draw(self, step_id: int, steps: Sequence[RowStep]) -> StepResult:
        begin = time.perf_counter()
        for load, began, ended, verified in self._untold:
            # A step that has verified nothing need not have been followed by asking.
            apart = self._speculation.asking_apart or not verified
            other = self._speculation.asking_s if apart else 0.0
            self._speculation.took(load, ended - began, begin - began - other)
        self._untold.clear()
        drafted = any(step.drafts for step in steps)
        result = self._draw_drafted(step_id, steps) if drafted else self._draw_plain(step_id, steps)
        if drafted or step_id % TOLD_ONE_IN == 0:
            self._untold.append((Load(*counted(steps)), begin, time.perf_counter(), drafted))
        return result

    def _draw_drafted(self, step_id: int, steps: Sequence[RowStep]) -> StepResult:
        steps, logprobs = self._prompts(steps)
        result = None if self._speculation.rejecting else self._verified(step_id, steps)
        if result is None:
            logits = self._program.replay(gather_drafted(steps, self._states))
            result = self._walk(step_id, walks_of(steps), self._drawing_from(logits))
        result.prompt_logprobs = logprobs
        return result

    def _verified(self, step_id: int, steps: Sequence[RowStep]) -> StepResult | None:
        """Compute, walk and append in one call of the backend; None, and nothing done, where some row asks
        for more than its numbers, or neither verifies a chain after its last token nor decodes."""
        if self._decoding is None:
            return None
        rows: list[int] = []
        starts: list[int] = []
        drafts: list[tuple[int, ...]] = []
        for step in steps:
            if not step.sample or step.parents or step.count != len(step.drafts) + 1:
                return None
            rows.append(step.row)
            starts.append(step.start)
            drafts.append(step.drafts)
        if self._samplings.others(rows, starts) is not None:
            return None
        drawn = self._decoding.decoder.verify(rows, starts, drafts)
        tokens: dict[int, tuple[SampledToken, ...]] = {}
        errors: dict[int, str] = {}
        for place, found in enumerate(drawn):
            if found[0] >= 0:
                tokens[rows[place]] = tuple([SampledToken(token) for token in found])
            else:
                errors[rows[place]] = ERRORS[found[0]]
        return StepResult(step_id, tokens, errors)

    def _drawing_from(self, logits: F32) -> Draw:
        """Draws from these logits of all nodes."""
        if self._speculation.rejecting:
            return RejectingDraws(logits, self._sampler, self._samplings, self._speculation.drawn_from)

        def draw(walks: Sequence[Walk]) -> Sequence[SampledToken | RowError]:
            wanted = self._samplings.batch([w.row for w in walks], [w.position for w in walks])
            return self._sampler.sample(logits, wanted, [w.logits for w in walks])

        return draw

    def _walk(self, step_id: int, walks: Sequence[Walk], draw: Draw) -> StepResult:
        """Draw each row's own tokens; what trees have stored of them goes where it belongs."""
        walk(walks, draw, self._states, self._samplings)
        states = self._states
        if pairs := slots_to_move(walks, states.pages, states.page_size):
            self._moves.move_slots(pairs, slots_to_move(walks, states.windowed, states.page_size))
        tokens = {one.row: tuple(one.drawn) for one in walks if one.drawn}
        errors = {one.row: one.error for one in walks if one.error is not None}
        return StepResult(step_id, tokens, errors)


class OverlappedSpeculation(SpeculatingRunner, OverlappedRunner):
    """The same on a device. A step with drafts is not overlapped: what follows it is known on the host.

    It never tells the policy what a step took: steps overlap there, and one has no time of its own. What was
    measured at start stands.
    """

    def submit(self, plan: StepPlan) -> Handle:
        return self._speculation.following(plan, super().submit(plan))

    def execute(self, plan: StepPlan) -> StepResult:
        return self.submit(plan).result()

    def _launch(
        self, step_id: int, steps: Sequence[RowStep], logprobs: ByRow, vectors: dict[int, Vector | RowError]
    ) -> Handle:
        if not any(step.drafts for step in steps):
            return super()._launch(step_id, steps, logprobs, vectors)
        self._settle()  # every token before this step is known here
        batch, walks = gather_drafted(steps, self._states), walks_of(steps)
        none_late = np.full(batch.num_tokens, -1, np.int32)
        rows = [step.row for step in steps if step.sample for _ in range(len(step.drafts) + 1)]
        owners = [-1] * len(rows)  # a node's token may be nobody's
        if not self._speculation.rejecting and not self._samplings.follows(rows):
            # Every node can be drawn before it is known which are passed.
            wanted = self._samplings.batch(rows, (batch.positions[batch.sampled] + 1).tolist())
            draws = self._maker.draws(wanted)
            if self._steps.lacks(draws) is None:
                launched = self._steps.launch(batch, none_late, owners, draws)
                drawn = read(launched.draw(draws).result(), wanted)
                result = self._walk(step_id, walks, lambda going: [drawn[one.logits] for one in going])
                return Done(finished(result, logprobs, vectors))
        launched = self._steps.launch(batch, none_late, owners)
        result = self._walk(step_id, walks, self._drawing_from(launched.logits()))
        return Done(finished(result, logprobs, vectors))


def speculating(speculation: Speculation) -> tuple[Any, Any]:
    """The runners that make_runner() is to choose from: on a host, and on a device that draws by itself."""
    return (
        partial(SpeculatingRunner, speculation=speculation),
        partial(OverlappedSpeculation, speculation=speculation),
    )
