"""Drafts put to the p/q test: what stays as it is, and the token after the last accepted one.

That the distribution stays is shown in tests/llm/test_draft_distribution.py.
"""

from __future__ import annotations

from pathlib import Path
from random import Random
from typing import Any

import pytest

from octavo.params import SamplingParams
from octavo.runtime.drafted import Walk
from octavo.runtime.speculation import SpeculatingRunner
from support.late_device import Queue
from support.scripted import Scripted
from support.tiny_engine import VOCAB_SIZE, run, save_tiny_llama, tiny_engine

GREEDY = SamplingParams(temperature=0, max_tokens=25, ignore_eos=True, logprobs=2)
SAMPLED = SamplingParams(temperature=1.2, seed=3, max_tokens=24, ignore_eos=True)
PROMPT = [5, 6, 7, 8, 9]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_tiny_llama(tmp_path_factory.mktemp("rejecting"))


class Chains(Scripted):
    """As many tokens as are wanted, always."""

    def propose(self, most: Any) -> Any:
        drafts = {row: self._draft(self.rows[row], count) for row, count in most.items()}
        return {row: draft for row, draft in drafts.items() if draft.tokens}


def oracle(folder: Path, params: SamplingParams, right: float = 1.0, trees: bool = False) -> Chains:
    """Knows what the prompt's answers are without drafts."""
    made = Chains(Random(4), VOCAB_SIZE, right, trees)
    made.texts = [[*PROMPT, *tokens] for tokens, _, _ in run(tiny_engine(folder), PROMPT, params)]
    return made


@pytest.mark.parametrize("late", [False, True])
@pytest.mark.parametrize("trees", [False, True])
@pytest.mark.parametrize("right", [0.0, 0.6, 1.0])
@pytest.mark.parametrize("more", [{}, {"frequency_penalty": 0.5}, {"allowed_token_ids": list(range(9, 60))}])
def test_greedy_answers_are_those_without(
    folder: Path, late: bool, trees: bool, right: float, more: dict[str, Any]
) -> None:
    """There the likeliest token is certain, so that the test leaves nothing to chance."""
    params = GREEDY.replace(**more)
    options: dict[str, Any] = {"late": Queue(), "depth": 2} if late else {}
    proposer = oracle(folder, params, right, trees)
    core = tiny_engine(folder, speculate=(proposer, 5), max_sampled_rows=40, rejecting=True, **options)
    assert run(core, PROMPT, params) == run(tiny_engine(folder), PROMPT, params)
    counts = core.stats().drafts
    assert counts.drafts > 3
    assert (counts.accepted_tokens > 8) is (right > 0)


def steps_of_right_drafts(folder: Path) -> int:
    proposer = oracle(folder, GREEDY)
    core = tiny_engine(folder, speculate=(proposer, 5), max_sampled_rows=40, rejecting=True)
    assert len(run(core, PROMPT, GREEDY)[0][0]) == 25
    return core.stats().steps


def test_five_accepted_drafts_give_six_tokens(folder: Path) -> None:
    assert steps_of_right_drafts(folder) == 1 + 24 // 6


def test_mutant_without_the_token_after_the_last_accepted(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It biases nothing, it wastes: so its mark is the number of steps."""
    take = Walk.take

    def mutant(self: Walk, token: Any) -> bool:
        return take(self, token) and bool(self.drafted)

    monkeypatch.setattr(Walk, "take", mutant)
    assert steps_of_right_drafts(folder) > 1 + 24 // 6


def test_the_decoder_that_walks_by_itself_is_left_out(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(SpeculatingRunner, "_verified", lambda *_: pytest.fail("it knows no p/q test"))
    proposer = oracle(folder, SAMPLED, 0.7)
    core = tiny_engine(folder, speculate=(proposer, 5), max_sampled_rows=40, rejecting=True)
    answer = run(core, PROMPT, SAMPLED)
    assert core.stats().drafts.drafts > 10
    assert answer != run(tiny_engine(folder), PROMPT, SAMPLED)  # other bits, though of the same distribution


def test_a_row_that_asks_for_no_drafts_says_what_it_says_without(folder: Path) -> None:
    params = SAMPLED.replace(speculative={"k": 0}, logprobs=1)
    core = tiny_engine(folder, speculate=(oracle(folder, SAMPLED), 5), max_sampled_rows=40, rejecting=True)
    assert run(core, PROMPT, params) == run(tiny_engine(folder), PROMPT, params)
