"""Drafts of any kind, right or wrong: every request says what it says alone, to the bit."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from random import Random
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from octavo.engine.step_plan import NewRow, RowStep, SampledToken, StepPlan, StepResult, counted
from octavo.kernels.select import native_available
from octavo.params import BeamSearchParams, SamplingParams
from octavo.params.drafts import Draft
from octavo.params.speculative import SpeculativeParams
from octavo.runtime import speculation
from octavo.runtime.speculation import OverlappedSpeculation, SpeculatingRunner, Speculation
from octavo.spec.costs import Load
from octavo.spec.policy import Fixed
from support import draft_mutants
from support.crowds import Crowd
from support.late_device import Queue
from support.scripted import Scripted
from support.tiny_engine import BACKENDS, VOCAB_SIZE, run, save_tiny_llama, save_tiny_mixed, tiny_engine

GREEDY = SamplingParams(temperature=0, max_tokens=24, ignore_eos=True)
SAMPLED = SamplingParams(temperature=0.9, seed=3, max_tokens=24, ignore_eos=True)
PROMPT = [5, 6, 7, 8, 9]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_tiny_llama(tmp_path_factory.mktemp("drafted"))


@pytest.fixture(scope="module")
def mixed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_tiny_mixed(tmp_path_factory.mktemp("mixed"), 24)


def drafted_crowds(folder: Path, seeds: range, **options: Any) -> Iterator[Crowd]:
    """Those of these seeds that have drafts."""
    for seed in seeds:
        crowd = Crowd(folder, seed, **options)
        if crowd.proposer is not None:
            yield crowd.meet()


def happened(crowds: Iterator[Crowd]) -> Counter[str]:
    found: Counter[str] = Counter()
    for crowd in crowds:
        assert crowd.differing == []
        found += crowd.happened
    return found


def test_crowds_say_what_each_says_alone(folder: Path) -> None:
    """Chains and trees beside chunks, beams, grammars, penalties, scores; preemption, swaps, cache, disk."""
    found = happened(drafted_crowds(folder, range(70)))
    for what in ("drafted tokens accepted", "drafted tokens rejected"):
        assert found[what] > 300, what
    for what in ("compared", "preempted", "tokens from the cache", "tokens from disk"):
        assert found[what] > 10, what


def test_crowds_on_a_device_that_answers_late(folder: Path) -> None:
    queues = [Queue() for _ in range(50)]
    crowds = (
        c for seed, q in enumerate(queues) for c in drafted_crowds(folder, range(seed, seed + 1), late=q)
    )
    found = happened(crowds)
    assert min(found["drafted tokens accepted"], found["drafted tokens rejected"]) > 100
    assert sum(queue.overlaps for queue in queues) > 100


@pytest.mark.parametrize("late", [False, True])
def test_crowds_with_sliding_pages(mixed: Path, late: bool) -> None:
    """Nodes of trees lie in sliding pages too."""
    options: dict[str, Any] = {"sliding": 24}
    seeds = ({**options, "late": Queue()} if late else options for _ in range(30))
    crowds = (c for i, more in enumerate(seeds) for c in drafted_crowds(mixed, range(i, i + 1), **more))
    assert happened(crowds)["drafted tokens accepted"] > 100


@pytest.mark.slow
def test_many_crowds_say_what_each_says_alone(folder: Path) -> None:
    found = happened(drafted_crowds(folder, range(1000, 1400)))
    assert found["drafted tokens accepted"] > 3000


def oracle(folder: Path, params: SamplingParams, right: float = 1.0, trees: bool = False) -> Scripted:
    """Knows what the prompt's answers are."""
    made = Scripted(Random(4), VOCAB_SIZE, right, trees)
    made.texts = [[*PROMPT, *tokens] for tokens, _, _ in run(tiny_engine(folder), PROMPT, params)]
    return made


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("trees", [False, True])
@pytest.mark.parametrize("right", [0.0, 0.5, 1.0])
@pytest.mark.parametrize("params", [GREEDY, SAMPLED, SAMPLED.replace(logprobs=2, frequency_penalty=0.3)])
def test_one_row(folder: Path, backend: str, trees: bool, right: float, params: SamplingParams) -> None:
    plain = tiny_engine(folder, backend)
    wanted = run(plain, PROMPT, params)
    proposer = oracle(folder, params, right, trees)
    core = tiny_engine(folder, backend, speculate=(proposer, 6), max_sampled_rows=40)
    if backend == "cpu":
        assert run(core, PROMPT, params) == wanted
    else:  # whose sums depend on the number of rows
        assert run(core, PROMPT, params)[0][0] == wanted[0][0]
    counts = core.stats().drafts
    assert counts.drafts > 3
    if right == 1.0:
        assert core.stats().steps < 0.7 * plain.stats().steps
        assert counts.accepted_tokens > 8


