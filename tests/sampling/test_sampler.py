"""The sampler: each numbered step of its documentation, and the bits of a row at any batch size."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from octavo.params import SampledToken, SamplingParams
from octavo.sampling import RowError, Sampler, SamplingRows
from octavo.sampling.noise import race_noise

MakeBatch = Callable[..., Any]
GREEDY = SamplingParams(temperature=0)


def logits_of(rows: int, vocab: int, seed: int = 0, spread: float = 3.0) -> np.ndarray:
    return (np.random.default_rng(seed).standard_normal((rows, vocab)) * spread).astype(np.float32)


def ids(drawn: list[SampledToken | RowError]) -> list[int]:
    return [token.token_id for token in drawn if isinstance(token, SampledToken)]


# -- greedy ----------------------------------------------------------------------------------------


def test_greedy_takes_the_lowest_of_equals(make_batch: MakeBatch) -> None:
    logits = np.array([[0, 3, 1, 3], [-np.inf, -5, -5, -7]], np.float32)
    assert ids(Sampler().sample(logits, make_batch([GREEDY] * 2, 4))) == [1, 1]


def test_greedy_sees_edits(make_batch: MakeBatch) -> None:
    logits = np.array([[0, 3, 2.5, 2]] * 3, np.float32)
    params = [GREEDY, GREEDY.replace(logit_bias={1: -1.0}), GREEDY.replace(presence_penalty=1.5)]
    assert ids(Sampler().sample(logits, make_batch(params, 4, output=[1, 2]))) == [1, 2, 3]


def test_greedy_needs_no_top_k_or_top_p(make_batch: MakeBatch) -> None:
    params = GREEDY.replace(top_k=3, top_p=0.1, min_p=0.5)
    logits = logits_of(4, 700)
    assert ids(Sampler().sample(logits, make_batch([params] * 4, 700))) == logits.argmax(1).tolist()


# -- random ----------------------------------------------------------------------------------------


def test_frequencies_follow_the_probabilities(make_batch: MakeBatch) -> None:
    """20,000 seeds, one logits row: chi-square against softmax of the edited, filtered logits."""
    vocab, trials = 40, 20_000
    row = logits_of(1, vocab, spread=2.0)
    params = SamplingParams(temperature=1.3, top_k=20, top_p=0.9, min_p=0.01, frequency_penalty=0.5)
    batch = make_batch([params] * trials, vocab, output=[3, 3, 4])
    drawn = ids(Sampler().sample(np.repeat(row, trials, axis=0), batch))
    exact, _ = Sampler().probabilities(row, make_batch([params], vocab, output=[3, 3, 4]))
    expected = exact[0] * trials
    counts = np.bincount(drawn, minlength=vocab)
    assert (counts[expected == 0] == 0).all()
    cells = expected > 0
    assert cells.sum() > 5
    statistic = ((counts - expected)[cells] ** 2 / expected[cells]).sum()
    degrees = cells.sum() - 1
    assert (statistic - degrees) / (2 * degrees) ** 0.5 < 4


def test_the_same_seed_draws_the_same_token_and_others_differ(make_batch: MakeBatch) -> None:
    vocab = 5000
    logits = np.zeros((6, vocab), np.float32)

    def tokens(params: SamplingParams, seed: int, sample: int) -> list[int]:
        rows = SamplingRows(1, vocab)
        rows.add(0, params, seed, sample, [1], 1)
        return ids(Sampler().sample(logits, rows.batch([0] * 6, range(1, 7))))

    base = tokens(SamplingParams(), 7, 0)
    assert tokens(SamplingParams(), 7, 0) == base
    assert len(set(base)) == 6
    for seed, sample in ((8, 0), (7 + 2**32, 0), (7, 1), (7, 127)):
        assert not set(zip(range(6), tokens(SamplingParams(), seed, sample), strict=True)) & set(
            zip(range(6), base, strict=True)
        )


def test_a_token_is_the_winner_of_the_documented_race(make_batch: MakeBatch) -> None:
    vocab, rows, temperature = 1000, 200, 0.8
    logits = logits_of(rows, vocab)
    batch = make_batch([SamplingParams(temperature=temperature)] * rows, vocab)
    chunks, places = race_noise(np.arange(1000, 1000 + rows), np.zeros(rows), np.full(rows, 2), 4)
    for row, token in enumerate(ids(Sampler().sample(logits, batch))):
        p = torch.softmax(torch.tensor(logits[row], dtype=torch.float64) / temperature, 0).numpy()
        chunk = int(np.argmin([chunks[row, c] / p[c * 256 : c * 256 + 256].sum() for c in range(4)]))
        members = p[chunk * 256 : chunk * 256 + 256]
        assert token == chunk * 256 + int(np.argmin(places[row, : len(members)] / members))


def test_two_similar_models_that_share_the_noise_draw_alike(make_batch: MakeBatch) -> None:
    """A drafter that samples with the target's noise agrees nearly as often as any coupling could.

    The mutant that draws with other noise is far below.
    """
    vocab, trials = 1200, 2000
    target = logits_of(1, vocab, spread=2.0)
    drafter = target + logits_of(1, vocab, seed=1, spread=0.15)
    params = [SamplingParams()] * trials
    both = [np.repeat(z, trials, axis=0) for z in (target, drafter)]
    p, q = (Sampler().probabilities(z, make_batch([params[0]], vocab))[0] for z in (target, drafter))
    best = float(np.minimum(p, q).sum())
    first = np.array(ids(Sampler().sample(both[0], make_batch(params, vocab))))
    shared = (first == ids(Sampler().sample(both[1], make_batch(params, vocab)))).mean()
    foreign = make_batch(params, vocab, seeds=range(5000, 5000 + trials))
    assert 0.9 < best < 0.96
    assert shared > best - 0.06
    assert (first == ids(Sampler().sample(both[1], foreign))).mean() < 0.1


def test_neighbouring_positions_are_independent() -> None:
    """Tokens at positions t and t + 1 from flat logits over 16 words: chi-square of the pairs."""
    rows = SamplingRows(1, 16)
    rows.add(0, SamplingParams(), 3, 0, [1], 1)
    steps = 20_000
    drawn = ids(Sampler().sample(np.zeros((steps, 16), np.float32), rows.batch([0] * steps, range(steps))))
    pairs = np.bincount(np.array(drawn[:-1]) * 16 + drawn[1:], minlength=256)
    expected = (steps - 1) / 256
    statistic = float(((pairs - expected) ** 2 / expected).sum())
    assert abs(statistic - 255) / (2 * 255) ** 0.5 < 4


@pytest.mark.parametrize("temperature", [1e-300, 1e-40, 1e-6])
def test_a_vanishing_temperature_draws_the_argmax(make_batch: MakeBatch, temperature: float) -> None:
    logits = logits_of(5, 3000, spread=20)
    batch = make_batch([SamplingParams(temperature=temperature)] * 5, 3000)
    assert ids(Sampler().sample(logits, batch)) == logits.argmax(1).tolist()


@settings(max_examples=150, deadline=None)
@given(
    seed=st.integers(0, 2**64 - 1),
    temperature=st.floats(0, 5),
    top_k=st.integers(0, 400),
    top_p=st.floats(0, 1, exclude_min=True),
    min_p=st.floats(0, 1),
    repetition=st.floats(0.1, 3),
    frequency=st.floats(-2, 2),
    presence=st.floats(-2, 2),
    masked=st.floats(0, 0.99),
)
def test_any_parameters_draw_a_token_that_has_probability(
    seed: int,
    temperature: float,
    top_k: int,
    top_p: float,
    min_p: float,
    repetition: float,
    frequency: float,
    presence: float,
    masked: float,
) -> None:
    params = SamplingParams(
        temperature=temperature,
        top_k=top_k,
        top_p=top_p,
        min_p=min_p,
        repetition_penalty=repetition,
        frequency_penalty=frequency,
        presence_penalty=presence,
        logprobs=3,
    )
    rng = np.random.default_rng(seed % 1000)
    logits = logits_of(1, 300, seed % 1000)
    logits[0, rng.random(300) < masked] = -np.inf
    logits[0, 11] = 1.0
    rows = SamplingRows(1, 300)
    rows.add(0, params, seed, 0, [1, 2, 11, 4, 4], 2)
    batch = rows.batch([0], [5])
    (token,) = Sampler().sample(logits, batch)
    assert isinstance(token, SampledToken)
    p, errors = Sampler().probabilities(logits, batch)
    assert not errors
    assert p[0, token.token_id] > 0
    assert p.sum() == pytest.approx(1)
    assert token.logprob is not None
    assert token.logprob <= 0


# -- log-probabilities -----------------------------------------------------------------------------


def test_logprobs_are_of_the_raw_distribution(make_batch: MakeBatch) -> None:
    vocab = 3000
    logits = logits_of(8, vocab)
    params = SamplingParams(
        temperature=0.4, top_k=7, logprobs=5, logit_bias={1: 9.0}, repetition_penalty=1.9, presence_penalty=1
    )
    exact = torch.log_softmax(torch.tensor(logits, dtype=torch.float64), dim=-1)
    for row, token in enumerate(Sampler().sample(logits, make_batch([params] * 8, vocab, output=[3, 4]))):
        assert isinstance(token, SampledToken)
        values, best = exact[row].topk(5)
        assert [i for i, _ in token.top] == best.tolist()
        assert [value for _, value in token.top] == pytest.approx(values.tolist(), abs=1e-6)
        assert token.logprob == pytest.approx(float(exact[row, token.token_id]), abs=1e-6)
        assert token.rank == 1 + int((exact[row] > exact[row, token.token_id]).sum())


def test_ranks_and_top_break_ties_by_the_lowest_id(make_batch: MakeBatch) -> None:
    logits = np.array([[1, 2, 2, 1, 2, -np.inf]], np.float32)
    ranks = {}
    for seed in range(60):
        batch = make_batch([SamplingParams(logprobs=4)], 6, seeds=[seed])
        (token,) = Sampler().sample(logits, batch)
        assert isinstance(token, SampledToken)
        assert [i for i, _ in token.top] == [1, 2, 4, 0]
        ranks[token.token_id] = token.rank
    assert ranks == {1: 1, 2: 2, 4: 3, 0: 4, 3: 5}


def test_logprobs_zero_reports_the_drawn_token_alone_and_top_skips_masked(make_batch: MakeBatch) -> None:
    logits = np.array([[0, 0, -np.inf, -np.inf]] * 3, np.float32)
    params = [GREEDY, GREEDY.replace(logprobs=0), GREEDY.replace(logprobs=20)]
    none, alone, all_of_them = Sampler().sample(logits, make_batch(params, 4))
    half = pytest.approx(-np.log(2), abs=1e-12)
    assert none == SampledToken(0)
    assert alone == SampledToken(0, half, 1)
    assert all_of_them == SampledToken(0, half, 1, ((0, half), (1, half)))


# -- broken rows -----------------------------------------------------------------------------------


def broken(vocab: int) -> dict[int, tuple[SamplingParams, Callable[[np.ndarray], None], str]]:
    def fill(value: float, where: slice | int = slice(None)) -> Callable[[np.ndarray], None]:
        return lambda row: row.__setitem__(where, value)

    everything = dict.fromkeys(range(vocab), -100.0)
    banned = {"min_tokens": 5, "stop_token_ids": list(range(vocab))}
    return {
        1: (SamplingParams(), fill(np.nan, 3), "NaN"),
        2: (GREEDY, fill(np.nan, vocab - 1), "NaN"),
        4: (SamplingParams(), fill(np.inf, 0), "infinity"),
        5: (GREEDY, fill(np.inf, 0), "infinity"),
        6: (SamplingParams(logprobs=3), fill(-np.inf), "no token is allowed"),
        8: (GREEDY, fill(-np.inf), "no token is allowed"),
        9: (SamplingParams(**banned), fill(0.0, 0), "no token is allowed"),
        10: (GREEDY.replace(**banned), fill(0.0, 0), "no token is allowed"),
        12: (SamplingParams(repetition_penalty=0.01), fill(1e38, 1), "infinity"),
        13: (SamplingParams(logit_bias=everything, top_p=0.5), fill(np.nan), "NaN"),
    }


def test_a_broken_row_is_an_error_and_the_others_are_unharmed(make_batch: MakeBatch) -> None:
    vocab, count = 600, 16
    whole, wrecked = logits_of(count, vocab), logits_of(count, vocab)
    params = [SamplingParams(top_p=0.9), GREEDY] * (count // 2)
    cases = broken(vocab)
    for row, (each, wreck, _) in cases.items():
        params[row] = each
        wreck(wrecked[row])
    batch = make_batch(params, vocab)
    before = wrecked.copy()
    drawn = Sampler().sample(wrecked, batch)
    _, errors = Sampler().probabilities(wrecked, batch)
    np.testing.assert_array_equal(before, wrecked)
    healthy = Sampler().sample(whole, make_batch([SamplingParams(top_p=0.9), GREEDY] * (count // 2), vocab))
    assert sorted(errors) == sorted(cases)
    for row, token in enumerate(drawn):
        if row in cases:
            assert isinstance(token, RowError)
            assert cases[row][2] in token.message
            assert "\n" not in token.message
            assert token == errors[row]
        else:
            assert token == healthy[row]


def test_broken_rows_among_plain_ones_whose_batch_takes_the_short_way(make_batch: MakeBatch) -> None:
    logits = logits_of(4, 50)
    logits[0, 7], logits[1, 7], logits[2] = np.nan, np.inf, -np.inf
    for params in (GREEDY, SamplingParams()):
        *errors, fine = Sampler().sample(logits, make_batch([params] * 4, 50))
        for error, word in zip(errors, ("NaN", "infinity", "no token"), strict=True):
            assert isinstance(error, RowError)
            assert word in error.message
        assert isinstance(fine, SampledToken)


@pytest.mark.parametrize("value", [np.nan, np.inf])
@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_a_broken_logit_is_reported_even_where_its_token_is_banned(
    make_batch: MakeBatch, value: float, temperature: float
) -> None:
    logits = logits_of(1, 50)
    logits[0, 3] = value
    params = SamplingParams(temperature=temperature, min_tokens=5, stop_token_ids=[3])
    assert isinstance(Sampler().sample(logits, make_batch([params], 50))[0], RowError)


# -- the same bits at any batch size ---------------------------------------------------------------


@pytest.mark.parametrize("vocab", [777, 4096])
def test_a_row_alone_and_among_64_has_the_same_bits(vocab: int) -> None:
    """Tokens, log-probabilities (compared as floats, so bit for bit) and distributions."""
    rng = np.random.default_rng(5)
    rows = SamplingRows(64, vocab, eos_token_ids=[0])
    for row in range(64):
        params = SamplingParams(
            temperature=float(rng.choice([0, 0.3, 1, 2])),
            top_k=int(rng.choice([0, 5, 300])),
            top_p=float(rng.choice([0.2, 0.95, 1])),
            min_p=float(rng.choice([0, 0.05])),
            repetition_penalty=float(rng.choice([1, 1.2])),
            presence_penalty=float(rng.choice([0, 0.5])),
            min_tokens=int(rng.choice([0, 9])),
            logit_bias={3: 2.0} if rng.random() < 0.3 else None,
            logprobs=int(rng.choice([0, 4])) if rng.random() < 0.7 else None,
        )
        rows.add(row, params, int(rng.integers(2**63)), row % 3, rng.integers(0, vocab, 30).tolist(), 20)
    logits = logits_of(64, vocab)
    order = rng.permutation(64)
    together = Sampler().sample(logits[order], rows.batch(order.tolist(), (30 + order).tolist()))
    spread, _ = Sampler().probabilities(logits[order], rows.batch(order.tolist(), (30 + order).tolist()))
    for at, row in enumerate(order.tolist()):
        padded = np.zeros(vocab + row, np.float32)  # another alignment in memory, too
        padded[row:] = logits[row]
        alone = padded[row:][None]
        batch = rows.batch([row], [30 + row])
        assert Sampler().sample(alone, batch) == [together[at]]
        assert Sampler().probabilities(alone, batch)[0].tobytes() == spread[at].tobytes()
