"""Prompts and the statistics over what they took."""

from __future__ import annotations

import pytest

from octavo.bench.workload import COMMON_IDS, percentile, random_prompts, spread


def test_prompts_are_equal_for_equal_seeds_and_never_alike() -> None:
    prompts = random_prompts(40, 30, 50_000, seed=1)
    assert prompts == random_prompts(40, 30, 50_000, seed=1)
    assert len({tuple(p) for p in prompts + random_prompts(40, 30, 50_000, seed=2)}) == 80
    assert {len(p) for p in prompts} == {30}


@pytest.mark.parametrize("vocab", [2, 300, 32_000, 150_000])
def test_ids_are_in_the_vocabulary_and_not_special(vocab: int) -> None:
    ids = {i for prompt in random_prompts(20, 50, vocab) for i in prompt}
    assert max(ids) < min(vocab, COMMON_IDS)
    assert min(ids) >= min(256, vocab // 2)


@pytest.mark.parametrize(
    ("values", "share", "expected"),
    [
        ([5.0], 0.5, 5.0),
        ([3.0, 1.0, 2.0], 0.5, 2.0),
        ([4.0, 1.0, 2.0, 3.0], 0.5, 2.0),
        ([float(i) for i in range(1, 101)], 0.99, 99.0),
        ([float(i) for i in range(1, 11)], 0.99, 10.0),
        ([2.0, 1.0], 1.0, 2.0),
    ],
)
def test_percentile_is_the_nearest_rank(values: list[float], share: float, expected: float) -> None:
    assert percentile(values, share) == expected


def test_nothing_has_no_percentile() -> None:
    with pytest.raises(ValueError, match="at least one value"):
        percentile([], 0.5)


def test_spread() -> None:
    assert spread([2.0, 4.0, 3.0]) == 2.0
