"""An executor without a model that checks every plan it is given.

Its KV cache is real in structure: pages of slots. A slot holds a fingerprint of the whole prefix up
to its position, so a wrong page, a stale one, a slot read before it was written or a write into
somebody else's page is found at once. The next token is a function of (prefix, seed, sample index),
so what a request must generate can be computed without any engine: see `alone`.
"""

from __future__ import annotations

import math
import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from octavo.engine.page_group import NO_PAGE
from octavo.engine.page_pool import IntegrityError
from octavo.engine.step_plan import NewRow, RowStep, StepPlan, StepResult
from octavo.params import SampledToken, SamplingParams
from octavo.sampling.beam import BeamSearch
from support.toy_pages import ToyPages
from support.toy_sliding import SlidingPageError, ToySliding

EOS = 0


class PlanError(SystemExit):  # an engine that survives failing steps and panics must not survive this
    """The plan asks for something that would corrupt a real KV cache."""


class ToyCrash(SystemExit):
    """The toy itself cannot go on with a plan. No check of it says why: that is no PlanError."""


def fingerprint(previous: int, token: int) -> int:
    return zlib.crc32(token.to_bytes(8, "little"), previous)


def fingerprints(tokens: Sequence[int], start: int = 1) -> list[int]:
    out, value = [], start
    for token in tokens:
        value = fingerprint(value, token)
        out.append(value)
    return out


def start_of(encoder: Sequence[int]) -> int:
    """Where a decoder's fingerprints start: they depend on what its encoder has read."""
    return fingerprints([*encoder, 99])[-1] if encoder else 1


@dataclass(frozen=True)
class Toy:
    """The toy language model: draws a token after a prefix."""

    vocab_size: int = 64

    def next_token(self, prefix: int, seed: int, index: int, params: SamplingParams, early: bool) -> int:
        """early: min_tokens are not reached, so stop tokens are masked as the sampler does."""
        noise = 0 if params.greedy else seed * 1000003 + index
        token = fingerprint(prefix, noise & (2**64 - 1)) % self.vocab_size
        banned = set(params.stop_token_ids) | (set() if params.ignore_eos else {EOS})
        while early and token in banned:
            token = (token + 1) % self.vocab_size
        return token

    def likeliest(self, prefix: int, count: int) -> tuple[tuple[int, float], ...]:
        """(token, logprob), best first."""
        scores = [-(fingerprint(prefix, token) % 997) / 100 for token in range(self.vocab_size)]
        norm = math.log(sum(map(math.exp, scores)))
        best = sorted(range(self.vocab_size), key=lambda token: (-scores[token], token))[:count]
        return tuple((token, scores[token] - norm) for token in best)


def search(
    prompt: Sequence[int], params: SamplingParams, max_model_len: int, toy: Toy, encoder: Sequence[int] = ()
) -> list[tuple[list[int], str]]:
    """What a beam search must find, and why each ends: the search itself, fed without any engine."""
    wanted = params.beam_search
    assert wanted is not None
    ends = frozenset(params.stop_token_ids) | (frozenset() if params.ignore_eos else frozenset({EOS}))
    limit = max_model_len - len(prompt)
    rule = BeamSearch(wanted, ends, limit if params.max_tokens is None else min(limit, params.max_tokens))
    count = rule.candidates(wanted, ends)
    start, beams = start_of(encoder), [list(prompt)]
    while beams:
        likeliest = [toy.likeliest(fingerprints(beam, start)[-1], count) for beam in beams]
        beams = [[*beams[parent], token] for parent, token in rule.advance(likeliest)]
    return [([t.token_id for t in h.tokens], h.finish_reason) for h in rule.hypotheses()[: params.n]]


def alone(
    prompt: Sequence[int],
    params: SamplingParams,
    seed: int,
    index: int,
    max_model_len: int,
    toy: Toy,
    encoder: Sequence[int] = (),
) -> tuple[list[int], str]:
    """What a request must generate, and why it ends."""
    prefix, out = fingerprints(prompt, start_of(encoder))[-1], []
    while True:
        early = len(out) < params.min_tokens
        token = toy.next_token(prefix, seed, index, params, early)
        out.append(token)
        prefix = fingerprint(prefix, token)
        stops = set(params.stop_token_ids) | (set() if params.ignore_eos else {EOS})
        if token in stops and len(out) > params.min_tokens:
            return out, "stop"
        if len(out) == params.max_tokens or len(prompt) + len(out) == max_model_len:
            return out, "length"


