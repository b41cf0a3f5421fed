"""gather_batch against its definition, token by token."""

from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from octavo.engine.step_plan import EncoderInput, NewRow, RowStep
from octavo.params import SamplingParams
from octavo.runtime.simple_batches import encoder_batch
from octavo.runtime.states import RequestStates, gather_batch

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
        states.grow(RowStep(row, 0, cut * page_size, tuple(tables[row][:cut]), False))
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


@given(st.data(), st.integers(1, 9))
@settings(max_examples=60, deadline=None)
def test_encoder_inputs_lie_whole_in_their_pages(data: st.DataObject, page_size: int) -> None:
    sources = data.draw(
        st.lists(st.lists(st.integers(0, 99), min_size=1, max_size=30), min_size=1, max_size=5)
    )
    free = iter(data.draw(st.permutations(range(200))))
    inputs = [
        EncoderInput(tuple(ids), tuple(next(free) for _ in range(-(-len(ids) // page_size))), True)
        for ids in sources
    ]
    batch = encoder_batch(inputs, page_size)
    at = 0
    for s, one in enumerate(inputs):
        assert batch.query_start[s] == at
        assert batch.context_lens[s] == len(one.token_ids)
        assert tuple(batch.page_tables[s, : len(one.pages)]) == one.pages
        for position, token in enumerate(one.token_ids):
            assert (batch.token_ids[at], batch.positions[at]) == (token, position)
            assert batch.slots[at] == one.pages[position // page_size] * page_size + position % page_size
            at += 1
    assert batch.query_start[-1] == at == batch.num_tokens
    assert batch.num_sampled == 0


def test_a_decoder_reads_its_rows_encoder_pages() -> None:
    states = RequestStates(3, 8, 4, max_encoder_len=12)
    for row, (length, pages) in {0: (9, (7, 5, 6)), 2: (3, (4,))}.items():
        encoder = EncoderInput((1,) * length, pages, True)
        states.start(NewRow(row, "r", (5,), 1, SamplingParams(), 0, 0, encoder))
        states.grow(RowStep(row, 0, 1, (row,), True))
    batch = gather_batch([RowStep(2, 0, 1, (), True), RowStep(0, 0, 1, (), True)], states)
    assert batch.cross_lens is not None
    assert batch.cross_tables is not None
    assert batch.cross_lens.tolist() == [3, 9]
    assert batch.cross_tables.tolist() == [[4, 0, 0], [7, 5, 6]]
    plain = RequestStates(3, 8, 4)
    plain.start(NewRow(0, "r", (5,), 1, SamplingParams(), 0, 0))
    plain.grow(RowStep(0, 0, 1, (0,), True))
    assert gather_batch([RowStep(0, 0, 1, (), True)], plain).cross_lens is None
