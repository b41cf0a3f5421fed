"""The native sampler against the reference: tokens, ranks, log-probabilities and errors are equal.

Not close: both round every step alike (sampling/elementary.py), so results are compared with ==.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from octavo.kernels.cpu import CpuBackend, instruction_sets
from octavo.params import SampledToken, SamplingParams
from octavo.sampling import Sampler, SamplingBatch, TokenLists
from octavo.sampling.batch import ROW
from octavo.sampling.native import NativeSampler, make_sampler
from support.draws import lists, random_logits, random_mask, random_params

BACKENDS = {(isa, 1): CpuBackend(1, isa) for isa in instruction_sets()} | {
    ("auto", threads): CpuBackend(threads) for threads in (2, 3)
}
REFERENCE = Sampler()
VOCABS = (1, 2, 15, 16, 17, 255, 256, 257, 1000, 4096, 5003, 49_152)


def native(vocab: int, isa: str = "auto", threads: int = 2) -> Sampler:
    return make_sampler(BACKENDS[isa, threads], vocab)


def random_case(seed: int, rows: int, vocab: int, plain: bool) -> tuple[np.ndarray, SamplingBatch]:
    """plain: nothing but temperature, top_k, top_p and min_p."""
    rng = np.random.default_rng(seed)
    empty = TokenLists.of([None] * rows)
    batch = SamplingBatch(
        rows=random_params(rng, rows, vocab, not plain),
        positions=rng.integers(0, 2**40, rows),
        bias=empty if plain else lists(rng, rows, vocab, lambda n: rng.normal(0, 5, n)),
        banned=empty if plain else lists(rng, rows, vocab, np.zeros),
        seen=empty if plain else lists(rng, rows, vocab, lambda n: rng.integers(0, 4, n)),
        mask=None if plain or rng.random() < 0.5 else random_mask(rng, rows, vocab),
        errors={0: "no more"} if not plain and rng.random() < 0.1 else {},
    )
    return random_logits(rng, rows, vocab), batch


@settings(max_examples=120, deadline=None)
@given(
    seed=st.integers(0, 2**32),
    rows=st.integers(1, 7),
    vocab=st.one_of(st.sampled_from(VOCABS[:-1]), st.integers(1, 3000)),
    where=st.sampled_from(list(BACKENDS)),
)
def test_anything_gives_what_the_reference_gives(
    seed: int, rows: int, vocab: int, where: tuple[str, int]
) -> None:
    logits, batch = random_case(seed, rows, vocab, plain=False)
    before = logits.copy()
    assert native(vocab, *where).sample(logits, batch) == REFERENCE.sample(logits, batch)
    np.testing.assert_array_equal(logits, before)


@pytest.mark.parametrize("vocab", VOCABS)
@pytest.mark.parametrize("plain", [True, False])
def test_thousands_of_rows_without_one_disagreement(vocab: int, plain: bool) -> None:
    """Fixed seeds: 64 rows at a time; a draw that differs once in 10,000 rows would be seen."""
    rows = 64
    for seed in range(2 if vocab > 10_000 else 12):
        logits, batch = random_case(seed, rows, vocab, plain)
        ours, expected = native(vocab).sample(logits, batch), REFERENCE.sample(logits, batch)
        assert [i for i in range(rows) if ours[i] != expected[i]] == []


@pytest.mark.parametrize("lead", [8.0, 11.5, 12.0])
def test_top_p_reaches_into_a_long_flat_tail(lead: float) -> None:
    """One token leads 49,151 nearly equal ones, so that the mass is reached deep among the light."""
    rows, vocab = 40, 49_152
    logits, batch = random_case(1, rows, vocab, plain=True)
    logits[:] = np.random.default_rng(2).standard_normal((rows, vocab)) * 0.1
    logits[np.arange(rows), np.arange(rows) * 997] += lead
    for name, value in (("temperature", 1), ("top_k", 0), ("min_p", 0), ("top_p", 0.95)):
        batch.rows[name] = value
    drawn = native(vocab).sample(logits, batch)
    assert drawn == REFERENCE.sample(logits, batch)
    leaders = [row * 997 for row in range(rows)]
    assert sum(isinstance(t, SampledToken) and t.token_id not in leaders for t in drawn) > 3


@pytest.mark.parametrize("where", BACKENDS, ids=str)
@pytest.mark.parametrize("rows", [1, 2, 5])
def test_rows_of_a_real_size_on_every_instruction_set(where: tuple[str, int], rows: int) -> None:
    for seed in range(4):
        logits, batch = random_case(100 + seed, rows, 49_152, plain=bool(seed % 2))
        assert native(49_152, *where).sample(logits, batch) == REFERENCE.sample(logits, batch)


@pytest.mark.parametrize("vocab", VOCABS)
@pytest.mark.parametrize("count", [0, 7])
def test_given_tokens_have_the_scores_that_the_reference_gives_them(vocab: int, count: int) -> None:
    rng = np.random.default_rng(vocab)
    logits = (rng.standard_normal((9, vocab)) * 4).astype(np.float32)
    logits[:, rng.random(vocab) < 0.2] = -np.inf
    logits[:, 0] = 1.0
    logits[4] = -np.inf  # nothing there to draw, and yet the prompt has a token
    logits[4, vocab // 2] = 0.0
    tokens = rng.integers(0, vocab, 9).tolist()
    assert native(vocab).score(logits, tokens, count) == REFERENCE.score(logits, tokens, count)


def test_a_row_alone_and_among_others_at_any_alignment() -> None:
    vocab, rows = 5003, 9
    logits, batch = random_case(7, rows, vocab, plain=False)
    together = native(vocab).sample(logits, batch)
    for row in range(rows):
        padded = np.zeros(vocab + row, np.float32)
        padded[row:] = logits[row]
        alone = SamplingBatch(
            rows=batch.rows[row : row + 1],
            positions=batch.positions[row : row + 1],
            bias=TokenLists.of([batch.bias.row(row)]),
            banned=TokenLists.of([batch.banned.row(row)]),
            seen=TokenLists.of([batch.seen.row(row)]),
            mask=None if batch.mask is None else batch.mask[row : row + 1],
        )
        assert native(vocab).sample(padded[row:][None], alone) == [together[row]]


def test_frequencies_follow_the_probabilities() -> None:
    """Its own check, without the reference's draw: chi-square of 20,000 seeds."""
    vocab, trials = 40, 20_000
    rng = np.random.default_rng(0)
    row = (rng.standard_normal((1, vocab)) * 2).astype(np.float32)
    empty = TokenLists.of([None] * trials)
    params = np.zeros(trials, ROW)
    params["seed"], params["temperature"], params["repetition_penalty"] = np.arange(trials), 1.3, 1
    params["top_p"], params["top_k"], params["num_logprobs"] = 0.9, 20, -1
    batch = SamplingBatch(params, np.full(trials, 3), empty, empty, empty)
    drawn = native(vocab).sample(np.repeat(row, trials, axis=0), batch)
    one = SamplingBatch(params[:1], np.full(1, 3), *[TokenLists.of([None])] * 3)
    expected = REFERENCE.probabilities(row, one)[0][0] * trials
    counts = np.bincount([t.token_id for t in drawn if isinstance(t, SampledToken)], minlength=vocab)
    assert (counts[expected == 0] == 0).all()
    cells = expected > 0
    statistic = ((counts - expected)[cells] ** 2 / expected[cells]).sum()
    degrees = cells.sum() - 1
    assert degrees > 5
    assert (statistic - degrees) / (2 * degrees) ** 0.5 < 4


