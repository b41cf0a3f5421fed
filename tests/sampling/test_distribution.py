"""Sums and draws against the plain loops that their documentation describes, bit for bit."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from octavo.sampling.distribution import draw, log_sum_exp, total

CHUNK = 256  # not imported: another size would be other bits for every seed
SIZES = (1, 2, 255, 256, 257, 512, 1000, 5000)


def weights_of(size: int, seed: int, spread: float = 3.0) -> np.ndarray:
    z = np.random.default_rng(seed).standard_normal(size).astype(np.float32) * np.float32(spread)
    return np.exp(z - z.max())


def slow_total(weights: list[float]) -> list[float]:
    running, prefix = 0.0, []
    for start in range(0, len(weights), CHUNK):
        chunk = 0.0
        for weight in weights[start : start + CHUNK]:
            chunk += weight
        running += chunk
        prefix.append(running)
    return prefix


def slow_draw(weights: list[float], u: float) -> int:
    prefix = slow_total(weights)
    target = u * prefix[-1]
    chunk = next(i for i, running in enumerate(prefix) if running > target)
    rest = target - (prefix[chunk - 1] if chunk else 0.0)
    inside = 0.0
    for token in range(chunk * CHUNK, min(len(weights), chunk * CHUNK + CHUNK)):
        inside += weights[token]
        if weights[token]:
            last = token
        if inside > rest:
            return token
    return last


@pytest.mark.parametrize("size", SIZES)
def test_the_order_of_additions_is_the_documented_one(size: int) -> None:
    weights = weights_of(size, size)
    assert total(weights).tolist() == slow_total(weights.tolist())


@pytest.mark.parametrize("size", SIZES)
def test_dropped_tokens_change_no_bit(size: int) -> None:
    weights = weights_of(size, size)
    kept = np.random.default_rng(size).random(size) < 0.3
    kept[size // 2] = True
    ids = np.flatnonzero(kept)
    zeroed = np.where(kept, weights, np.float32(0))
    assert total(zeroed)[-1] == total(weights[ids], ids)[-1]
    for u in np.random.default_rng(1).random(200):
        assert draw(zeroed, None, u) == draw(weights, ids, u) == slow_draw(zeroed.tolist(), u)


def test_draw_at_the_edges_of_u() -> None:
    weights = np.array([0, 0.25, 0, 1, 0.75, 0], np.float32)
    last = 1 - 2.0**-53
    assert [draw(weights, None, u) for u in (0.0, 0.1249, 0.125, 0.624, 0.625, last)] == [1, 1, 3, 3, 4, 4]
    only = np.zeros(1000, np.float32)
    only[999] = 1
    assert {draw(only, None, u) for u in (0.0, 0.5, last)} == {999}


@settings(max_examples=200, deadline=None)
@given(
    st.lists(st.floats(0, 1, width=32), min_size=1, max_size=700),
    st.floats(0, 1, exclude_max=True),
)
def test_draw_never_takes_a_token_without_weight(values: list[float], u: float) -> None:
    weights = np.array([*values, 1.0], np.float32)
    assert weights[draw(weights, None, u)] > 0


@pytest.mark.parametrize("size", [1, 3, 257, 700])
def test_draw_at_every_border_between_tokens(size: int) -> None:
    weights = weights_of(size, size)
    slow = weights.tolist()
    for border in np.cumsum(weights, dtype=np.float64) / total(weights)[-1]:
        for u in (np.nextafter(border, 0), border, np.nextafter(border, 1)):
            if u < 1:
                assert draw(weights, None, float(u)) == slow_draw(slow, float(u))


def test_draw_where_the_rest_rounds_up_to_the_chunks_whole_sum() -> None:
    """The running sum of the chunk never exceeds such a rest; its last token is meant."""
    ulp = 2.0**-52
    weights = np.zeros(512, np.float32)
    weights[[0, 256, 300]] = 1.5 * ulp, 1.0, 2 * ulp
    u = 1 - ulp
    prefix = total(weights)
    assert u * prefix[1] - prefix[0] == float(weights[256]) + float(weights[300])
    assert draw(weights, None, u) == 300
    ids = np.array([0, 256, 300])
    assert draw(weights, ids, u) == 300


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("shift", [-1e4, 0.0, 3e4])
def test_log_sum_exp(size: int, shift: float) -> None:
    logits = (np.random.default_rng(size).standard_normal(size) * 5 + shift).astype(np.float32)
    peak = float(logits.max())
    exact = peak + math.log(math.fsum(math.exp(float(z) - peak) for z in logits))
    assert log_sum_exp(logits) == pytest.approx(exact, abs=1e-6)


def test_log_sum_exp_ignores_masked_tokens_and_chunks() -> None:
    logits = np.full(1000, -np.inf, np.float32)
    logits[[700, 701]] = 3.0
    assert log_sum_exp(logits) == pytest.approx(3 + math.log(2), abs=1e-12)
