"""Sums and draws against the plain loops that their documentation describes, bit for bit."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from octavo.sampling.distribution import chunk_sums, draw, log_sum_exp, total

CHUNK = 256  # not imported: another size would be other bits for every seed
SIZES = (1, 2, 255, 256, 257, 512, 1000, 5000)


LANES = 16


def weights_of(size: int, seed: int, spread: float = 9.0) -> np.ndarray:
    """Of so many sizes that the order of additions matters."""
    z = np.random.default_rng(seed).standard_normal(size).astype(np.float32) * np.float32(spread)
    return np.exp(z - z.max())


def slow_sums(weights: list[float]) -> list[float]:
    sums = []
    for start in range(0, len(weights), CHUNK):
        lanes = [0.0] * LANES
        for place, weight in enumerate(weights[start : start + CHUNK]):
            lanes[place % LANES] += weight
        while len(lanes) > 1:
            half = len(lanes) // 2
            lanes = [low + high for low, high in zip(lanes[:half], lanes[half:], strict=True)]
        sums.append(lanes[0])
    return sums


def slow_race(noise: list[float], rates: list[float]) -> int:
    times = [each / rate if rate else math.inf for each, rate in zip(noise, rates, strict=False)]
    return times.index(min(times))


def slow_draw(weights: list[float], chunk_noise: list[float], token_noise: list[float]) -> int:
    start = slow_race(chunk_noise, slow_sums(weights)) * CHUNK
    return start + slow_race(token_noise, weights[start : start + CHUNK])


def noise_of(size: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    return rng.exponential(size=-(-size // CHUNK)), rng.exponential(size=CHUNK)


@pytest.mark.parametrize("size", SIZES)
def test_the_order_of_additions_is_the_documented_one(size: int) -> None:
    weights = weights_of(size, size)
    sums = slow_sums(weights.tolist())
    assert chunk_sums(weights).tolist() == sums
    whole = 0.0
    for each in sums:
        whole += each
    assert total(weights) == whole


def test_another_order_of_additions_would_be_seen() -> None:
    weights = weights_of(5000, 1)
    plain = [sum(weights[i : i + CHUNK].tolist()) for i in range(0, 5000, CHUNK)]
    assert chunk_sums(weights).tolist() != plain
    assert chunk_sums(weights).tolist() == pytest.approx(plain, rel=1e-13)


@pytest.mark.parametrize("size", SIZES)
def test_dropped_tokens_change_no_bit(size: int) -> None:
    weights = weights_of(size, size)
    kept = np.random.default_rng(size).random(size) < 0.3
    kept[size // 2] = True
    ids = np.flatnonzero(kept)
    zeroed = np.where(kept, weights, np.float32(0))
    assert total(zeroed) == total(weights[ids], ids)
    for seed in range(200):
        noise = noise_of(size, seed)
        expected = slow_draw(zeroed.tolist(), *(each.tolist() for each in noise))
        assert draw(zeroed, None, *noise) == draw(weights, ids, *noise) == expected


def test_the_first_of_equals_is_drawn() -> None:
    weights = np.ones(600, np.float32)
    weights[[0, 512]] = 0
    chunks, places = np.array([1.0, 256 / 255, 2.0]), np.full(256, 0.5)  # chunk sums are 255, 256, 87
    assert draw(weights, None, chunks, places) == 1
    places[[9, 4]] = 0.0  # u = 0: arrives at once
    assert draw(weights, None, chunks, places) == 4
    chunks[2] = 0.0
    places[[9, 4, 0]] = 0.5, 0.5, 0.0
    assert draw(weights, None, chunks, places) == 513


@settings(max_examples=200, deadline=None)
@given(st.lists(st.floats(0, 1, width=32), min_size=1, max_size=700), st.integers(0, 10**6), st.booleans())
def test_draw_never_takes_a_token_without_weight(values: list[float], seed: int, instant: bool) -> None:
    weights = np.array([*values, 1.0], np.float32)
    chunks, places = noise_of(len(weights), seed)
    if instant:
        chunks[:], places[:] = 0, 0
    assert weights[draw(weights, None, chunks, places)] > 0


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("shift", [-1e4, 0.0, 3e4])
def test_log_sum_exp(size: int, shift: float) -> None:
    logits = (np.random.default_rng(size).standard_normal(size) * 5 + shift).astype(np.float32)
    peak = float(logits.max())
    exact = peak + math.log(math.fsum(math.exp(float(z) - peak) for z in logits))
    assert log_sum_exp(logits) == pytest.approx(exact, abs=1e-6)


def test_log_sum_exp_ignores_masked_tokens_and_chunks() -> None:
    logits = np.full(1000, -np.inf, np.float32)
    for value in (3.0, -2000.0):
        logits[[700, 701]] = value
        assert log_sum_exp(logits) == pytest.approx(value + math.log(2), abs=1e-12)
