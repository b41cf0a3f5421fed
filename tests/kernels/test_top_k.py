"""The k largest with ties: torch.topk on a CPU is the oracle, of the reference and of the extension."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from octavo.kernels import _native, top_k
from octavo.kernels.ops import F32

ROOT = Path(__file__).resolve().parents[2]


def rows_of(rng: np.random.Generator, n: int) -> F32:
    """All equal; of 2, of n / 4 and of n values; the last with NaN and infinities among them."""
    values = (1, 2, max(n // 4, 2), n, 3)
    x = np.stack([rng.integers(0, v, n) for v in values]).astype(np.float32)
    x[-1] = np.where(rng.random(n) < 0.2, rng.choice([np.nan, np.inf, -np.inf, -0.0], n), x[-1])
    return x


def theirs(x: F32, k: int, ordered: bool) -> Any:
    import torch

    return np.sort(torch.topk(torch.from_numpy(x), k, dim=-1, sorted=ordered).indices.numpy(), axis=1)


def test_ties_are_torchs() -> None:
    rng, plain, rows = np.random.default_rng(0), 0, 0
    for n in range(2, 301):
        for k in range(1, min(n, 16) + 1):
            x = rows_of(rng, n)
            want = theirs(x, k, ordered=bool(n % 2))
            np.testing.assert_array_equal(top_k.top_k(x, k), want)
            np.testing.assert_array_equal(np.array(_native.top_k(x, k)), want)
            lower = np.sort(np.argsort(-x[:-1], axis=1, kind="stable")[:, :k], axis=1)
            plain, rows = plain + int((lower != want[:-1]).any(axis=1).sum()), rows + len(lower)
    assert plain > rows / 3  # taking the lower of equals would not do


@pytest.mark.slow
@pytest.mark.parametrize("capability", ["default", "avx2", "avx512"])
def test_ties_are_torchs_whatever_it_dispatches_to(capability: str) -> None:
    script = "import sys; sys.path[:0] = ['tests']; import conftest; from kernels import test_top_k as t; t."
    subprocess.run(
        [sys.executable, "-c", script + "test_ties_are_torchs()"],
        check=True, cwd=ROOT, env=os.environ | {"ATEN_CPU_CAPABILITY": capability, "OMP_NUM_THREADS": "1"},
    )  # fmt: skip


class Adversary:
    """Keys that become what makes quickselect slowest: each is decided when it is compared (McIlroy 1999)."""

    def __init__(self, n: int) -> None:
        self.values: list[int | None] = [None] * n
        self.solid, self.candidate = n, 0

    def greater(self, i: int, j: int) -> bool:
        if self.values[i] is None and self.values[j] is None:
            self._freeze(i if i == self.candidate else j)
        if self.values[i] is None:
            self.candidate = i
        elif self.values[j] is None:
            self.candidate = j
        return self.value(i) > self.value(j)

    def value(self, i: int) -> int:
        known = self.values[i]
        return 0 if known is None else known

    def _freeze(self, i: int) -> None:
        self.values[i] = self.solid
        self.solid -= 1


class Key:
    def __init__(self, judge: Adversary, i: int) -> None:
        self.judge, self.i = judge, i

    def __gt__(self, other: Key) -> bool:
        return self.i != other.i and self.judge.greater(self.i, other.i)

    def __lt__(self, other: Key) -> bool:
        return other > self


def test_rows_that_defeat_quickselect(monkeypatch: pytest.MonkeyPatch) -> None:
    """After 2 log2 n useless pivots the rest goes to a heap: there, too, ties fall as torch's."""
    heaps: list[int] = []
    select = top_k._heap_select
    monkeypatch.setattr(top_k, "_heap_select", lambda *a: (heaps.append(1), select(*a))[1])
    rng, met = np.random.default_rng(1), 0
    for n in (40, 100, 128, 250, 300):
        for k in (n // 2, n // 3, n - 5):
            judge = Adversary(n)
            top_k.choose([Key(judge, i) for i in range(n)], k)
            x = np.float32([judge.value(i) for i in range(n)])
            tied = np.stack([np.where(rng.random(n) < part, x, np.ceil(x / 2) * 2) for part in (1, 0, 0.5)])
            border = np.sort(tied, axis=1)[:, n - k, None]
            tied = np.concatenate([tied, np.where(rng.random(tied.shape) < 0.2, border, tied)])
            for row in tied.astype(np.float32):
                heaps.clear()
                mine = top_k.choose(row.tolist(), k)
                met += bool(heaps)
                want = theirs(row[None], k, ordered=False)
                np.testing.assert_array_equal(np.sort(mine), want[0])
                np.testing.assert_array_equal(np.array(_native.top_k(row[None], k)), want)
    assert met > 10


def test_what_cannot_be_chosen_is_refused() -> None:
    for k in (0, 4):
        with pytest.raises(ValueError, match=r"k must lie in 1\.\.n"):
            _native.top_k(np.zeros((1, 3), np.float32), k)
