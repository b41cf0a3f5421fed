"""Philox against its authors' known answers, and uniforms that depend on their position alone."""

from __future__ import annotations

import math

import numpy as np
import pytest

from octavo.sampling.noise import Stream, philox4x32, race_noise, uniform


@pytest.mark.parametrize(
    ("counter", "key", "answer"),
    [
        ("00000000 00000000 00000000 00000000", "00000000 00000000", "6627e8d5 e169c58d bc57ac4c 9b00dbd8"),
        ("ffffffff ffffffff ffffffff ffffffff", "ffffffff ffffffff", "408f276d 41c83b0e a20bc7c6 6d5451fd"),
        ("243f6a88 85a308d3 13198a2e 03707344", "a4093822 299f31d0", "d16cfe09 94fdcceb 5001e420 24126ea1"),
    ],
)
def test_known_answers_of_random123(counter: str, key: str, answer: str) -> None:
    def words(text: str) -> np.ndarray:
        return np.array([int(word, 16) for word in text.split()], np.uint32)

    assert philox4x32(words(counter), words(key)).tolist() == words(answer).tolist()
    stacked = philox4x32(np.tile(words(counter), (3, 2, 1)), words(key))
    assert (stacked == words(answer)).all()
    assert stacked.shape == (3, 2, 4)


def test_uniform_is_the_documented_function_of_its_key_and_counter() -> None:
    seed, sample, position, index = 0xFEDCBA9876543210, 7, (3 << 32) + 5, 9
    counter = np.array([5, 3, 7, int(Stream.ACCEPT) + 256 * 9], np.uint32)
    words = philox4x32(counter, np.array([0x76543210, 0xFEDCBA98], np.uint32)).tolist()
    expected = ((words[0] >> 5) * 2**26 + (words[1] >> 6)) / 2**53
    assert uniform(seed, sample, position, Stream.ACCEPT, index).tolist() == [expected]


def test_pinned_values_so_that_a_seed_means_the_same_in_every_version() -> None:
    assert uniform(0, 0, 0).tolist() == [0.39904647231489565]  # from the first known answer
    assert uniform(2**64 - 1, 1, 8191, Stream.DRAFT).tolist() == [0.8089534409738655]


def test_race_noise_is_the_documented_function_of_its_key_and_counter() -> None:
    seed, sample, position = 0xFEDCBA9876543210, 7, (3 << 32) + 5
    chunks, places = race_noise([1, seed], [0, sample], [0, position], 5, Stream.DRAFT)
    assert chunks.shape == (2, 5)
    assert places.shape == (2, 256)
    key = np.array([0x76543210, 0xFEDCBA98], np.uint32)
    for noise, level in ((chunks[1], 1), (places[1], 2)):
        for i, value in enumerate(noise.tolist()):
            counter = np.array([5, 3, 7, int(Stream.DRAFT) + 16 * level + 256 * (i // 2)], np.uint32)
            high, low = philox4x32(counter, key).tolist()[2 * (i % 2) :][:2]
            assert value == pytest.approx(-math.log1p(-((high >> 5) * 2**26 + (low >> 6)) / 2**53), rel=1e-15)


def test_rows_are_independent_of_the_batch() -> None:
    seeds, positions = np.arange(50, dtype=np.uint64) * 977, np.arange(50) * 31
    together = uniform(seeds, 3, positions)
    alone = [uniform(seed, 3, position)[0] for seed, position in zip(seeds, positions, strict=True)]
    assert together.tolist() == alone
    races = race_noise(seeds, np.full(50, 3), positions, 13)
    for row in range(50):
        single = race_noise(seeds[row : row + 1], [3], positions[row : row + 1], 13)
        assert [noise.tolist() for noise in single] == [[noise[row].tolist()] for noise in races]


def chi_square(u: np.ndarray, cells: int = 256) -> float:
    """Standardized chi-square of equal cells: about N(0, 1) for uniform numbers."""
    counts = np.bincount((u * cells).astype(int), minlength=cells)
    expected = len(u) / cells
    return float(((counts - expected) ** 2 / expected).sum() - (cells - 1)) / (2 * (cells - 1)) ** 0.5


AXES = {
    "positions": lambda i: uniform(1, 0, i),
    "seeds": lambda i: uniform(i, 0, 17),
    "high half of seeds": lambda i: uniform(i << 32, 0, 17),
    "samples": lambda i: uniform(1, i, 17),
    "siblings": lambda i: uniform(1, 0, 17, Stream.ACCEPT, i),
    "chunks of a race": lambda i: -np.expm1(-race_noise([1], [0], [17], len(i))[0][0]),
    "places of races": lambda i: -np.expm1(-race_noise(*race_keys(i), 1)[1].reshape(-1)),
    "first chunk of races": lambda i: -np.expm1(-race_noise(i[::4], 0 * i[::4], 0 * i[::4], 1)[0][:, 0]),
}


def race_keys(i: np.ndarray) -> tuple[np.ndarray, ...]:
    """Enough rows for len(i) places."""
    rows = np.arange(len(i) // 256)
    return rows // 2, rows % 2, rows


@pytest.mark.parametrize("axis", AXES)
def test_uniform_and_uncorrelated_along_every_argument(axis: str) -> None:
    u = AXES[axis](np.arange(100_000))
    assert u.min() >= 0
    assert u.max() < 1
    assert abs(chi_square(u)) < 4
    for lag in (1, 2, 64):
        correlation = np.corrcoef(u[:-lag], u[lag:])[0, 1]
        assert abs(correlation) * len(u) ** 0.5 < 4
    pairs = np.floor(u[0::2] * 16) * 16 + np.floor(u[1::2] * 16)
    assert abs(chi_square(pairs / 256)) < 4


def test_streams_of_one_position_are_independent() -> None:
    positions = np.arange(100_000)
    streams = [uniform(5, 0, positions, stream) for stream in Stream]
    numbers: set[float] = set()
    for i, first in enumerate(streams):
        for second in streams[i + 1 :]:
            pairs = np.floor(first * 16) * 16 + np.floor(second * 16)
            assert abs(chi_square(pairs / 256)) < 4
    for stream in Stream:  # nor does a race at this position use a number twice
        race = race_noise([5], [0], [17], 64, stream)
        numbers.update(*(noise[0].tolist() for noise in race))
    assert len(numbers) == len(Stream) * (64 + 256)


def test_all_53_bits_are_used() -> None:
    u = uniform(9, 0, np.arange(2000))
    bits = (u * 2**53).astype(np.uint64)
    assert (bits.astype(np.float64) / 2**53 == u).all()
    ones = [(bits >> np.uint64(i) & np.uint64(1)).mean() for i in range(53)]
    assert min(ones) > 0.45
    assert max(ones) < 0.55
