"""Edits and kept tokens against plain loops, and against the processors of transformers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from transformers.generation import logits_process as oracle

from octavo.params import SamplingParams
from octavo.sampling import SamplingRows
from octavo.sampling.logits import edit, keep, kth_largest
from octavo.sampling.sampler import Sampler

VOCAB = 1111
MakeBatch = Callable[..., Any]


def logits_of(seed: int, vocab: int = VOCAB, spread: float = 3.0) -> np.ndarray:
    return (np.random.default_rng(seed).standard_normal(vocab) * spread).astype(np.float32)


def weights_of(seed: int, vocab: int = VOCAB, spread: float = 3.0) -> np.ndarray:
    z = logits_of(seed, vocab, spread)
    return np.exp(z - z.max())


def kept_ids(
    weights: np.ndarray, min_p: float = 0.0, top_k: int = 0, top_p: float = 1.0, typical_p: float = 1.0
) -> list[int]:
    ids = keep(weights, {"min_p": min_p, "top_k": top_k, "top_p": top_p, "typical_p": typical_p})
    return list(range(len(weights))) if ids is None else ids.tolist()


def slow_keep(weights: list[float], min_p: float, top_k: int, top_p: float) -> list[int]:
    """The documented rule, by sorting everything."""
    order = [i for i in sorted(range(len(weights)), key=lambda i: (-weights[i], i)) if weights[i] >= min_p]
    order = order[: top_k or None]
    if top_p < 1:
        mass, reached, count = sum(weights[i] for i in order) * top_p, 0.0, 0
        while reached < mass and count < len(order):
            reached += weights[order[count]]
            count += 1
        order = order[:count]
    return sorted(order)


# -- the crossing token, ties, edges ---------------------------------------------------------------


def test_the_token_that_reaches_top_p_is_kept() -> None:
    weights = np.array([0.25, 1.0, 0.5, 0.25], np.float32)  # shares 1/8, 1/2, 1/4, 1/8: exact in binary
    assert kept_ids(weights, top_p=0.5) == [1]
    assert kept_ids(weights, top_p=0.5000001) == [1, 2]
    assert kept_ids(weights, top_p=0.75) == [1, 2]
    assert kept_ids(weights, top_p=0.8) == [0, 1, 2]
    assert kept_ids(weights, top_p=0.875) == [0, 1, 2]
    assert kept_ids(weights, top_p=0.876) == [0, 1, 2, 3]


@pytest.mark.parametrize("top_p", [5e-324, 1e-300, 1e-9])
def test_a_tiny_top_p_keeps_the_likeliest(top_p: float) -> None:
    weights = weights_of(3)
    assert kept_ids(weights, top_p=top_p) == [int(weights.argmax())]


def test_top_p_just_below_one_keeps_all_that_is_needed() -> None:
    weights = np.full(1000, 0.5, np.float32)
    weights[7] = 1
    assert kept_ids(weights, top_p=float(np.nextafter(1, 0))) == list(range(1000))
    assert len(kept_ids(weights, top_p=0.999)) == 999


def test_top_p_that_rounding_puts_above_every_sum_keeps_what_weighs() -> None:
    for seed in range(200):
        weights = weights_of(seed, 600, spread=12)
        kept = set(kept_ids(weights, top_p=float(np.nextafter(1, 0))))
        assert kept >= set(np.flatnonzero(weights > 1e-14).tolist())


def test_equal_weights_are_kept_from_the_lowest_id() -> None:
    weights = np.array([0.5, 1, 0.5, 1, 0.5, 1, 0.25, 0.5], np.float32)
    assert kept_ids(weights, top_k=2) == [1, 3]
    assert kept_ids(weights, top_k=5) == [0, 1, 2, 3, 5]
    assert kept_ids(weights, top_p=3.2 / 5.25) == [0, 1, 3, 5]
    assert kept_ids(weights, min_p=0.5) == [0, 1, 2, 3, 4, 5, 7]


def test_top_p_counts_what_top_k_and_min_p_left() -> None:
    weights = np.array([1, 0.5, 0.5, 0.01, 0.01], np.float32)
    assert kept_ids(weights, top_k=2, top_p=0.66) == [0]
    assert kept_ids(weights, min_p=0.1, top_p=0.5) == [0]
    assert kept_ids(weights, top_p=0.5) == [0, 1]


def test_top_k_beyond_the_vocabulary_keeps_all() -> None:
    for top_k in (VOCAB, 2**31 - 1):
        numbers = {"min_p": 0.0, "top_k": top_k, "top_p": 1.0, "typical_p": 1.0}
        assert keep(weights_of(1), numbers) is None


@settings(max_examples=300, deadline=None)
@given(
    seed=st.integers(0, 10**6),
    vocab=st.sampled_from([1, 2, 17, 256, 700, 3000]),
    spread=st.sampled_from([0.0, 0.3, 3.0, 15.0]),
    levels=st.sampled_from([0, 4, 64]),
    min_p=st.sampled_from([0.0, 1e-5, 0.05, 0.9, 1.0]),
    top_k=st.sampled_from([0, 1, 2, 5, 50, 600]),
    top_p=st.sampled_from([1e-6, 0.1, 0.5, 0.9, 0.999, 1.0]),
)
def test_every_combination_keeps_what_a_full_sort_keeps(
    seed: int, vocab: int, spread: float, levels: int, min_p: float, top_k: int, top_p: float
) -> None:
    weights = weights_of(seed, vocab, spread)
    if levels:  # many ties, and sums that are exact in any order
        weights = np.maximum(np.round(weights * levels) / levels, np.float32(1 / levels)).astype(np.float32)
    ours = kept_ids(weights, min_p, top_k, top_p)
    assert ours == slow_keep(weights.tolist(), float(np.float32(min_p)), top_k, top_p)


def test_typical_p_leaves_out_a_token_that_is_too_likely() -> None:
    """Shares 1/2 and 32 times 1/64: the average surprise is 3.5 bits, and 1 is as far from it as 6 is."""
    weights = np.array([1, *[1 / 32] * 32], np.float32)
    assert kept_ids(weights, typical_p=0.4) == list(range(33)), "equal distances are all kept"
    weights = np.array([1, *[1 / 16] * 32], np.float32)  # 1/3 and 32 times 1/48
    assert kept_ids(weights, typical_p=0.4) == list(range(1, 33))
    assert kept_ids(weights, typical_p=0.7) == list(range(33))
    assert kept_ids(np.array([1.0, 0.0], np.float32), typical_p=1 - 2**-53) == [0]


@settings(max_examples=200, deadline=None)
@given(
    seed=st.integers(0, 10**6),
    vocab=st.sampled_from([1, 2, 17, 256, 700, 3000]),
    spread=st.sampled_from([0.0, 0.3, 3.0, 15.0]),
    top_k=st.sampled_from([0, 5, 600]),
    typical_p=st.sampled_from([1e-6, 0.1, 0.5, 0.9, 0.999]),
)
def test_typical_p_keeps_what_a_full_sort_keeps(
    seed: int, vocab: int, spread: float, top_k: int, typical_p: float
) -> None:
    weights = weights_of(seed, vocab, spread)
    weights[weights < np.finfo(np.float32).tiny] = 0
    left = [i for i in kept_ids(weights, top_k=top_k) if weights[i] > 0]
    p = weights[left].astype(np.float64) / weights[left].sum(dtype=np.float64)
    surprise = -np.log(p)
    far = np.abs(surprise - (p * surprise).sum())
    order = np.argsort(far, kind="stable")
    reached = p[order].cumsum()
    last = min(int((reached < typical_p).sum()), len(order) - 1)
    assume(np.abs(reached - typical_p).min() > 1e-12 or vocab == 1)
    sure = far[order[last]] * (1 - 1e-6) - 1e-9, far[order[last]] * (1 + 1e-6) + 1e-9
    kept = set(kept_ids(weights, top_k=top_k, typical_p=typical_p))
    assert {left[i] for i in np.flatnonzero(far < sure[0])} <= kept
    assert kept <= {left[i] for i in np.flatnonzero(far < sure[1])}
    assert left[order[last]] in kept


@settings(max_examples=100, deadline=None)
@given(st.integers(0, 10**6), st.integers(1, 3000), st.integers(1, 3000), st.sampled_from([2, 50, 10**6]))
def test_kth_largest(seed: int, size: int, k: int, levels: int) -> None:
    values = np.random.default_rng(seed).integers(0, levels, size).astype(np.float32)
    k = min(k, size)
    assert kth_largest(values, k) == np.sort(values)[::-1][k - 1]


# -- edits -----------------------------------------------------------------------------------------


def test_edits_follow_the_documented_order(make_batch: MakeBatch) -> None:
    params = SamplingParams(
        logit_bias={0: 2.0, 1: -4.0, 5: 1.0, 6: 1.0},
        min_tokens=9,
        stop_token_ids=[6],
        repetition_penalty=2.0,
        frequency_penalty=0.5,
        presence_penalty=0.25,
    )
    batch = make_batch([params], 8, prompt=[0, 1, 2], output=[2, 3, 3])
    logits = np.array([1, 1, -1, 4, 4, 4, 4, 0], np.float32)
    expected = [
        (1 + 2) / 2,  # biased, then in the prompt
        (1 - 4) * 2,  # the bias made it negative, so the penalty multiplies
        -1 * 2 - 0.5 - 0.25,  # in the output once
        4 / 2 - 2 * 0.5 - 0.25,  # twice
        4,
        5,
        -np.inf,
        0,
    ]
    before = logits.copy()
    assert edit(logits, batch, 0).tolist() == expected
    assert (logits == before).all()


def test_rows_without_edits_are_not_copied(make_batch: MakeBatch) -> None:
    batch = make_batch([SamplingParams(), SamplingParams(logit_bias={0: 1.0})], 8)
    logits = np.zeros((2, 8), np.float32)
    assert edit(logits[0], batch, 0).base is logits
    assert edit(logits[1], batch, 1).tolist() == [1.0] + [0.0] * 7


# -- transformers ----------------------------------------------------------------------------------


def probabilities(make_batch: MakeBatch, logits: np.ndarray, params: SamplingParams, **tokens: Any) -> Any:
    result, errors = Sampler().probabilities(logits[None], make_batch([params], len(logits), **tokens))
    assert not errors
    return result[0]


def check(ours: np.ndarray, theirs: torch.Tensor) -> None:
    expected = torch.softmax(theirs[0].double(), dim=-1).numpy()
    assert (ours[expected == 0] == 0).all()
    assert (ours[expected > 1e-30] > 0).all()  # an f32 weight below 1e-45 is no weight
    np.testing.assert_allclose(ours, expected, rtol=2e-5, atol=1e-12)


CASES = [
    *(({"temperature": t}, oracle.TemperatureLogitsWarper(t)) for t in (0.3, 1.0, 1.7)),
    *(({"top_k": k}, oracle.TopKLogitsWarper(k)) for k in (1, 40, 1000)),
    *(({"top_p": p}, oracle.TopPLogitsWarper(p)) for p in (0.05, 0.6, 0.95, 0.999)),
    *(({"min_p": p}, oracle.MinPLogitsWarper(p)) for p in (0.001, 0.1, 0.8)),
    *(({"typical_p": p}, oracle.TypicalLogitsWarper(p)) for p in (0.05, 0.2, 0.6, 0.95)),
]


@pytest.mark.parametrize(("fields", "warper"), CASES)
@pytest.mark.parametrize("spread", [1.0, 4.0])
def test_warpers_of_transformers(make_batch: MakeBatch, fields: Any, warper: Any, spread: float) -> None:
    for seed in range(5):
        logits = logits_of(seed, spread=spread)
        theirs = warper(torch.zeros((1, 1), dtype=torch.long), torch.tensor(logits)[None])
        check(probabilities(make_batch, logits, SamplingParams(**fields)), theirs)


@pytest.mark.parametrize("penalty", [0.7, 1.3])
def test_repetition_penalty_of_transformers(make_batch: MakeBatch, penalty: float) -> None:
    for seed in range(5):
        logits = logits_of(seed)
        tokens = np.random.default_rng(seed).integers(0, VOCAB, 300).tolist()
        warper = oracle.RepetitionPenaltyLogitsProcessor(penalty)
        theirs = warper(torch.tensor([tokens]), torch.tensor(logits)[None])
        params = SamplingParams(repetition_penalty=penalty)
        check(probabilities(make_batch, logits, params, prompt=tokens[:200], output=tokens[200:]), theirs)


def test_min_tokens_of_transformers(make_batch: MakeBatch) -> None:
    logits = logits_of(0)
    warper = oracle.MinNewTokensLengthLogitsProcessor(2, 4, torch.tensor([5, 9]))
    for written in range(6):
        tokens = [1, 2, *range(20, 20 + written)]
        theirs = warper(torch.tensor([tokens]), torch.tensor(logits)[None])
        params = SamplingParams(min_tokens=4, stop_token_ids=[9])
        check(probabilities(make_batch, logits, params, output=tokens[2:], eos=[5]), theirs)


def near_tie(logits: np.ndarray, params: SamplingParams, tokens: list[int]) -> bool:
    """Whether rounding in f32 decides which tokens are kept; the oracle's f32 sums may differ then."""
    z = logits.astype(np.float64)
    z[tokens] = np.where(
        z[tokens] > 0, z[tokens] / params.repetition_penalty, z[tokens] * params.repetition_penalty
    )
    weights = np.sort(np.exp((z - z.max()) / params.temperature))[::-1]
    if np.abs(weights - params.min_p).min() < 1e-6 * params.min_p:
        return True
    weights = weights[weights >= params.min_p]
    if 0 < params.top_k < len(weights):
        if weights[params.top_k] > weights[params.top_k - 1] * (1 - 1e-6):
            return True
        weights = weights[: params.top_k]
    reached = weights.cumsum() / weights.sum()
    return params.top_p < 1 and bool(np.abs(reached - params.top_p).min() < 1e-5)


