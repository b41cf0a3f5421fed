"""Drafts that a model draws: every answer is what it is without, and every draft what the model would say."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import pytest

from octavo.kernels.forward_batch import ForwardBatch
from octavo.kernels.select import native_available
from octavo.params import SamplingParams
from octavo.params.drafts import Draft
from octavo.runtime.draft_pages import DrafterWrites
from octavo.runtime.model_drafts import ModelDrafts
from octavo.sampling.sampling_rows import SamplingRows
from octavo.spec.costs import Load
from support import crowds
from support.crowds import PARAMS, Crowd, alone
from support.late_device import Queue
from support.modelled import Modelled, first_layer_of
from support.tiny_engine import (
    VOCAB_SIZE,
    run,
    save_tiny_llama,
    save_tiny_mistral,
    save_tiny_mixed,
    tiny_engine,
)

pytestmark = pytest.mark.skipif(
    not native_available(), reason="the reference's sums depend on the number of rows"
)
GREEDY = SamplingParams(temperature=0, max_tokens=40, ignore_eos=True)
SAMPLED = SamplingParams(temperature=0.9, top_p=0.9, seed=3, max_tokens=40, ignore_eos=True)
PROMPT = [5, 6, 7, 8, 9]
Patch = Callable[[pytest.MonkeyPatch], None]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_tiny_llama(tmp_path_factory.mktemp("modelled"))


@pytest.fixture(scope="module")
def mixed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_tiny_mixed(tmp_path_factory.mktemp("mixed"), 24)


@pytest.fixture(scope="module")
def windowed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_tiny_mistral(tmp_path_factory.mktemp("windowed"), 24)


@pytest.mark.parametrize("page_size", [1, 5, 16])
@pytest.mark.parametrize("params", [GREEDY, SAMPLED, SAMPLED.replace(logprobs=2, frequency_penalty=0.3, n=3)])
def test_a_model_that_drafts_for_itself_is_always_right(
    folder: Path, params: SamplingParams, page_size: int
) -> None:
    options = {"page_size": page_size, "num_pages": 600, "max_sampled_rows": 40}
    core = tiny_engine(folder, speculate=(Modelled(folder), 4), **options)
    plain = tiny_engine(folder)
    assert run(core, PROMPT, params) == run(plain, PROMPT, params)
    counts = core.stats().drafts
    assert counts.accepted_tokens == counts.draft_tokens > 20
    assert core.stats().steps < 0.4 * plain.stats().steps


@pytest.mark.parametrize(
    "params", [GREEDY, SAMPLED, SAMPLED.replace(logprobs=2, repetition_penalty=1.2, n=3)]
)
@pytest.mark.parametrize("own", [True, False])
def test_one_that_is_sometimes_right(folder: Path, own: bool, params: SamplingParams) -> None:
    """Its first layer, as a model of its own and as the target's: both say the same."""
    drafter = Modelled(first_layer_of(folder)) if own else Modelled(layers=1)
    core = tiny_engine(folder, speculate=(drafter, 3), max_sampled_rows=40)
    assert run(core, PROMPT, params) == run(tiny_engine(folder), PROMPT, params)
    counts = core.stats().drafts
    assert 0 < counts.accepted_tokens < counts.draft_tokens


def test_both_ways_to_draft_with_the_first_layer_draft_the_same(folder: Path) -> None:
    found = []
    for drafter in (Modelled(first_layer_of(folder)), Modelled(layers=1)):
        core = tiny_engine(folder, speculate=(drafter, 3), max_sampled_rows=40)
        run(core, PROMPT, SAMPLED.replace(n=3))
        found.append(core.stats().drafts)
    assert found[0] == found[1]


def test_a_draft_ends_with_the_context(folder: Path) -> None:
    params = GREEDY.replace(max_tokens=200)
    core = tiny_engine(folder, speculate=(Modelled(folder), 7), max_sampled_rows=40, max_model_len=50)
    assert run(core, PROMPT, params) == run(tiny_engine(folder, max_model_len=50), PROMPT, params)