def test_an_empty_batch_draws_nothing() -> None:
    empty = TokenLists.of([])
    batch = SamplingBatch(np.zeros(0, ROW), np.zeros(0, np.int64), empty, empty, empty)
    assert native(100).sample(np.zeros((0, 100), np.float32), batch) == []


def test_the_reference_backend_has_no_native_sampler() -> None:
    from octavo.kernels.reference import ReferenceBackend

    assert type(make_sampler(ReferenceBackend(), 10)) is Sampler
    assert isinstance(native(10), NativeSampler)


def wrong(change: Callable[[dict[str, Any]], object]) -> None:
    """Call the native sampler by hand with one argument changed."""
    rows, vocab = 2, 40
    nothing = TokenLists.of([None] * rows)
    given = (nothing.starts, nothing.tokens, nothing.values)
    params = np.zeros(rows, ROW)
    params["repetition_penalty"], params["num_logprobs"] = 1, -1
    arguments: dict[str, Any] = {
        "logits": np.zeros((rows, vocab), np.float32),
        "params": params.view(np.uint8),
        "positions": np.zeros(rows, np.int64),
        "bias": given,
        "banned": given,
        "seen": given,
        "mask": None,
        "given": None,
        "logprob": np.zeros(rows),
        "rank": np.zeros(rows, np.int64),
        "top_token": np.zeros((rows, 3), np.int32),
        "top_logprob": np.zeros((rows, 3)),
    }
    change(arguments)
    sampler = BACKENDS["auto", 2].sampler(vocab)
    sampler.sample(**arguments)