@settings(max_examples=60, deadline=None)
@given(
    seed=st.integers(0, 10**6),
    temperature=st.floats(0.2, 3),
    min_p=st.sampled_from([0.0, 0.01, 0.2]),
    top_k=st.sampled_from([0, 3, 100]),
    top_p=st.sampled_from([0.3, 0.9, 1.0]),
    penalty=st.sampled_from([1.0, 1.2]),
)
def test_all_together_in_our_order(
    seed: int, temperature: float, min_p: float, top_k: int, top_p: float, penalty: float
) -> None:
    tokens = np.random.default_rng(seed).integers(0, VOCAB, 50).tolist()
    logits = logits_of(seed)
    params = SamplingParams(
        temperature=temperature, min_p=min_p, top_k=top_k, top_p=top_p, repetition_penalty=penalty
    )
    assume(not near_tie(logits, params, sorted(set(tokens))))
    rows = SamplingRows(1, VOCAB)
    rows.add(0, params, 1, 0, tokens, 50)
    ours, _ = Sampler().probabilities(logits[None], rows.batch([0], [50]))
    warpers = oracle.LogitsProcessorList([oracle.RepetitionPenaltyLogitsProcessor(penalty)])
    warpers.append(oracle.TemperatureLogitsWarper(temperature))
    if min_p:
        warpers.append(oracle.MinPLogitsWarper(min_p))
    if top_k:
        warpers.append(oracle.TopKLogitsWarper(top_k))
    if top_p < 1:
        warpers.append(oracle.TopPLogitsWarper(top_p))
    check(ours[0], warpers(torch.tensor([tokens]), torch.tensor(logits)[None]))