def test_what_a_prefix_lacks_is_computed(folder: Path) -> None:
    """The first request has no drafts, so the pages of its prompt hold nothing of the drafter's."""
    prompt = [*range(3, 60)]
    core = tiny_engine(folder, speculate=(Modelled(folder), 4), max_sampled_rows=40)
    run(core, prompt, GREEDY.replace(speculative={"k": 0}, max_tokens=4))
    assert core.stats().drafts.drafts == 0
    run(core, prompt, GREEDY)
    assert core.stats().prefix_hits > 40
    counts = core.stats().drafts
    assert counts.accepted_tokens == counts.draft_tokens > 20


def test_a_long_prompt_is_computed_in_several_steps(folder: Path) -> None:
    core = tiny_engine(
        folder, speculate=(Modelled(folder), 4), max_sampled_rows=16, max_num_batched_tokens=16
    )
    prompt = [*range(3, 90)]
    assert run(core, prompt, GREEDY) == run(tiny_engine(folder), prompt, GREEDY)
    counts = core.stats().drafts
    assert counts.accepted_tokens == counts.draft_tokens > 10


def test_what_a_drafter_takes_to_catch_up_is_told_apart(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The forward that computes a prompt says what a lacking token takes, and nothing of later forwards."""
    core = tiny_engine(folder, speculate=(Modelled(folder), 4), max_sampled_rows=40)
    runner: Any = core._executor
    drafts, told = runner._speculation.drafts, list[tuple[Any, int]]()
    propose = drafts.propose

    def listening(most: Any) -> dict[int, Draft]:
        found: dict[int, Draft] = propose(most)
        told.append(([each[:2] for each in drafts.caught_up], drafts.last_rows))
        return found

    monkeypatch.setattr(drafts, "propose", listening)
    run(core, [*range(3, 60)], GREEDY)
    assert told[0] == ([(58, 1)], 0), "57 of the prompt and the first one of the answer"
    assert not any(each for each, _ in told[1:])
    assert {rows for _, rows in told[1:-1]} == {1}


@pytest.mark.parametrize("page_size", [1, 16])
def test_seconds_of_a_lacking_token_are_measured_at_start(
    folder: Path, page_size: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    from octavo.runtime.model_speculation import DraftCosts

    core = tiny_engine(folder, speculate=(Modelled(folder), 4), page_size=page_size, num_pages=400)
    runner: Any = core._executor
    costs = DraftCosts(runner._speculation.drafts, 4, page_size)
    assert costs.table().measured_at_start(Load(4, 4)) > 0
    measured = costs._seconds
    computed: list[int] = []

    def seconds(batch: ForwardBatch, rows: int) -> float:
        assert measured(batch, rows) > 0
        computed.append(batch.num_tokens)
        return 1.0 + 0.25 * batch.num_tokens

    monkeypatch.setattr(costs, "_seconds", seconds)
    assert costs.lack_s() == (0.25 if page_size > 1 else 0.0)
    assert computed == ([1, 16] if page_size > 1 else [])
    assert run(core, PROMPT, GREEDY) == run(tiny_engine(folder), PROMPT, GREEDY), "pages are as they were"


# --- what self writes --------------------------------------------------------------------------------------


def test_what_the_first_layers_wrote_is_written_again_to_the_bit(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Pages of one token: each drafted one lies in a loose page, and later in the row's own."""
    core = tiny_engine(
        folder, speculate=(Modelled(layers=1), 4), page_size=1, num_pages=200, max_sampled_rows=40
    )
    runner: Any = core._executor
    drafts, states, kv = runner._speculation.drafts, runner._states, runner._kv
    half, compared = kv.page_bytes // 2, 0
    before: dict[int, tuple[int, tuple[int, ...], list[Any]]] = {}
    propose = drafts.propose

    def compare(most: Any) -> dict[int, Draft]:
        nonlocal compared
        for row, (length, tokens, pages) in before.items():
            for place, page in enumerate(pages):
                if length + place >= states.length[row]:  # what has not been computed again
                    break
                if place and states.tokens[row, length + place - 1] != tokens[place - 1]:
                    break
                own = kv.read_page(states.pages[row, length - 1 + place])
                np.testing.assert_array_equal(own[:half], page[:half])
                assert not page[half:].any()  # of the other layer the draft has written nothing
                assert own[half:].any()
                compared += 1
        before.clear()
        found: dict[int, Draft] = propose(most)
        for row, draft in found.items():
            first = drafts.loose.firsts[0] + row * drafts.loose.each
            held = drafts._held(row)
            length = int(states.length[row])
            pages = [kv.read_page(first + i) for i in range(len(draft.tokens))] if held == length - 1 else []
            before[row] = length, draft.tokens, pages
        return found

    monkeypatch.setattr(drafts, "propose", compare)
    for params in (GREEDY, SAMPLED):
        run(core, PROMPT, params.replace(n=3, max_tokens=120))
    assert compared > 30


# --- crowds ------------------------------------------------------------------------------------------------


def agrees(text: Sequence[int], draft: Sequence[int]) -> bool:
    both = min(len(text), len(draft))
    return list(text[:both]) == list(draft[:both])


class OwnDrafts(Crowd):
    """A crowd whose model drafts for itself: each draft must be what its request will say.

    Some drafted tokens are spoilt, and the drafter goes on from them: they will be rejected, with what it
    has written of them.
    """

    def __init__(self, folder: Path, seed: int, **options: Any) -> None:
        super().__init__(folder, seed, **options)
        runner: Any = self.engine._executor
        self.texts: list[list[int]] = []
        self.wrong: list[tuple[int, ...]] = []
        if isinstance(self.proposer, Modelled):
            self._drafts = runner._speculation.drafts
            self._propose, self._draw, self._chance = self._drafts.propose, self._drafts._draw, Random(seed)
            self._drafts.propose, self._drafts._draw = self._checked, self._spoiling
            self._spoilt: dict[int, int] = {}  # row -> position of the first such token

    def _add(self, name: str) -> None:
        super()._add(name)
        if name in self._asked:
            prompt, params = self._asked[name]
            if PARAMS[params].beam_search is None:
                answers = alone(self._folder, self._kv_dtype, self.quantization, prompt, params)
                self.texts += [[*prompt, *tokens] for tokens, _, _ in answers]

    def _checked(self, most: Any) -> dict[int, Draft]:
        self._spoilt.clear()
        most = {row: count for row, count in most.items() if self._chance.random() < 0.7}  # as a policy may
        states, drafts = self._drafts._states, self._propose(most)
        for row, draft in drafts.items():
            known = states.tokens[row, : states.length[row]].tolist()
            going = [text[len(known) :] for text in self.texts if text[: len(known)] == known]
            right = draft.tokens[: self._spoilt.get(row, 1000) - len(known)]
            if going and not any(agrees(text, right) for text in going):
                self.wrong.append(draft.tokens)
            self.happened["drafts that are right"] += bool(going and right)
        return drafts

    def _spoiling(self, steps: Any, known: Any) -> list[int]:
        states, going = self._drafts._states, self._draw(steps, known)
        for row in going:
            if self._chance.random() < 0.15:
                place = states.length.item(row) - 1
                states.tokens[row, place] = (states.tokens[row, place] + 1) % VOCAB_SIZE
                self._spoilt.setdefault(row, place)
        return list(going)


def own_drafts(
    folder: Path, seeds: range, monkeypatch: pytest.MonkeyPatch, late: bool = False, **options: Any
) -> Counter[str]:
    monkeypatch.setattr(crowds, "random_proposer", lambda chance, folder: Modelled(folder))
    happened: Counter[str] = Counter()
    for seed in seeds:
        more = {**options, "late": Queue()} if late else options
        crowd = OwnDrafts(folder, seed, **more)
        if crowd.proposer is not None:
            assert crowd.meet().differing == []
            assert not crowd.wrong, "a wrong draft"
            happened += crowd.happened
    return happened


def test_drafts_are_right_whatever_happens_to_pages(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    happened = own_drafts(folder, range(60), monkeypatch)
    assert happened["drafts that are right"] > 300
    for what in ("drafted tokens accepted", "drafted tokens rejected"):
        assert happened[what] > 200, what
    for what in ("preempted", "tokens from the cache", "tokens from disk", "steps with pages swapped out"):
        assert happened[what] > 10, what


def test_drafts_on_a_device_that_answers_late(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert own_drafts(folder, range(30), monkeypatch, late=True)["drafted tokens accepted"] > 50


def test_drafts_beside_layers_with_windows(mixed: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    happened = own_drafts(mixed, range(30), monkeypatch, sliding=24)
    assert happened["drafted tokens accepted"] > 50


@pytest.mark.parametrize("late", [False, True])
def test_first_layers_with_windows(
    mixed: Path, windowed: Path, monkeypatch: pytest.MonkeyPatch, late: bool
) -> None:
    monkeypatch.setattr(crowds, "random_proposer", lambda chance, folder: Modelled(layers=1))
    happened: Counter[str] = Counter()
    for seed in range(24):
        for folder, options in ((mixed, {"sliding": 24}), (windowed, {"window": 24})):
            crowd = Crowd(folder, seed, late=Queue() if late else None, **options)
            if crowd.proposer is not None:
                assert crowd.meet().differing == []
                happened += crowd.happened
    assert happened["drafted tokens accepted"] > 20


# --- mistakes, made on purpose -----------------------------------------------------------------------------


def count_what_was_rejected(patch: pytest.MonkeyPatch) -> None:
    """Keys of rejected tokens count as the row's, and are found in the prefix cache."""

    def accept(self: DrafterWrites, states: Any, row: int, length: int) -> None:
        first, tokens, pages = self._drafted.pop(row, (length, (), []))
        for position in range(first, first + len(tokens)):
            page = states.pages[row, position // self._page_size]
            if page in pages and self._written[page] == position % self._page_size:
                self._written[page] += 1

    patch.setattr(DrafterWrites, "_accept", accept)


def keep_what_a_page_had(patch: pytest.MonkeyPatch) -> None:
    """A page that another request gets to write to counts as written."""
    follow = DrafterWrites.follow

    def mutant(self: DrafterWrites, plan: Any) -> None:
        before = self._written.copy()
        follow(self, plan)
        for step in plan.steps:
            for page in step.pages:
                self._written[page] = max(self._written[page], before[page])

    patch.setattr(DrafterWrites, "follow", mutant)


def leave_copies_out(patch: pytest.MonkeyPatch) -> None:
    """What a copy holds is what its page held before."""
    from octavo.runtime import draft_pages

    patch.setattr(
        draft_pages, "pairs_of", lambda plan, first: [(target, target) for _, target in plan.copies]
    )
    patch.setattr(DrafterWrites, "count", lambda self, states, row, length: length - 1)


def count_a_siblings_tokens(patch: pytest.MonkeyPatch) -> None:
    """Behind the prompt that both have, a copied page holds those of whom it was copied from."""
    patch.setattr(DrafterWrites, "_end_at_starts", lambda *_: None)


def noise_of_the_next_position(patch: pytest.MonkeyPatch) -> None:
    asked = ModelDrafts._asked
    patch.setattr(
        ModelDrafts, "_asked", lambda self, rows, positions, known: asked(
            self, rows, [position + 1 for position in positions], known
        ),
    )  # fmt: skip
    attach = ModelDrafts.attach

    def without_decoder(self: ModelDrafts, *given: Any) -> None:
        attach(self, *given)
        self._decoder = None

    patch.setattr(ModelDrafts, "attach", without_decoder)


def forget_drafted_tokens(patch: pytest.MonkeyPatch) -> None:
    """Penalties and grammars do not see what was drafted before."""
    batch = SamplingRows.batch
    patch.setattr(
        SamplingRows, "batch", lambda self, rows, positions, ahead=None: batch(self, rows, positions)
    )


def read_from_the_position_before(patch: pytest.MonkeyPatch) -> None:
    count = DrafterWrites.count
    patch.setattr(
        DrafterWrites, "count", lambda self, states, row, length: min(
            count(self, states, row, length) + 1, length - 1
        ),
    )  # fmt: skip


MUTANTS: list[Patch] = [
    count_what_was_rejected,
    keep_what_a_page_had,
    leave_copies_out,
    count_a_siblings_tokens,
    noise_of_the_next_position,
    forget_drafted_tokens,
    read_from_the_position_before,
]


@pytest.mark.parametrize("mutate", MUTANTS, ids=lambda each: each.__name__)
def test_mutants_are_noticed(folder: Path, mutate: Patch, monkeypatch: pytest.MonkeyPatch) -> None:
    """By a draft that is wrong: no answer is, whatever is drafted."""
    for page in folder.glob("pages-*"):  # what is on disk was written by others
        for file in page.iterdir():
            file.unlink()
    mutate(monkeypatch)
    with pytest.raises(AssertionError, match="a wrong draft"):
        own_drafts(folder, range(120), monkeypatch)