def native_taken(monkeypatch: pytest.MonkeyPatch) -> list[bool]:
    taken: list[bool] = []
    verified = SpeculatingRunner._verified

    def counted(self: SpeculatingRunner, *args: Any) -> Any:
        result = verified(self, *args)
        taken.append(result is not None)
        return result

    monkeypatch.setattr(SpeculatingRunner, "_verified", counted)
    return taken


@pytest.mark.skipif(not native_available(), reason="the reference has no decoder")
@pytest.mark.parametrize("params", [GREEDY, SAMPLED, SAMPLED.replace(top_p=0.8, top_k=9)])
@pytest.mark.parametrize("page_size", [1, 5, 16])
def test_the_decoder_walks_as_the_runner_does(
    folder: Path, monkeypatch: pytest.MonkeyPatch, params: SamplingParams, page_size: int
) -> None:
    """In one call where rows ask for nothing beyond their numbers, else node by node: equal answers."""
    params, options = params.replace(n=3), {"page_size": page_size, "num_pages": 400, "max_sampled_rows": 40}
    taken = native_taken(monkeypatch)
    quick = tiny_engine(folder, speculate=(oracle(folder, params, 0.7), 5), threads=2, **options)
    answers = run(quick, PROMPT, params)
    assert taken
    assert all(taken)
    with monkeypatch.context() as patch:
        patch.setattr(SpeculatingRunner, "_verified", lambda *_: None)
        slow = tiny_engine(folder, speculate=(oracle(folder, params, 0.7), 5), **options)
        assert run(slow, PROMPT, params) == answers
    assert answers == run(tiny_engine(folder), PROMPT, params)
    assert slow.stats().drafts.accepted_at == quick.stats().drafts.accepted_at


@pytest.mark.skipif(not native_available(), reason="the reference has no decoder")
@pytest.mark.parametrize(
    ("start", "draft", "message"),
    [
        (2, [5], "drafts follow a row's last known token"),
        (4, [5], "a position is not a known token's"),
        (3, [VOCAB_SIZE], "a draft is no token of the vocabulary"),
        (3, [5, -1], "a draft is no token of the vocabulary"),
        (3, [5] * 160, "a draft is beyond what its row holds"),
    ],
)
def test_what_the_decoder_refuses(folder: Path, start: int, draft: list[int], message: str) -> None:
    """Nothing has changed then."""
    runner: Any = tiny_engine(folder, speculate=(Scripted(Random(0), VOCAB_SIZE), 2))._executor
    new = NewRow(0, "a", (5, 6, 7), 3, GREEDY, 0, 0)
    runner.submit(StepPlan(1, (), (new,), (RowStep(0, 0, 3, (0,), True),))).result()
    before = runner._states.tokens.copy()
    with pytest.raises(ValueError, match=message):
        runner._decoding.decoder.verify([0], [start], [draft])
    assert runner._states.length[0] == 4
    np.testing.assert_array_equal(runner._states.tokens, before)


