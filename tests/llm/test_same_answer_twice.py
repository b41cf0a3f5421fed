"""The same answer twice: whoever else is there, however pages and chunks fall, to the last bit.

Batch size, chunk size, page size, cache hits, preemption, swapped pages, priorities, policies, n, beams,
pages on disk that an earlier crowd has left, aborts of others, one thread or two, one step in flight or two,
KV in fp32, fp16 and int8: random mixtures.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from octavo.kernels.cpu import CpuKVCache
from octavo.kernels.cpu_program import CpuProgram
from octavo.kernels.forward_batch import ForwardBatch
from octavo.kernels.select import native_available
from octavo.quant.on_load import methods
from octavo.runtime import page_moves
from octavo.runtime.page_file import PrefixFile
from octavo.sampling.sampling_rows import SamplingRows
from support.crowds import KV_DTYPES, PARAMS, Crowd, alone, crowds, prompts
from support.few_bits import FEW_BITS
from support.tiny_engine import save_tiny_llama

CASES, SLOW_CASES, FEW_CASES = 500, 5000, 40
pytestmark = pytest.mark.skipif(not native_available(), reason="promised of the native kernels")


@pytest.fixture(scope="module")
def tiny_llama(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_tiny_llama(tmp_path_factory.mktemp("tiny-llama"))


def check(met: list[Crowd]) -> None:
    assert [crowd.differing for crowd in met if crowd.differing] == []
    happened = sum((crowd.happened for crowd in met), Counter[str]())
    # What is promised must also have been put to the test.
    assert happened["compared"] > 2 * len(met)
    assert happened["preempted"] > len(met) // 4
    assert happened["steps with pages swapped out"] > len(met) // 4
    assert happened["tokens from the cache"] > 10 * len(met)
    assert happened["tokens from disk"] > 2 * len(met)


def test_random_crowds_change_no_bit(tiny_llama: Path) -> None:
    check(crowds(tiny_llama, range(CASES)))


@pytest.mark.slow
def test_many_random_crowds_change_no_bit(tiny_llama: Path) -> None:
    check(crowds(tiny_llama, range(CASES, CASES + SLOW_CASES)))


def test_crowds_of_two_to_four_bits(
    tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A model wide enough for groups of 64 and 256 columns."""
    wide = save_tiny_llama(tmp_path_factory.mktemp("wide-llama"), hidden=256, inner=256)
    for name, method in FEW_BITS.items():
        monkeypatch.setitem(methods(), name, method)
    monkeypatch.setattr("support.crowds.QUANTIZATIONS", (*FEW_BITS, "nf4", "int4"))
    met = crowds(wide, range(FEW_CASES))
    assert [crowd.differing for crowd in met if crowd.differing] == []
    drawn = Counter(crowd.quantization for crowd in met)
    assert min(drawn[name] for name in (*FEW_BITS, "nf4", "int4")) >= 2


# --- mutants: the same test catches each ------------------------------------------------------------


def noise_by_step(patch: pytest.MonkeyPatch) -> None:
    """The position that keys the noise is that of the step, not of the token."""
    batch, steps = SamplingRows.batch, [0]

    def mutant(self: SamplingRows, rows: Any, positions: Any, ahead: Any = None) -> Any:
        steps[0] += 1
        return batch(self, rows, [10_000 + steps[0]] * len(positions), ahead)

    patch.setattr(SamplingRows, "batch", mutant)


def noise_by_row(patch: pytest.MonkeyPatch) -> None:
    """The row's number stands in for the request's seed."""
    add = SamplingRows.add

    def mutant(self: SamplingRows, row: int, params: Any, seed: int, *rest: Any) -> None:
        add(self, row, params, row, *rest)

    patch.setattr(SamplingRows, "add", mutant)


def sums_by_load(patch: pytest.MonkeyPatch) -> None:
    """What splitting sums by the load does: the last bit of the logits depends on the batch's size."""
    replay = CpuProgram.replay

    def mutant(self: CpuProgram, batch: ForwardBatch) -> Any:
        logits = replay(self, batch)
        if batch.num_sequences > 2:
            logits = np.nextafter(logits, np.float32(np.inf))
        return logits

    patch.setattr(CpuProgram, "replay", mutant)


def copies_forgotten(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(CpuKVCache, "copy_pages", lambda self, pairs: None)


def swapped_pages_lost(patch: pytest.MonkeyPatch) -> None:
    pairs = page_moves.pairs_of
    patch.setattr(page_moves, "pairs_of", lambda plan, first: pairs(replace(plan, swaps_in=()), first))


def pages_from_disk_mixed_up(patch: pytest.MonkeyPatch) -> None:
    page = PrefixFile.page
    patch.setattr(PrefixFile, "page", lambda self, slot: page(self, max(slot - 1, 0)))


def last_page_copied_to_the_wrong_place(patch: pytest.MonkeyPatch) -> None:
    copy = CpuKVCache.copy_pages
    patch.setattr(CpuKVCache, "copy_pages", lambda self, pairs: copy(self, [(b, a) for a, b in pairs]))


@pytest.mark.parametrize(
    "mutate",
    [
        noise_by_step,
        noise_by_row,
        sums_by_load,
        copies_forgotten,
        last_page_copied_to_the_wrong_place,
        swapped_pages_lost,
        pages_from_disk_mixed_up,
    ],
    ids=lambda mutate: mutate.__name__,
)
def test_the_mutant_is_caught(mutate: Any, tiny_llama: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("support.crowds.QUANTIZATIONS", (None,))  # what follows takes long enough with one
    for kv_dtype, prompt, params in product(KV_DTYPES, prompts(), range(len(PARAMS))):
        alone(tiny_llama, kv_dtype, None, prompt, params)  # what is true is found without the mutant
    assert crowds(tiny_llama, range(1))[0].differing == []
    mutate(monkeypatch)
    met = crowds(tiny_llama, range(CASES), until=lambda crowd: crowd.differing)
    assert met[-1].differing, "no crowd noticed"
