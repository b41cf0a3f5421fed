"""TokenLogprobs: a list of dicts by every test but its memory."""

from __future__ import annotations

import copy
import pickle
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from octavo.engine.output import OutputProcessor
from octavo.engine.request import EngineRequest, RequestUpdate
from octavo.engine.token_logprobs import TokenLogprobs
from octavo.params import Logprob, RequestMetrics, RequestOutputKind, SampledToken, SamplingParams

VALUES = st.floats(-50.0, 0.0)
TOKENS = st.lists(
    st.builds(
        SampledToken,
        st.integers(0, 9),
        VALUES,
        st.integers(1, 300),
        st.lists(st.tuples(st.integers(0, 9), VALUES), max_size=4, unique_by=lambda pair: pair[0]).map(tuple),
    ),
    max_size=8,
)


def text(token_id: int) -> str:
    return f"<{token_id}>"


def as_dict(token: SampledToken) -> dict[int, Logprob]:
    """The token's own first; the likeliest ones by their place among them."""
    found = {token.token_id: Logprob(token.logprob or 0.0, token.rank, text(token.token_id))}
    for rank, (token_id, logprob) in enumerate(token.top, 1):
        found.setdefault(token_id, Logprob(logprob, rank, text(token_id)))
    return found


def filled(tokens: list[SampledToken]) -> TokenLogprobs:
    made = TokenLogprobs(text)
    for token in tokens:
        made.add(token)
    return made


@given(
    tokens=TOKENS, start=st.integers(-9, 9), stop=st.integers(-9, 9), step=st.sampled_from([None, 1, 2, -1])
)
def test_reads_as_the_list_does(tokens: list[SampledToken], start: int, stop: int, step: int | None) -> None:
    made, wanted = filled(tokens), [as_dict(token) for token in tokens]
    assert made == wanted
    assert list(made) == wanted
    assert [list(each) for each in made] == [list(each) for each in wanted], "the same order"
    assert made[start:stop:step] == wanted[start:stop:step]
    assert made[start:stop][:2] == wanted[start:stop][:2]
    assert (len(made), bool(made), repr(made)) == (len(wanted), bool(wanted), repr(wanted))
    assert made != [*wanted, {}]
    assert made + made == wanted + made == wanted + wanted
    for place in range(-len(wanted), len(wanted)):
        assert made[place] == wanted[place]
    with pytest.raises(IndexError):
        made[len(wanted)]


@pytest.mark.parametrize("copied", [copy.deepcopy, lambda value: pickle.loads(pickle.dumps(value))])
def test_copies_are_lists(copied: Any) -> None:
    made = filled([SampledToken(1, -0.5, 1, ((1, -0.5), (2, -1.0)))])
    assert type(copied(made)) is list
    assert copied(made) == made


def test_a_slice_does_not_grow() -> None:
    made = filled([SampledToken(1, -0.5, 1)])
    part = made[:]
    made.add(SampledToken(2, -0.5, 1))
    assert (len(part), len(made)) == (1, 2)


def test_a_prompt_comes_in_pieces_and_perhaps_twice() -> None:
    tokens = [SampledToken(i, -float(i), 1) for i in range(6)]
    made = TokenLogprobs(text, 7)
    assert list(made) == [None] * 7
    made.put(1, tokens[:3])
    made.put(2, tokens[1:5])  # computed again after a preemption
    assert list(made) == [None, *map(as_dict, tokens[:5]), None]


def test_a_member_takes_some_twelve_bytes() -> None:
    top = tuple((i, -1.0) for i in range(20))
    made = filled([SampledToken(0, -0.5, 1, top)] * 1000)
    assert made.nbytes / (1000 * 21) < 14


@pytest.mark.parametrize("kind", list(RequestOutputKind))
def test_deltas_leave_nothing_behind(kind: RequestOutputKind) -> None:
    """What a stream has carried away is kept nowhere, however long the answer becomes."""

    class Plain:
        def push(self, token_id: int) -> str:
            return "ab"

        def flush(self) -> str:
            return ""

    params = SamplingParams(max_tokens=99, logprobs=1, output_kind=kind)
    stream = OutputProcessor(lambda ids, params: Plain(), lambda params: None, text).open(  # type: ignore
        EngineRequest("r", [1], params)
    )
    token = SampledToken(1, -0.5, 1, ((1, -0.5),))
    for _ in range(50):
        stream.take(RequestUpdate("r", 0, [token], None, None, 0, RequestMetrics(0.0)))
        stream.output()
    (completion,) = stream._completions.values()
    assert completion.logprobs is not None
    kept = (len(completion.text), len(completion.token_ids), len(completion.logprobs))
    assert kept == ((0, 0, 0) if kind is RequestOutputKind.DELTA else (100, 50, 50))
    assert completion.num_tokens == 50
    assert completion.cumulative_logprob == -25.0
