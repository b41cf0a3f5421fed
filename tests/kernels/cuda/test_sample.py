"""The device's sampler against the reference: tokens, ranks, log-probabilities and errors are equal.

Not close: both round every step alike, so results are compared with ==.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

from octavo.sampling import Sampler, SamplingBatch, TokenLists
from octavo.sampling.device import DrawMaker, read
from octavo.sampling.sampler import RowError
from octavo.sampling.sampling_batch import ROW
from support.cuda import interpreted
from support.draws import lists, random_boost, random_logits, random_mask, random_params

REFERENCE = Sampler()


def on_device(logits: np.ndarray, batch: SamplingBatch) -> list[Any]:
    """What the kernels draw, as rows of a sampler."""
    import torch

    interpreted()
    from octavo.kernels.cuda.sample import Copied, DeviceSampler, Slate

    rows, vocab = logits.shape
    sampler = DeviceSampler(vocab, rows, torch.device("cpu"))
    draws = DrawMaker().draws(batch)
    slate = Slate(rows, torch.device("cpu"))
    slate.write(draws, np.arange(rows))
    z = torch.from_numpy(logits.copy())
    most = draws.numbers.most
    with np.errstate(all="ignore"):  # of the interpreter's NumPy: a device has no such warnings
        tokens = sampler.draw(z, draws, slate)
        scores = sampler.logprobs(z, tokens, slate, most) if most >= 0 else None
    assert (z.numpy() == logits).all() or np.isnan(logits).any(), "raw logits are only read"
    latest = sampler.latest.tolist()
    assert latest == [max(t, 0) for t in tokens.tolist()]
    return read(Copied(tokens, scores).result(), batch)


def batch_of(params: np.ndarray, positions: Sequence[int], **more: Any) -> SamplingBatch:
    none = TokenLists.none(len(params))
    wanted = {"bias": none, "banned": none, "seen": none, **more}
    return SamplingBatch(params, np.array(positions, np.int64), **wanted)


@settings(max_examples=12, deadline=None, phases=[Phase.explicit, Phase.generate])
@given(
    seed=st.integers(0, 2**32),
    rows=st.integers(1, 3),
    vocab=st.sampled_from((1, 2, 17, 255, 256, 257, 1000, 5003)),
    logprobs=st.booleans(),
    edited=st.booleans(),
)
def test_draws_equal_the_reference(seed: int, rows: int, vocab: int, logprobs: bool, edited: bool) -> None:
    """Any parameters, edits, masks and logits (ties, infinities and NaN among them)."""
    rng = np.random.default_rng(seed)
    logits = random_logits(rng, rows, vocab)
    params = random_params(rng, rows, vocab, logprobs)
    more: dict[str, Any] = {}
    if edited:
        more["bias"] = lists(rng, rows, vocab, lambda n: rng.normal(0, 5, n))
        more["banned"] = lists(rng, rows, vocab, np.zeros)
        more["seen"] = lists(rng, rows, vocab, lambda n: rng.integers(0, 4, n))
        more["mask"] = random_mask(rng, rows, vocab) if rng.random() < 0.5 else None
        more["boost"] = random_boost(rng, rows, vocab) if rng.random() < 0.5 else None
    batch = batch_of(params, rng.integers(0, 2**40, rows).tolist(), **more)
    assert on_device(logits, batch) == REFERENCE.sample(logits, batch)


def test_masks_that_refuse_the_first_draw_and_that_do_not() -> None:
    rng = np.random.default_rng(2)
    params = np.zeros(24, ROW)
    params["typical_p"] = 1
    params["temperature"], params["top_p"], params["seed"] = 1, 1, np.arange(24)
    params["top_k"][20:], params["temperature"][18:20] = 3, 0
    logits = rng.standard_normal((24, 600)).astype(np.float32)
    mask = rng.integers(0, 2**32, (24, 19), np.uint32)
    batch = batch_of(params, [5] * 24, mask=mask)
    found = on_device(logits, batch)
    assert found == REFERENCE.sample(logits, batch)
    free = REFERENCE.sample(logits, batch_of(params, [5] * 24))
    assert 3 < sum(one == other for one, other in zip(found, free, strict=True)) < 20


@pytest.mark.slow
def test_a_whole_vocabulary() -> None:
    """49,152 words: as peaked and as flat as models make them."""
    rng = np.random.default_rng(5)
    params = np.zeros(6, ROW)
    params["typical_p"] = 1
    params["temperature"], params["seed"], params["top_p"] = 0.9, rng.integers(0, 2**63, 6), 1
    params["top_p"][[0, 1, 4]], params["top_k"][[1, 2]], params["min_p"][3] = 0.9, (40, 5000), 0.01
    params["num_logprobs"] = [5, -1, 20, 0, -1, 3]
    logits = (rng.standard_normal((6, 49_152)) * np.array([[4], [8], [1], [2], [0.1], [12]])).astype(
        np.float32
    )
    batch = batch_of(params, [7, 7, 100, 3, 0, 9])
    assert on_device(logits, batch) == REFERENCE.sample(logits, batch)


@pytest.mark.parametrize("top_p", [0.5, 0.50001])
@pytest.mark.parametrize("top_k", [0, 513])
def test_ties_go_to_the_lowest_ids(top_p: float, top_k: int) -> None:
    """Equal logits: which are kept decides what may be drawn; every draw is of the reference's."""
    params = np.zeros(8, ROW)
    params["typical_p"] = 1
    params["temperature"], params["top_p"], params["top_k"] = 1, top_p, top_k
    params["seed"] = np.arange(8)
    logits = np.repeat(np.array([[0.0, 1.0] * 300], np.float32), 8, axis=0)
    batch = batch_of(params, [3] * 8)
    found = on_device(logits, batch)
    assert found == REFERENCE.sample(logits, batch)
    assert len({each.token_id for each in found}) > 3


def test_what_is_wrong_with_a_row_is_said() -> None:
    logits = np.zeros((4, 300), np.float32)
    logits[0, 7], logits[1, 299], logits[2] = np.nan, np.inf, -np.inf
    params = np.zeros(4, ROW)
    params["typical_p"] = 1
    params["top_p"], params["temperature"] = 1, [0, 1, 1, 1]
    found = on_device(logits, batch_of(params, [1] * 4))
    assert [isinstance(each, RowError) for each in found] == [True, True, True, False]
    assert found == REFERENCE.sample(logits, batch_of(params, [1] * 4))


@pytest.mark.parametrize("mutant", ["noise of the next position", "no top-p", "no top-k"])
def test_the_test_would_notice(mutant: str, monkeypatch: pytest.MonkeyPatch) -> None:
    from octavo.kernels.cuda.sample import Slate

    write = Slate.write

    def wrong(self: Any, draws: Any, owners: Any) -> None:
        if mutant == "noise of the next position":
            draws = replace(draws, positions=draws.positions + 1)
        write(self, draws, owners)
        if mutant == "no top-p":
            self.device["top_p"][:] = 1
        if mutant == "no top-k":
            self.device["top_k"][:] = 0

    rng = np.random.default_rng(0)
    params = np.zeros(8, ROW)
    params["typical_p"] = 1
    params["temperature"], params["top_p"], params["top_k"] = 1, 0.5, 30
    logits = rng.standard_normal((8, 400)).astype(np.float32)
    batch = batch_of(params, range(8))
    want = REFERENCE.sample(logits, batch)
    assert on_device(logits, batch) == want
    monkeypatch.setattr(Slate, "write", wrong)
    assert on_device(logits, batch) != want
