"""A step with drafts: its batch, and the slots that a walk's nodes move to."""

from __future__ import annotations

import numpy as np
import pytest

from octavo.engine.step_plan import NewRow, RowStep, SampledToken
from octavo.params import SamplingParams
from octavo.runtime.drafted import depths_of, gather_drafted, slots_to_move, walks_of
from octavo.runtime.states import RequestStates, RowWindow, gather_batch
from octavo.sampling.sampler import RowError

TREE = (-1, -1, 0, 2, 1)  # of drafts; as nodes: 1 and 2 below 0, 3 below 1, 4 below 3, 5 below 2


def states_of(*lengths: int, sliding: bool = False) -> RequestStates:
    """Rows of tokens 10 r, 10 r + 1, ..., each with pages of its own, of 4 slots."""
    states = RequestStates(
        len(lengths), 32, 4, window=RowWindow(8, 0, sliding=True) if sliding else RowWindow()
    )
    for row, length in enumerate(lengths):
        tokens = tuple(range(10 * row, 10 * row + length))
        states.start(NewRow(row, str(row), tokens, length, SamplingParams(), 0, 0))
        states.pages[row] = np.arange(8) + 8 * row
        if states.sliding_pages is not None:
            states.sliding_pages[row] = 50 - states.pages[row]
    return states


@pytest.mark.parametrize("sliding", [False, True])
def test_a_chain_is_gathered_as_the_prompt_that_it_would_be(sliding: bool) -> None:
    """Beside a chunk of a prompt and a row that decodes; sampled are all nodes."""
    steps = [RowStep(0, 5, 4, (), True, (7, 8, 9)), RowStep(1, 0, 3, (), False), RowStep(2, 2, 1, (), True)]
    batch = gather_drafted(steps, states_of(6, 9, 3, sliding=sliding))
    known = states_of(9, 9, 3, sliding=sliding)
    known.tokens[0, 6:9] = 7, 8, 9
    plain = gather_batch([RowStep(0, 5, 4, (), True), steps[1], steps[2]], known)
    for name in ("token_ids", "positions", "slots", "query_start", "context_lens", "page_tables"):
        np.testing.assert_array_equal(getattr(batch, name), getattr(plain, name), name)
        assert getattr(batch, name).dtype == getattr(plain, name).dtype
    for name in ("sliding_slots", "sliding_tables"):
        np.testing.assert_array_equal(getattr(batch, name), getattr(plain, name), name)
    assert batch.sampled.tolist() == [0, 1, 2, 3, 7]
    assert batch.tree_masks is None


def test_a_tree_has_positions_by_depth_and_slots_by_index() -> None:
    steps = [RowStep(0, 5, 6, (), True, (7, 8, 9, 6, 5), parents=TREE), RowStep(1, 4, 3, (), True, (1, 2))]
    batch = gather_drafted(steps, states_of(6, 5))
    assert batch.positions.tolist() == [5, 6, 6, 7, 8, 7, 4, 5, 6]
    assert batch.slots.tolist() == [5, 6, 7, 8, 9, 10, 36, 37, 38]
    assert batch.sampled.tolist() == list(range(9))
    assert batch.tree_masks is not None
    assert batch.tree_masks[:, 0].tolist() == [1, 3, 5, 11, 27, 37, 0, 0, 0]
    assert depths_of(TREE) == [0, 0, 1, 2, 1]


@pytest.mark.parametrize(
    "step",
    [
        RowStep(0, 6, 2, (), True, (7,)),
        RowStep(0, 5, 2, (), False, (7,)),
        RowStep(0, 4, 2, (), True, (7,)),
        RowStep(0, 5, 2, (), True),
    ],
)
def test_what_nobody_knows_is_not_gathered(step: RowStep) -> None:
    with pytest.raises(ValueError, match=r"row 0: positions .* go beyond its 6 tokens"):
        gather_drafted([step], states_of(6))


def test_passed_nodes_move_to_the_slots_of_their_positions() -> None:
    """The nearest first, so that none is overwritten before it is read."""
    states = states_of(6)
    step = RowStep(0, 5, 6, (), True, (7, 8, 9, 6, 5), parents=TREE)
    (one,) = walks_of([RowStep(0, 0, 5, (), False), step])
    assert (one.start, one.at, one.position, one.logits) == (5, 0, 6, 0)
    assert [one.take(SampledToken(token)) for token in (7, 9, 6, 4)] == [True, True, True, False]
    assert one.trail == [0, 1, 3, 4]
    assert (one.position, one.logits) == (10, 4)
    assert slots_to_move([one], states.pages, 4) == [(8, 7), (9, 8)]


def test_a_chain_moves_nothing() -> None:
    states, steps = states_of(6, 5), [RowStep(0, 5, 3, (), True, (7, 8)), RowStep(1, 4, 2, (), True, (3,))]
    walks = walks_of(steps)
    assert [one.at for one in walks] == [0, 3]
    for one in walks:
        for token in (7, 8, 3):
            one.take(SampledToken(token))
    assert slots_to_move(walks, states.pages, 4) == []


def test_an_error_ends_the_row_only_where_nothing_was_drawn() -> None:
    first, later = walks_of([RowStep(0, 5, 2, (), True, (7,)), RowStep(1, 4, 2, (), True, (7,))])
    assert not first.take(RowError("no"))
    assert first.error == "no"
    assert first.drawn == []
    assert later.take(SampledToken(7))
    assert not later.take(RowError("no"))
    assert later.error is None
    assert [token.token_id for token in later.drawn] == [7]
