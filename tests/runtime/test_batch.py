"""gather_batch against its definition, token by token."""

from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from octavo.engine.plan import NewRow, RowStep
from octavo.params import SamplingParams
from octavo.runtime.batch import gather_batch
from octavo.runtime.states import RequestStates

ROWS, MODEL_LEN = 6, 50


@given(st.data(), st.integers(1, 9))
@settings(max_examples=80, deadline=None)
def test_every_token_stands_where_the_definition_says(data: st.DataObject, page_size: int) -> None:
    states = RequestStates(ROWS, MODEL_LEN, page_size)
    rows = data.draw(st.lists(st.integers(0, ROWS - 1), min_size=1, unique=True))
    free = iter(data.draw(st.permutations(range(ROWS * (MODEL_LEN // page_size + 1)))))
    steps, known, tables = [], {}, {}
    decoding = data.draw(st.booleans())  # one token a row, all sampled: a shorter way
    for row in rows:
        known[row] = data.draw(st.lists(st.integers(0, 99), min_size=1, max_size=MODEL_LEN))
        states.start(NewRow(row, "r", tuple(known[row]), 1, SamplingParams(), 0, 0))
        start = len(known[row]) - 1 if decoding else data.draw(st.integers(0, len(known[row]) - 1))
        count = data.draw(st.integers(1, len(known[row]) - start))
        tables[row] = [next(free) for _ in range(-(-(start + count) // page_size))]
        cut = data.draw(st.integers(0, len(tables[row])))
        states.grow(RowStep(row, 0, 1, tuple(tables[row][:cut]), False))
        sample = start + count == len(known[row])
        steps.append(RowStep(row, start, count, tuple(tables[row][cut:]), sample))
        states.grow(steps[-1])
    batch = gather_batch(steps, states)
    at = 0
    for s, step in enumerate(steps):
        assert batch.query_start[s] == at
        assert batch.context_lens[s] == step.start + step.count
        for position in range(step.start, step.start + step.count):
            assert batch.token_ids[at] == known[step.row][position]
            assert batch.positions[at] == position
            page = tables[step.row][position // page_size]
            assert batch.slots[at] == page * page_size + position % page_size
            assert batch.page_tables[s, position // page_size] == page
            at += 1
    assert batch.query_start[-1] == at == batch.num_tokens
    last = [int(batch.query_start[s + 1]) - 1 for s, step in enumerate(steps) if step.sample]
    assert batch.sampled.tolist() == last
    arrays = (batch.token_ids, batch.positions, batch.slots, batch.query_start, batch.context_lens,
              batch.page_tables, batch.sampled)  # fmt: skip
    assert all(a.dtype == np.int32 and a.flags.c_contiguous for a in arrays)


def test_a_row_forgets_its_predecessor() -> None:
    states = RequestStates(2, 8, 4)
    states.start(NewRow(1, "a", (5, 6, 7), 2, SamplingParams(), 0, 0))
    states.grow(RowStep(1, 0, 3, (3,), True))
    states.append(1, 9)
    assert states.tokens[1, :4].tolist() == [5, 6, 7, 9]
    states.start(NewRow(1, "b", (8,), 1, SamplingParams(), 0, 0))
    states.grow(RowStep(1, 0, 1, (2,), True))
    assert states.pages[1, 0] == 2
    assert states.length[1] == 1