# --- who has drafts ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("params", "drafted"),
    [
        (GREEDY, True),
        (GREEDY.replace(speculative={"k": 0}), False),
        (GREEDY.replace(speculative={"k": "many"}), False),  # refused where requests are made of prompts
        (GREEDY.replace(speculative={"prediction": [2**40]}), False),
        (GREEDY.replace(prompt_logprobs=0), False),
        (SamplingParams(n=2, max_tokens=8, beam_search=BeamSearchParams(2, 8)), False),
    ],
)
def test_who_has_drafts(folder: Path, params: SamplingParams, drafted: bool) -> None:
    proposer = oracle(folder, params)
    core = tiny_engine(folder, speculate=(proposer, 4), max_sampled_rows=40)
    assert run(core, PROMPT, params) == run(tiny_engine(folder), PROMPT, params)
    assert (core.stats().drafts.drafts > 0) is drafted


@pytest.mark.parametrize(("most", "k", "drafts"), [(8, 3, 3), (2, 3, 2), (8, None, 8)])
def test_a_request_names_its_own_number(folder: Path, most: int, k: int | None, drafts: int) -> None:
    params = GREEDY.replace(speculative=SpeculativeParams(k), max_tokens=40)
    core = tiny_engine(folder, speculate=(oracle(folder, params), most), max_sampled_rows=40)
    seen: list[int] = []
    runner: Any = core._executor
    submit = runner.submit
    runner.submit = lambda plan: seen.extend(len(s.drafts) for s in plan.steps) or submit(plan)
    run(core, PROMPT, params)
    assert max(seen) == drafts


def test_a_draft_of_words_that_there_are_none_is_cut(folder: Path) -> None:
    class Wild(Scripted):
        def propose(self, most: Any) -> dict[int, Draft]:
            return {row: Draft.chain((3, VOCAB_SIZE, 4)) for row in most}

    core = tiny_engine(folder, speculate=(Wild(Random(0), VOCAB_SIZE), 4), max_sampled_rows=40)
    assert run(core, PROMPT, GREEDY) == run(tiny_engine(folder), PROMPT, GREEDY)
    counts = core.stats().drafts
    assert counts.draft_tokens == counts.drafts > 10


def test_an_end_within_accepted_drafts(folder: Path) -> None:
    """What was drawn behind the stop token, or beyond max_tokens, is nobody's."""
    known = run(tiny_engine(folder), PROMPT, GREEDY)[0][0]
    stopped = SamplingParams(temperature=0, max_tokens=24, stop_token_ids=[known[5]])
    for params in (stopped, GREEDY.replace(max_tokens=7)):
        core = tiny_engine(folder, speculate=(oracle(folder, GREEDY), 8), max_sampled_rows=40)
        answer = run(core, PROMPT, params)
        assert answer == run(tiny_engine(folder), PROMPT, params)
        assert core.stats().steps < len(answer[0][0])
        assert core.stats().kv_usage == 0


def test_the_policy_is_told_of_every_step_with_drafts(folder: Path) -> None:
    """Of those without it is told of one in TOLD_ONE_IN."""
    core = tiny_engine(folder, speculate=(oracle(folder, GREEDY, 0.5), 3), max_sampled_rows=40)
    runner: Any = core._executor
    told: list[Load] = []
    plans: list[StepPlan] = []
    submit = runner.submit
    runner._speculation.policy.took = lambda load, seconds: told.append(load)
    runner.submit = lambda plan: plans.append(plan) or submit(plan)
    run(core, PROMPT, GREEDY)
    run(core, PROMPT, GREEDY.replace(speculative={"k": 0}))
    drafted = [Load(*counted(plan.steps)) for plan in plans if any(step.drafts for step in plan.steps)]
    assert len(drafted) > 5
    assert [load for load in told if load.sampled > 1] == drafted
    assert 3 < len(told) - len(drafted) < (len(plans) - len(drafted)) / 2


@pytest.mark.parametrize(("whole", "told"), [(1.0, 1.0), (1.25, 1.25), (1.75, 1.0)])
def test_what_the_host_does_for_drafts_counts_as_the_steps_time(whole: float, told: float) -> None:
    """From one step to the next; a gap beyond that is no work."""
    seconds: list[float] = []
    policy: Any = SimpleNamespace(took=lambda load, took: seconds.append(took))
    Speculation(Scripted(Random(0), VOCAB_SIZE), policy, 4, VOCAB_SIZE).took(Load(1, 1), 1.0, whole)
    assert seconds == [told]


