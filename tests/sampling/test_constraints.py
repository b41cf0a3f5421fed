"""allowed_token_ids and forced tokens: masks, and what they do to a draw."""

from __future__ import annotations

import numpy as np
import pytest

from octavo.errors import InvalidRequestError
from octavo.params import SampledToken, SamplingParams
from octavo.sampling import RowError, Sampler, SamplingRows
from octavo.sampling.constraints import ForcedTokens, mask_of
from octavo.sampling.logits import allowed

VOCAB, END = 70, 7


def test_a_mask_holds_a_bit_per_token() -> None:
    mask = mask_of([0, 31, 32, 69, 500], 3)
    assert mask.tolist() == [1 | 1 << 31, 1, 1 << 5]
    assert np.flatnonzero(allowed(mask, VOCAB)).tolist() == [0, 31, 32, 69]


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_only_allowed_tokens_are_drawn(temperature: float) -> None:
    rows = SamplingRows(2, VOCAB)
    params = SamplingParams(temperature=temperature, allowed_token_ids=[3, 64])
    rows.add(0, params, 1, 0, [1], 1)
    rows.add(1, SamplingParams(temperature=0), 1, 0, [1], 1)
    logits = np.zeros((2, VOCAB), np.float32)
    logits[:, 40] = 50
    logits[:, 64] = 20
    for position in range(1, 20):
        first, second = Sampler().sample(logits, rows.batch([0, 1], [position] * 2))
        assert not isinstance(first, RowError)
        assert not isinstance(second, RowError)
        assert first.token_id == 64
        assert second.token_id == 40  # its neighbour's mask is not its own


def test_a_row_whose_tokens_are_all_masked_fails_alone() -> None:
    rows = SamplingRows(2, VOCAB)
    rows.add(0, SamplingParams(allowed_token_ids=[69]), 1, 0, [1], 1)
    rows.add(1, SamplingParams(temperature=0), 1, 0, [1], 1)
    logits = np.zeros((2, VOCAB), np.float32)
    logits[0, 69] = -np.inf
    first, second = Sampler().sample(logits, rows.batch([0, 1], [1, 1]))
    assert isinstance(first, RowError)
    assert "no token is allowed" in first.message
    assert not isinstance(second, RowError)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("bad_words", [""]),
        ("bad_words", ["x" * 300]),
        ("bad_words", ["x"] * 300),
        ("allowed_token_ids", []),
        ("allowed_token_ids", [-1]),
        ("allowed_token_ids", [True]),
        ("prompt_logprobs", 21),
        ("truncate_prompt_tokens", 0),
    ],
)
def test_bad_values_are_refused_by_name(field: str, value: object) -> None:
    with pytest.raises(InvalidRequestError, match=field) as caught:
        SamplingParams(**{field: value})  # type: ignore[arg-type]
    assert caught.value.param == field


def test_forced_tokens_come_whatever_else_is_asked() -> None:
    """Also an end before min_tokens, a token outside of other masks, and after drafts; then all is free."""
    params = SamplingParams(
        min_tokens=3,
        temperature=0.0,
        allowed_token_ids=[1, 2],
        constraints=(ForcedTokens({0: 5, 2: END}),),
    )
    rows = SamplingRows(1, VOCAB, (END,))
    rows.add(0, params, 0, 0, [1, 1], 2)
    logits = np.zeros((2, VOCAB), np.float32)
    logits[:, 2] = 1
    batch = rows.batch([0, 0], [2, 4], [[], [5, 2]])
    drawn = [token.token_id for token in Sampler().sample(logits, batch) if isinstance(token, SampledToken)]
    assert drawn == [5, END]
    rows.append(0, [5])
    (second,) = Sampler().sample(logits[:1], rows.batch([0], [3]))
    assert isinstance(second, SampledToken)
    assert second.token_id == 2
