"""Watermarks: green lists equal torch's, and each side's detector finds what the other has written."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from transformers import PreTrainedConfig, WatermarkDetector, WatermarkingConfig
from transformers.generation.logits_process import WatermarkLogitsProcessor

from octavo.errors import InvalidRequestError
from octavo.kernels.cpu import CpuBackend
from octavo.kernels.green_list import green_list, reference_green_list
from octavo.params import BeamSearchParams, SampledToken, SamplingParams
from octavo.params.watermark import WatermarkParams
from octavo.sampling import Sampler, SamplingRows
from octavo.sampling.logits import allowed
from octavo.sampling.native import make_sampler
from octavo.sampling.sampling_batch import U32
from octavo.sampling.watermark import GreenLists, detect

VOCAB = 1000


def ids_of(bits: U32, vocab: int) -> list[int]:
    return np.flatnonzero(allowed(bits, vocab)).tolist()


@pytest.mark.parametrize("vocab", [1, 2, 31, 32, 33, 1000, 49_152, 262_144])
def test_lists_are_those_of_torchs_permutation(vocab: int) -> None:
    """Its generator takes 32 bits of a seed, so any seed is tried with more, too."""
    for seed in (0, 1, 5489, 15_485_863 * 261_999 & 0xFFFFFFFF, 2**32 - 1, 2**33 + 7):
        generator = torch.Generator(device="cpu")
        generator.manual_seed(seed)
        order = torch.randperm(vocab, generator=generator)
        for count in {0, 1, vocab // 4, vocab // 2, vocab} & set(range(vocab + 1)):
            want = sorted(order[:count].tolist())
            assert ids_of(green_list(seed, vocab, count), vocab) == want
            if vocab < 50_000:
                assert ids_of(reference_green_list(seed, vocab, count), vocab) == want


@pytest.mark.parametrize("gamma", [0.25, 0.5, 0.1])
def test_lists_are_those_of_transformers(gamma: float) -> None:
    theirs = WatermarkLogitsProcessor(VOCAB, "cpu", greenlist_ratio=gamma, bias=2.0)
    lists, wanted = GreenLists(VOCAB), WatermarkParams(gamma)
    for token in (0, 1, 77, VOCAB - 1):
        want = sorted(theirs._get_greenlist_ids(torch.tensor([5, token])).tolist())
        assert ids_of(lists.after(token, wanted), VOCAB) == want


def test_kept_lists_are_bounded_and_counted() -> None:
    lists, wanted = GreenLists(VOCAB, most_bytes=10 * 4 * 32), WatermarkParams()
    for token in range(25):
        lists.after(token, wanted)
        assert len(lists) <= 10
    assert (lists.hits, lists.misses) == (0, 25)
    lists.after(15, wanted)  # the oldest that is left; now the newest
    lists.after(30, wanted)
    lists.after(15, wanted)
    assert (lists.hits, lists.misses) == (2, 26)
    lists.after(15, replace(wanted, hashing_key=7))
    lists.after(15, replace(wanted, gamma=0.25))
    assert lists.misses == 28, "another key or share is another list"


def rows_of(wanted: Any, tokens: list[int], **more: Any) -> SamplingRows:
    rows = SamplingRows(1, VOCAB)
    rows.add(0, SamplingParams(seed=1, watermark=wanted, max_tokens=9, **more), 1, 0, tokens, len(tokens))
    return rows


def write(wanted: Any, seed: int, count: int, sampler: Sampler | None = None) -> list[int]:
    """Tokens drawn one after the other from the same flat logits."""
    logits = np.random.default_rng(seed).normal(0, 0.5, (1, VOCAB)).astype(np.float32)
    rows = SamplingRows(1, VOCAB)
    rows.add(0, SamplingParams(watermark=wanted), seed, 0, [seed % VOCAB], 1)
    drawn: list[int] = []
    for position in range(1, count + 1):
        (one,) = (sampler or Sampler()).sample(logits, rows.batch([0], [position]))
        assert isinstance(one, SampledToken)
        drawn.append(one.token_id)
        rows.append(0, [one.token_id])
    return drawn


def oracle(gamma: float, **more: Any) -> WatermarkDetector:
    config = WatermarkingConfig(greenlist_ratio=gamma, bias=2.0, seeding_scheme="lefthash", context_width=1)
    model = PreTrainedConfig()
    model.vocab_size, model.bos_token_id = VOCAB, VOCAB + 1
    return WatermarkDetector(model, "cpu", config, **more)


@pytest.mark.parametrize("gamma", [0.25, 0.5])
@pytest.mark.parametrize("repeated", [True, False])
def test_the_detector_of_transformers_finds_ours_with_the_same_z(gamma: float, repeated: bool) -> None:
    ids = write({"gamma": gamma}, 3, 200)
    found = oracle(gamma, ignore_repeated_ngrams=not repeated)(torch.tensor([ids]), return_dict=True)
    ours = detect(ids, GreenLists(VOCAB), WatermarkParams(gamma), repeated=repeated)
    assert ours.z > 4
    assert (ours.tokens, ours.green) == (found.num_tokens_scored[0], found.num_green_tokens[0])
    assert ours.z == pytest.approx(found.z_score[0], rel=1e-12)
    assert ours.p == pytest.approx(found.p_value[0], rel=1e-6, abs=1e-300)


def test_we_find_what_the_processor_of_transformers_has_marked() -> None:
    torch.manual_seed(0)
    logits = torch.randn(1, VOCAB) * 0.5
    theirs, ids = WatermarkLogitsProcessor(VOCAB, "cpu", greenlist_ratio=0.25, bias=2.0), [9]
    for _ in range(150):
        marked = theirs(torch.tensor([ids]), logits)
        ids.append(int(torch.multinomial(marked.softmax(-1), 1)))
    assert detect(ids, GreenLists(VOCAB), WatermarkParams(0.25)).z > 4
    assert detect(ids, GreenLists(VOCAB), WatermarkParams(0.25, hashing_key=15_485_867)).z < 4


def kolmogorov(values: Any) -> float:
    """p of the test whether these come from a standard normal distribution (Kolmogorov's limit)."""
    ordered, n = np.sort(values), len(values)
    below = np.array([0.5 * math.erfc(-value / math.sqrt(2)) for value in ordered])
    most = max((np.arange(1, n + 1) / n - below).max(), (below - np.arange(n) / n).max())
    return min(1.0, 2 * sum((-1) ** (k - 1) * math.exp(-2 * k * k * n * most * most) for k in range(1, 100)))


def test_z_of_unmarked_text_is_standard_normal() -> None:
    """2,000 texts of 200 tokens that know nothing of the lists."""
    lists, z = GreenLists(VOCAB), []
    for seed in range(2000):
        ids = np.random.default_rng(seed).integers(0, VOCAB, 200).tolist()
        z.append(detect(ids, lists, WatermarkParams(0.5)).z)
    # Counts are whole numbers: noise as wide as one of them makes them continuous.
    step = 1 / np.sqrt(199 * 0.25)
    smooth = np.array(z) + np.random.default_rng(0).uniform(-step / 2, step / 2, len(z))
    assert kolmogorov(smooth) > 0.01
    marked = [detect(write(True, seed, 60), lists, WatermarkParams()).z for seed in range(20)]
    assert kolmogorov(np.array(marked)) < 1e-6, "the test can fail"


def test_native_and_reference_draw_the_same_marked_tokens() -> None:
    native = make_sampler(CpuBackend(2), VOCAB)
    for seed in range(4):
        assert write({"delta": 3}, seed, 40, native) == write({"delta": 3}, seed, 40)
    assert write(True, 1, 40) != write(None, 1, 40)


def test_drafts_see_the_list_after_the_token_before_them() -> None:
    """Positions ahead, and the same positions one after the other, have the same boost."""
    rows, drafts = rows_of(True, [4]), [8, 15, 16]
    ahead = rows.batch([0] * 4, [1, 2, 3, 4], [drafts[:at] for at in range(4)]).boost
    assert ahead is not None
    for at in range(4):
        one = rows.batch([0], [at + 1]).boost
        assert one is not None
        np.testing.assert_array_equal(one.bits[0], ahead.bits[at])
        rows.append(0, drafts[at : at + 1])
    assert rows.follows([0])


@pytest.mark.parametrize("most", [1, 3, 9])
def test_lists_that_a_decoder_makes(most: int) -> None:
    """Rows of two gammas, some after the same token, in steps of which the second fails."""
    ours, one = GreenLists(VOCAB, most_bytes=most * 4 * 32), GreenLists(VOCAB)
    few, half = WatermarkParams(0.25), WatermarkParams()
    steps = ([1, 2, 3, 1, 4, 5], [9, 1, 6, 8, 9, 0], [9, 1, 6, 6, 5, 0], [1, 2], [])
    for step, tokens in enumerate(steps):
        marked = {2 * row: (few if row % 2 else half, token) for row, token in enumerate(tokens)}
        lifted = ours.lifted(marked)
        assert lifted.places == list(marked)
        assert len({line for _, _, line in lifted.made}) == len(lifted.made)
        if step == 1:
            continue  # nobody makes them, nor tells of it
        for seed, count, line in lifted.made:
            lifted.table[line] = green_list(seed, VOCAB, count)
        ours.made()
        for (wanted, token), line in zip(marked.values(), lifted.lines, strict=True):
            np.testing.assert_array_equal(lifted.table[line], one.after(token, wanted))
        assert len(ours) <= most
    if most == 9:  # three of the second step's are made anew in the third
        assert ours.counts == {"hit": 0 + 2 + 1 + 0, "made": 6 + 4 + 5 + 2}


def test_a_row_without_a_watermark_beside_one() -> None:
    rows = SamplingRows(2, VOCAB)
    rows.add(0, SamplingParams(watermark=True), 1, 0, [3], 1)
    rows.add(1, SamplingParams(logit_bias={3: 1.0}), 1, 0, [3], 1)
    boost = rows.batch([0, 1], [1, 1]).boost
    assert boost is not None
    assert boost.deltas.tolist() == [2, 0]
    assert rows.batch([1], [1]).boost is None


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ("yes", "watermark must be true, false, or an object"),
        ({"gamma": 2}, "watermark.gamma must be"),
        ({"gamma": 0}, "watermark.gamma must be"),
        ({"delta": "much"}, "watermark.delta must be"),
        ({"hashing_key": 0}, "watermark.hashing_key must be"),
        ({"seeding_scheme": "selfhash"}, "unknown field watermark.seeding_scheme"),
    ],
)
def test_what_a_watermark_may_be(given: Any, said: str) -> None:
    with pytest.raises(InvalidRequestError, match=said):
        WatermarkParams.of(given)


def test_it_is_refused_with_beams() -> None:
    beams = BeamSearchParams(2, 5)
    with pytest.raises(InvalidRequestError, match="watermark True cannot be had with a beam search"):
        SamplingParams(watermark=True, beam_search=beams)
    assert SamplingParams(watermark=False, beam_search=beams).watermark is False


@pytest.mark.parametrize(("ids", "said"), [([], "0 token"), ([1], "1 token"), ([1, VOCAB], "name the model")])
def test_what_cannot_be_tested(ids: list[int], said: str) -> None:
    with pytest.raises(InvalidRequestError, match=said):
        detect(ids, GreenLists(VOCAB), WatermarkParams())