def test_of_a_row_that_has_gone_to_another_nothing_is_told() -> None:
    told: list[tuple[int, list[int]]] = []

    class Told(Scripted):
        def observe(self, row: int, tokens: Any) -> None:
            told.append((row, list(tokens)))

    made = speculation.Speculation(Told(Random(0), 9), Fixed(), 4, 9)
    states: Any = SimpleNamespace(length=np.array([3]), tokens=np.array([[3, 4, 5]]))
    made.attach(states, states)
    new = NewRow(0, "a", (1, 2), 2, GREEDY, 0, 0)
    made.start(new)
    plan = StepPlan(1, (), (new,), (RowStep(0, 0, 2, (0,), True),))
    result = StepResult(1, {0: (SampledToken(5),)}, {})
    submitted: Any = SimpleNamespace(result=lambda: result)
    late = made.following(plan, submitted)
    made.start(NewRow(0, "b", (3, 4), 2, GREEDY, 0, 0))
    late.result()
    assert told == []
    made.following(plan, submitted).result()
    assert told == [(0, [5])]


def test_a_step_that_was_executed_at_once_is_followed_at_once() -> None:
    proposer = Scripted(Random(0), 9)
    made = speculation.Speculation(proposer, Fixed(), 4, 9)
    states: Any = SimpleNamespace(length=np.array([3]), tokens=np.array([[3, 4, 5]]))
    made.attach(states, states)
    new = NewRow(0, "a", (1, 2), 2, GREEDY, 0, 0)
    made.start(new)
    result = made.followed(StepResult(1, {0: (SampledToken(5),)}, {}))
    assert made._rows[0].told == 3
    assert len(result.drafts[0]) > 0


# --- rests ------------------------------------------------------------------------------------------------


class Rests(Fixed):
    """Asks for drafts after one step in so many, and keeps none of them, or all."""

    def __init__(self, one_in: int, verifies: bool) -> None:
        super().__init__()
        self._one_in, self._verifies = one_in, verifies
        self.observed: list[tuple[int, int]] = []  # (tokens, steps)

    def choose(self, drafts: Any, positions: Any, load: Load) -> dict[int, Draft]:
        return super().choose(drafts, positions, load) if self._verifies else {}

    def rest(self, load: Load, asking_s: float) -> int:
        assert asking_s > 0
        return self._one_in - 1

    def observe(self, row: int, tokens: Any, steps: int = 1) -> None:
        self.observed.append((len(tokens), steps))


class Heard(Scripted):
    """Counts what it is asked and told.

    Attributes:
        asked, told: calls of propose() and observe(). removed: what it knew of rows that left.
    """

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self.asked = self.told = 0
        self.removed: list[list[int]] = []

    def propose(self, most: Any) -> dict[int, Draft]:
        self.asked += 1
        return super().propose(most)

    def observe(self, row: int, tokens: Any) -> None:
        self.told += 1
        super().observe(row, tokens)

    def remove(self, row: int) -> None:
        self.removed.append(self.rows[row])
        super().remove(row)


def resting(folder: Path, one_in: int, verifies: bool, **options: Any) -> tuple[Any, Heard, Rests]:
    """An engine whose proposer rests."""
    proposer, policy = Heard(Random(0), VOCAB_SIZE), Rests(one_in, verifies)
    core = tiny_engine(folder, speculate=(proposer, 4), max_sampled_rows=40, **options)
    runner: Any = core._executor
    runner._speculation.policy = policy
    return core, proposer, policy


