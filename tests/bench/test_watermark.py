"""benchmarks/watermark.py: the test that its z are normal, its keys, and both of its parts in the small."""

from __future__ import annotations

import argparse
import importlib
from typing import Any

import numpy as np
import pytest

from octavo.sampling.watermark import Detection


def script() -> Any:
    """The module (conftest.py has put the folder on the path)."""
    return importlib.import_module("watermark")


def counted(shift: float, count: int = 200, runs: int = 400) -> list[Detection]:
    """Counts of green tokens of so many, above the half by so many deviations."""
    share = 0.5 + shift * 0.5 / np.sqrt(count)
    green = np.random.default_rng(1).binomial(count, share, runs)
    return [Detection(count, int(each), (each - count / 2) / np.sqrt(count / 4), 0.5) for each in green]


def test_counts_that_know_nothing_of_lists_are_normal() -> None:
    assert script().normal_p(counted(0.0)) > 0.05
    assert script().normal_p(counted(0.5)) < 1e-6, "half a deviation is found"
    assert script().normal_p(counted(0.0, 20)) > 0.05, "few tokens are made continuous"


def test_each_text_has_a_key_of_its_own() -> None:
    keys = [script().a_key(run).hashing_key for run in range(50)]
    assert len(set(keys)) == 50
    assert keys[7] == script().a_key(7).hashing_key


@pytest.mark.parametrize("what", ["strength", "cost"])
def test_what_it_says(what: str, smollm2_path: Any) -> None:
    assert smollm2_path.exists()
    options = argparse.Namespace(
        model="smollm2", runs=8, threads=2, streams=[2], new_tokens=4, repeat=1
    )  # (an interval of one repetition is a point)
    if what == "cost":
        found = script().cost(options)
        assert found.keys() == {"2"}
        assert found["2"]["warmed"] == 8
        assert 0 <= found["2"]["hit_rate"] <= 1
        assert found["2"]["low"] <= found["2"]["ratio"] <= found["2"]["high"]
        return
    found = script().strength(options)
    assert found["marked"]["share"] == 1 > found["unmarked"]["share"]
    assert found["marked"]["normal_p"] < 1e-3 < found["unmarked"]["normal_p"]
    assert found["cost"]["perplexity_ratio"] > 1