def test_arguments_that_would_reach_beyond_an_array_are_refused() -> None:
    wrong(lambda a: None)
    starts = np.array([0, 1, 1])

    def token(t: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        return starts, np.array([t], np.int32), np.zeros(1, np.float32)

    def more_logprobs(a: dict[str, Any]) -> None:
        params = a["params"].copy().view(ROW)
        params["num_logprobs"] = 4
        a["params"] = params.view(np.uint8)

    for words, change in (
        ("beyond the vocabulary", lambda a: a.update(bias=token(40))),
        ("beyond the vocabulary", lambda a: a.update(seen=token(-1))),
        ("do not span", lambda a: a.update(bias=(starts[::-1].copy(), *token(1)[1:]))),
        ("do not span", lambda a: a.update(banned=(starts * 2, *token(1)[1:]))),
        ("differ in length", lambda a: a.update(seen=(starts[:2], *token(1)[1:]))),
        ("differ in length", lambda a: a.update(positions=np.zeros(1, np.int64))),
        ("differ in length", lambda a: a.update(mask=np.zeros((2, 1), np.uint32))),
        ("differ in length", lambda a: a.update(rank=np.zeros(1, np.int64))),
        ("differ in length", lambda a: a.update(logprob=np.zeros(1))),
        ("differ in length", lambda a: a.update(given=np.zeros(1, np.int32))),
        ("to score is beyond", lambda a: a.update(given=np.array([0, 40], np.int32))),
        ("to score is beyond", lambda a: a.update(given=np.array([-1, 0], np.int32))),
        ("another vocabulary", lambda a: a.update(logits=np.zeros((2, 41), np.float32))),
        ("another layout", lambda a: a.update(params=np.zeros(2 * 48, np.uint8))),
        ("more logprobs than", more_logprobs),
    ):
        with pytest.raises(ValueError, match=words):
            wrong(change)
    with pytest.raises(ValueError, match="vocabulary"):
        BACKENDS["auto", 2].sampler(0)


def test_params_of_a_request_reach_the_native_record() -> None:
    """ROW has the layout that C++ reads: each field alone changes what is drawn as in the reference."""
    from octavo.sampling import SamplingRows

    vocab = 600
    rng = np.random.default_rng(3)
    logits = (rng.standard_normal((1, vocab)) * 2).astype(np.float32)
    seen = 0
    for change in (
        {"temperature": 0.0},
        {"top_k": 2},
        {"top_p": 0.1},
        {"min_p": 0.5},
        {"repetition_penalty": 3.0},
        {"frequency_penalty": 1.9},
        {"presence_penalty": 1.9},
        {"logprobs": 2},
        {"logit_bias": {5: 20.0}},
        {"min_tokens": 4, "stop_token_ids": [int(logits.argmax())]},
    ):
        base = {"temperature": 0.9} | change
        rows = SamplingRows(1, vocab)
        rows.add(0, SamplingParams(**base), 11, 0, [1, 2, int(logits.argmax()), 3], 2)
        batch = rows.batch([0] * 50, range(4, 54))
        repeated = np.repeat(logits, 50, axis=0)
        result = native(vocab).sample(repeated, batch)
        assert result == REFERENCE.sample(repeated, batch)
        rows.add(0, SamplingParams(temperature=0.9), 11, 0, [1], 1)
        seen += result != native(vocab).sample(repeated, rows.batch([0] * 50, range(4, 54)))
    assert seen == 10