@pytest.mark.parametrize("depth", [1, 2])
def test_in_a_rest_nobody_is_asked_or_told_anything(folder: Path, depth: int) -> None:
    """And what was said meanwhile is told in one go when it is over, or the row leaves."""
    late = {"depth": 2, "late": Queue()} if depth == 2 else {}
    core, proposer, policy = resting(folder, 6, False, **late)
    wanted = run(tiny_engine(folder), PROMPT, GREEDY)
    follow, followed = core._executor._speculation.follow, list[int]()
    core._executor._speculation.follow = lambda rows, result: (
        followed.append(result.step_id) or follow(rows, result)
    )
    assert run(core, PROMPT, GREEDY) == wanted
    run(core, PROMPT, GREEDY.replace(max_tokens=1))  # whose plan names the row that is free now
    answer = wanted[0][0]
    assert proposer.asked == 1 + 24 // 6, "once an answer of one token, and of the others one in six"
    assert proposer.told == proposer.asked + 1, "and when the row left"
    assert proposer.removed[0][: len(PROMPT) + 24] == [*PROMPT, *answer]
    assert [pair for pair in policy.observed if pair[0] != pair[1]] == [], "a token a step"
    assert policy.observed[:3] == [(1, 1), (6, 6), (6, 6)]
    assert len(followed) <= depth * proposer.asked, "the others have the runner's own handle"


def test_a_rest_begins_where_nothing_is_verified(folder: Path) -> None:
    """Whoever verifies is followed: several tokens of a step are its own."""
    core, proposer, policy = resting(folder, 6, True)
    proposer.texts = [[*PROMPT, *run(tiny_engine(folder), PROMPT, GREEDY)[0][0]]]
    assert run(core, PROMPT, GREEDY) == run(tiny_engine(folder), PROMPT, GREEDY)
    assert core.stats().drafts.accepted_tokens > 3
    assert all(steps in (1, tokens) for tokens, steps in policy.observed)
    assert any(steps == 1 < tokens for tokens, steps in policy.observed)


def test_who_enters_ends_a_rest(folder: Path) -> None:
    core, proposer, _ = resting(folder, 1000, False)
    for count in (1, 2, 3):
        run(core, PROMPT, GREEDY)
        assert proposer.asked == count


def test_what_was_said_in_a_rest_goes_with_a_reset(folder: Path) -> None:
    """The proposer is told of it before, so that it is not for others afterwards."""
    core, proposer, _ = resting(folder, 1000, False)
    core.add_request("a", PROMPT, GREEDY)
    for _ in range(10):
        core.step()
    assert len(proposer.rows[0]) < len(PROMPT) + 9
    core._executor._speculation.reset()
    assert len(proposer.rows[0]) == len(PROMPT) + 10


@pytest.mark.parametrize("late", [False, True])
def test_crowds_whose_proposers_rest_say_what_each_says_alone(
    folder: Path, late: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rows come, go and are preempted in the midst of rests."""
    draw = Random(7)
    monkeypatch.setattr(Fixed, "rest", lambda self, load, asking_s: draw.randrange(4))
    crowds = (
        crowd for seed in range(20)
        for crowd in drafted_crowds(folder, range(seed, seed + 1), **({"late": Queue()} if late else {}))
    )  # fmt: skip
    found = happened(crowds)
    assert min(found["drafted tokens accepted"], found["drafted tokens rejected"]) > 20
    assert found["compared"] > 10


# --- mistakes, made on purpose ----------------------------------------------------------------------------


@pytest.mark.parametrize("mutate", draft_mutants.ALL, ids=lambda each: each.__name__)
def test_mutants_are_noticed(
    folder: Path, mutate: draft_mutants.Patch, monkeypatch: pytest.MonkeyPatch
) -> None:
    mutate(monkeypatch)
    draft_mutants.the_long_way(monkeypatch)
    for seed in range(60):
        crowd = Crowd(folder, seed)
        if crowd.proposer is None:
            continue
        try:
            if crowd.meet().differing:
                return
        except (AssertionError, ValueError, RuntimeError):
            return
    pytest.fail("nobody noticed")


def test_runners_by_device(folder: Path) -> None:
    speculate = Scripted(Random(0), VOCAB_SIZE), 2
    assert type(tiny_engine(folder, speculate=speculate)._executor) is SpeculatingRunner
    late = tiny_engine(folder, speculate=speculate, depth=2, late=Queue())
    assert type(late._executor) is OverlappedSpeculation