@dataclass
class Row:
    new: NewRow
    tokens: list[int]
    pages: list[int] = field(default_factory=list)
    computed: int | None = None  # None until its first step
    drafted: bool = False

    @property
    def prints(self) -> list[int]:
        return self.prints_of(self.tokens)

    def prints_of(self, tokens: Sequence[int]) -> list[int]:
        return fingerprints(tokens, start_of(self.new.encoder.token_ids if self.new.encoder else ()))


@dataclass(frozen=True)
class Done:
    value: StepResult | BaseException

    def result(self) -> StepResult:
        if isinstance(self.value, BaseException):
            raise self.value
        return self.value


class ToyExecutor:
    """Executes plans at once, in the order of submission.

    Args:
        references: reference count of a page (PagePool.references), to catch writes to shared pages.
        propose: drafts after a row's tokens, or None for no drafts.
        page_file: where plans save pages and load them from.
        window: tokens that a token sees, itself included; what lies before is not read.
        sliding: pages of layers with a window, beside those that see everything.

    Attributes:
        plans: all plans so far.
        fail_row: NewRow -> message for a row that must fail, or None.
        fail_step: StepPlan -> exception that the whole step raises, or None.
    """

    def __init__(
        self,
        num_pages: int,
        page_size: int,
        toy: Toy | None = None,
        references: Callable[[int], int] | None = None,
        propose: Callable[[Sequence[int], int], Sequence[int]] | None = None,
        page_file: ToyPages | None = None,
        window: int | None = None,
        sliding: ToySliding | None = None,
    ) -> None:
        self.page_file, self.window, self.sliding = page_file, window, sliding
        self.toy = toy or Toy()
        self.page_size = page_size
        self.slots: list[list[int | None]] = [[None] * page_size for _ in range(num_pages)]
        self.rows: dict[int, Row] = {}
        self.references = references
        self.propose = propose
        self.plans: list[StepPlan] = []
        self.num_copies = self.num_swaps = 0
        self.swapped: dict[int, list[int | None]] = {}
        self.fail_row: Callable[[NewRow], str | None] = lambda new: None
        self.fail_step: Callable[[StepPlan], BaseException | None] = lambda plan: None
        self._unknown: set[int] = set()  # rows of failed steps: free or not, until freed or given anew

    def submit(self, plan: StepPlan) -> Done:
        self.plans.append(plan)
        failure = self.fail_step(plan)
        if failure is not None:
            self._break_off(plan)
            return Done(failure)
        try:
            return Done(self.execute(plan))
        except (AssertionError, IntegrityError, SlidingPageError) as error:  # the engine would survive these
            raise PlanError(str(error)) from error
        except Exception as error:
            raise ToyCrash(f"{type(error).__name__}: {error}") from error

    def execute(self, plan: StepPlan) -> StepResult:
        for row in plan.freed_rows:
            if self.rows.pop(row, None) is None and row not in self._unknown:
                raise PlanError(f"row {row} is freed but was not in use")
            self._unknown.discard(row)
        for new in plan.new_rows:
            old = self.rows.get(new.row)
            if old is not None and new.row not in self._unknown and not _same_beams(old.new, new):
                raise PlanError(f"row {new.row} is given twice")
            self._unknown.discard(new.row)
            self.rows[new.row] = Row(new, list(new.token_ids))
            if new.encoder is not None and new.encoder.compute:
                self._encode(new)
        if len({step.row for step in plan.steps}) != len(plan.steps):
            raise PlanError("a row is in the step twice")
        # A step planned before the one before it was known to have failed computes nonsense.
        steps = [step for step in plan.steps if step.row not in self._unknown]
        for step in steps:
            if step.row not in self.rows:
                raise PlanError(f"row {step.row} computes but was not given")
            if step.count < 1:
                raise PlanError("a step of no tokens")
        copied = self._copy(plan)
        for step in steps:
            self._grow(step, copied)
        for step in steps:
            self._read(step, copied)
        for step in steps:
            self._write(step)
        tokens: dict[int, tuple[SampledToken, ...]] = {}
        errors: dict[int, str] = {}
        drafts: dict[int, tuple[int, ...]] = {}
        for step in steps:
            row = self.rows[step.row]
            message = self.fail_row(row.new)
            if message is not None:
                errors[step.row] = message
                self._unknown.add(step.row)
            elif step.sample:
                tokens[step.row] = self._sample(row, step)
                if self.propose is not None:
                    drafts[step.row] = tuple(self.propose(row.tokens, row.new.seed))
        return StepResult(plan.step_id, tokens, errors, drafts)

    def _break_off(self, plan: StepPlan) -> None:
        """Fail after half of the plan's preparations."""
        for row in plan.freed_rows[::2]:
            self.rows.pop(row, None)
        for page, slot, key in plan.saves[::2]:
            assert self.page_file is not None
            self.page_file.save(key, slot, self._content(plan, page))
        self._unknown.update(plan.freed_rows)
        self._unknown.update(step.row for step in plan.steps)

    def _copy(self, plan: StepPlan) -> set[int]:
        """Copy pages as planned; all are read before any is written. Returns the destinations."""
        for page, slot, key in plan.saves:
            assert self.page_file is not None
            self.page_file.save(key, slot, self._content(plan, page))
        saved = [(list(self.slots[page]), slot) for page, slot in plan.swaps_out]
        read = [(list(self.slots[source]), target) for source, target in plan.copies]
        read += [(list(self.swapped[slot]), page) for slot, page in plan.swaps_in]
        loaded = [] if self.page_file is None else [(self.page_file.page(s), page) for s, page in plan.loads]
        read += [(list(content[: self.page_size]), page) for content, page in loaded]
        if self.sliding is not None:
            self.sliding.copy(plan, [(content[self.page_size :], page) for content, page in loaded])
        self.swapped.update({slot: content for content, slot in saved})
        self.num_swaps += len(plan.swaps_in)
        for content, target in read:
            if self.references is not None and self.references(target) != 1:
                raise PlanError(f"a copy overwrites page {target}, which is shared")
            self.slots[target] = content
        targets = {target for _, target in (*plan.copies, *plan.swaps_in, *plan.loads)}
        if len(targets) != len(plan.copies) + len(plan.swaps_in) + len(plan.loads):
            raise PlanError("two copies go to one page")
        self.num_copies += len(plan.copies)
        return targets

    def _content(self, plan: StepPlan, page: int) -> list[int | None]:
        """Of a page that goes to disk."""
        return list(self.slots[page]) + ([] if self.sliding is None else self.sliding.saved(plan, page))

    def _grow(self, step: RowStep, copied: set[int]) -> None:
        row = self.rows[step.row]
        if step.copied_page is not None:
            if step.copied_page not in copied or row.computed is None:
                raise PlanError("a page is replaced by one that was not copied")
            row.pages[step.start // self.page_size] = step.copied_page
        needed = -(-(step.start + step.count) // self.page_size)
        if row.drafted:  # what rejected drafts have left is not the row's any more
            del row.pages[needed - len(step.pages) :]
        passed = min(self._first_seen(step) // self.page_size, len(row.pages))
        row.pages[:passed] = [NO_PAGE] * passed
        first_own = -(-step.start // self.page_size) if row.computed is None else 0
        if self.sliding is not None:
            self.sliding.grow(step, row.computed is None, first_own)
        for position, page in enumerate(step.pages):
            if page == NO_PAGE and row.computed is not None:
                raise PlanError("a page is gone before the row has seen it")
            if page in row.pages and page != NO_PAGE:
                raise PlanError(f"page {page} is twice in a table")
            row.pages.append(page)
            if position >= first_own:  # fresh, not from the cache: what it held is meaningless
                self.slots[page] = [None] * self.page_size
        row.drafted = bool(step.drafts)
        if len(row.pages) != needed:
            raise PlanError(f"the table has {len(row.pages)} pages, the step needs {needed}")

    def _encode(self, new: NewRow) -> None:
        """The whole of an encoder's input, into pages that nobody else holds."""
        assert new.encoder is not None
        values, pages = fingerprints(new.encoder.token_ids), new.encoder.pages
        if len(pages) != -(-len(values) // self.page_size):
            raise PlanError(f"{len(pages)} pages for an encoder input of {len(values)} tokens")
        for place, page in enumerate(pages):
            if self.references is not None and self.references(page) != 1:
                raise PlanError(f"the encoder writes to page {page}, which is shared")
            part: list[int | None] = list(values[place * self.page_size : (place + 1) * self.page_size])
            self.slots[page] = part + [None] * (self.page_size - len(part))

    def _cross(self, row: Row) -> None:
        """The encoder's pages must hold what the row's input made of them, at every step."""
        encoder = row.new.encoder
        if encoder is None:
            return
        found = [value for page in encoder.pages for value in self.slots[page]]
        if found[: len(encoder.token_ids)] != fingerprints(encoder.token_ids):
            raise PlanError(f"pages {encoder.pages} do not hold the encoder input of row {row.new.row}")

    def _sequence(self, step: RowStep) -> list[int]:
        row = self.rows[step.row]
        end = step.start + step.count
        tokens = row.tokens + list(step.drafts)
        if end > len(tokens):
            raise PlanError("a step computes tokens that are not known")
        if step.sample != (end == len(tokens)) or (step.drafts and not step.sample):
            raise PlanError("sample does not say whether the last known token is computed")
        return tokens[:end]

    def _read(self, step: RowStep, copied: set[int]) -> None:
        row = self.rows[step.row]
        if row.computed is None:
            # (A beam may inherit the page that it goes on with.)
            own = row.new.params.logprobs is not None or row.pages[step.start // self.page_size] in copied
            if step.start % self.page_size and not own:
                raise PlanError("a partly filled page came from the cache")
        elif step.start != row.computed:
            raise PlanError(f"step starts at {step.start}, {row.computed} tokens are computed")
        self._cross(row)
        expected = row.prints_of(self._sequence(step)[: step.start])
        for position, value in list(enumerate(expected))[self._first_seen(step) :]:
            page = row.pages[position // self.page_size]
            if page == NO_PAGE or (self.references is not None and self.references(page) < 1):
                raise PlanError(f"row {step.row} reads page {page}, which it has given back")
            if self.slots[page][position % self.page_size] != value:
                raise PlanError(f"page {page} does not hold position {position} of row {step.row}")
        if self.sliding is not None:
            self.sliding.read(step, expected)

    def _first_seen(self, step: RowStep) -> int:
        return 0 if self.window is None else max(step.start - self.window + 1, 0)

    def _write(self, step: RowStep) -> None:
        row = self.rows[step.row]
        values = row.prints_of(self._sequence(step))
        for position in range(step.start, len(values)):
            page = row.pages[position // self.page_size]
            if self.references is not None and self.references(page) != 1:
                raise PlanError(f"row {step.row} writes to page {page}, which is shared")
            self.slots[page][position % self.page_size] = values[position]
        if self.sliding is not None:
            self.sliding.write(step, values)
        row.computed = step.start + step.count - len(step.drafts)

    def _sample(self, row: Row, step: RowStep) -> tuple[SampledToken, ...]:
        """Draw after the last own token; go on while the draw is the drafted token."""
        drawn: list[int] = []
        for draft in (*step.drafts, None):
            prefix = row.prints[-1]
            generated = len(row.tokens) - row.new.num_prompt_tokens
            if generated == row.new.params.max_tokens:
                raise PlanError("a token beyond max_tokens is drawn")
            early = generated < row.new.params.min_tokens
            token = self.toy.next_token(prefix, row.new.seed, row.new.sample_index, row.new.params, early)
            drawn.append(token)
            row.tokens.append(token)
            if token != draft:
                break
        assert row.computed is not None
        row.computed += len(drawn) - 1
        count = row.new.params.logprobs
        top = () if count is None else self.toy.likeliest(row.prints_of(row.tokens[:-1])[-1], count)
        return tuple(SampledToken(token, top=top) for token in drawn)


def _same_beams(old: NewRow, new: NewRow) -> bool:
    """A row may begin anew without having been freed where a beam goes on from another one."""
    return old.request_id == new.request_id and new.params.logprobs is not None
