"""Logits and sampling parameters of every kind, for samplers that must equal the reference."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from octavo.sampling.sampling_batch import ROW, Boost, TokenLists


def lists(rng: np.random.Generator, rows: int, vocab: int, values: Callable[[int], np.ndarray]) -> TokenLists:
    """Up to 20 distinct tokens for about half of the rows."""
    found = []
    for _ in range(rows):
        count = min(vocab, int(rng.integers(0, 20))) if rng.random() < 0.5 else 0
        tokens = rng.permutation(vocab)[:count].astype(np.int32)
        found.append((tokens, values(count).astype(np.float32)))
    return TokenLists.of(found)


def random_params(rng: np.random.Generator, rows: int, vocab: int, logprobs: bool) -> np.ndarray:
    """Records with every number that they have: one without choices here would be compared by no test."""
    choices = {
        "temperature": [0, 1e-42, 1e-6, 0.3, 0.8, 1, 1, 1.7, 50],
        "top_p": [1, 1, 0.95, 0.5, 1e-9, 1 - 2**-53],
        "typical_p": [1, 1, 1, 0.95, 0.2, 1e-9, 1 - 2**-53],
        "min_p": [0, 0, 0, 0.02, 0.4, 1, 1e-30],
        "top_k": [0, 0, 1, 3, 50, 250, vocab - 1, vocab, 2 * vocab],
        "repetition_penalty": [1, 1.3, 0.7],
        "frequency_penalty": [0, 0.4, -0.3],
        "presence_penalty": [0, 0.6, -2],
        "num_logprobs": [-1, 0, 1, 5, 40, vocab + 3] if logprobs else [-1],
    }
    params = np.zeros(rows, ROW)
    params["seed"] = rng.integers(0, 2**64, rows, np.uint64)
    params["sample_index"] = rng.integers(0, 2**32, rows)
    for name, values in choices.items():
        params[name] = rng.choice(values, rows)
    known = {*choices, "seed", "sample_index", "min_position"}  # the last is read where batches are gathered
    assert known == {*(ROW.names or ())}, "a number of the record is drawn at random nowhere"
    return params


def random_mask(rng: np.random.Generator, rows: int, vocab: int) -> np.ndarray:
    """Anything from one allowed token to all of them; bits past the vocabulary are noise."""
    words = -(-vocab // 32)
    mask = rng.integers(0, 2**32, (rows, words), np.uint32)
    for row in range(rows):
        kind = rng.integers(4)
        if kind == 0:
            mask[row] = 0xFFFFFFFF
        elif kind == 1:
            mask[row] = 0
        if kind < 3:
            token = int(rng.integers(vocab))
            mask[row, token // 32] |= np.uint32(1 << token % 32)
    return mask


def random_boost(rng: np.random.Generator, rows: int, vocab: int) -> Boost:
    """Sets of any size, for about half of the rows; bits past the vocabulary are noise."""
    deltas = rng.choice([0, 0, 0, 2, -3.5, 1e-3, 1e30], rows).astype(np.float32)
    return Boost(random_mask(rng, rows, vocab), deltas)


def random_logits(rng: np.random.Generator, rows: int, vocab: int) -> np.ndarray:
    """Smooth, steep, flat, tied and huge rows; a few values masked or broken."""
    logits = rng.standard_normal((rows, vocab)).astype(np.float32)
    for z in logits:
        z *= rng.choice([0, 0.01, 1, 3, 30, 1e30])
        z += np.float32(rng.choice([0, 0, -1e4, 3e4]))
        if rng.random() < 0.3:
            z[:] = np.round(z)  # many ties
        if rng.random() < 0.2:
            z[rng.random(vocab) < 0.9] = -np.inf
        if rng.random() < 0.1:
            z[rng.integers(vocab)] = rng.choice([np.nan, np.inf, -np.inf])
        if rng.random() < 0.03:
            z[:] = -np.inf
    return logits
