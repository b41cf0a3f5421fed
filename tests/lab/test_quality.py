"""Perplexity, KL and flips against their definitions; the scorer against the engine."""

from __future__ import annotations

import math

import numpy as np
import pytest

from octavo.bench.driver import Driver
from octavo.config import EngineConfig
from octavo.errors import InvalidRequestError
from octavo.lab.quality import Quality, WindowScorer, log_softmax, windows


def test_windows_lie_side_by_side() -> None:
    ids = list(range(10))
    assert list(windows(ids, 4)) == [[0, 1, 2, 3], [4, 5, 6, 7]]
    assert list(windows(ids, 4, 1)) == [[0, 1, 2, 3]]
    assert list(windows(ids, 5, 9)) == [[0, 1, 2, 3, 4], [5, 6, 7, 8, 9]]
    assert list(windows(ids, 11)) == []


def test_log_softmax_of_large_logits() -> None:
    p = np.exp(log_softmax(np.array([[1e4, 1e4 - math.log(3.0), -1e4]], np.float32)))
    assert p[0].tolist() == pytest.approx([0.75, 0.25, 0.0], abs=1e-3)


def test_sums_by_definition() -> None:
    p, q = np.array([0.5, 0.25, 0.25]), np.array([0.25, 0.25, 0.5])
    found = Quality()
    found.add(np.log(q)[None].astype(np.float32), np.log(p)[None].astype(np.float32), [0])
    assert found.perplexity == pytest.approx(4.0, rel=1e-6)
    assert found.mean_kl == pytest.approx(0.5 * math.log(2) - 0.25 * math.log(2), rel=1e-6)
    assert found.flips == 1, "the engine's choice is ln 2 below the reference's"
    found.add(np.log(p)[None].astype(np.float32), np.log(p)[None].astype(np.float32), [0])
    assert found.perplexity == pytest.approx(math.exp((math.log(4) + math.log(2)) / 2), rel=1e-6)
    assert found.flip_share == 0.5


@pytest.mark.parametrize(("gap", "flips"), [(0.1, 0), (0.2, 1)])
def test_near_ties_are_no_flips(gap: float, flips: int) -> None:
    reference = np.array([[1.0, 1.0 - gap, 0.0]], np.float32)
    found = Quality()
    found.add(np.array([[0.0, 5.0, 0.0]], np.float32), reference, [0])
    assert found.flips == flips


@pytest.fixture(scope="module")
def scorer() -> WindowScorer:
    return WindowScorer(EngineConfig("smollm2"), window=48)


def test_the_last_row_is_what_the_engine_draws_from(driver: Driver, scorer: WindowScorer) -> None:
    ids = driver.get_tokenizer().encode("The capital of France is")
    drawn = list(driver.run([ids], 4).token_ids[0])
    logits = scorer.logits(ids + drawn[:-1], len(ids) - 1)
    assert logits.shape == (4, driver.vocab_size)
    assert logits.argmax(axis=1).tolist() == drawn


def test_calls_know_nothing_of_each_other(scorer: WindowScorer) -> None:
    ids = list(range(1000, 1040))
    whole = scorer.logits(ids)
    scorer.logits(list(range(2000, 2048)))
    again = scorer.logits(ids, 30)
    assert again.tobytes() == whole[30:].tobytes()


@pytest.mark.parametrize(("count", "first"), [(49, 0), (0, 0), (5, 5), (5, -1)])
def test_what_fits_no_window(scorer: WindowScorer, count: int, first: int) -> None:
    with pytest.raises(InvalidRequestError, match="do not fit a window of 48"):
        scorer.logits(list(range(count)), first)
