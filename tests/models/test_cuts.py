"""Every family, every backend: what taps leave alone, and a forward in two halves."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from models.tiny import VARIANTS
from support.cuts import Pieces, check_cuts, check_sampled
from support.forward import BACKENDS, backend_called, load

CASES = [(*case, b) for case in VARIANTS for b in BACKENDS]
Folders = Callable[[str, str], Path]


@pytest.mark.parametrize(("name", "variant", "backend"), CASES, ids=["-".join(case) for case in CASES])
def test_taps_and_cuts_change_no_bit(name: str, variant: str, backend: str, tiny_folder: Folders) -> None:
    computer = backend_called(backend)
    check_cuts(load(tiny_folder(name, variant), computer), computer)


@pytest.mark.parametrize(("name", "variant", "backend"), CASES, ids=["-".join(case) for case in CASES])
def test_rows_that_nobody_samples_change_no_bit(
    name: str, variant: str, backend: str, tiny_folder: Folders
) -> None:
    computer = backend_called(backend)
    check_sampled(load(tiny_folder(name, variant), computer), computer)


def test_a_tap_is_what_a_cut_hands_on(tiny_folder: Folders) -> None:
    """Of the layers before it, not yet normed."""
    for backend in BACKENDS:
        computer = backend_called(backend)
        pieces = Pieces(load(tiny_folder("llama", "plain"), computer), computer)
        _, kept = pieces.whole({0})
        first, _ = pieces.halves(pieces.pages(), 1)
        rows = [first.replay(batch).copy() for batch in pieces.batches()]
        np.testing.assert_array_equal(kept[0], np.concatenate(rows))


@pytest.mark.parametrize("taps", [{-1}, {3}, {0, 99}])
def test_taps_that_are_no_layers_are_refused(taps: set[int], tiny_folder: Folders) -> None:
    computer = backend_called("reference")
    pieces = Pieces(load(tiny_folder("llama", "plain"), computer), computer)
    with pytest.raises(ValueError, match="are not among layers 0 to"):
        pieces.whole(taps)
    for count in (-1, pieces.layers + 1):
        with pytest.raises(ValueError, match="cannot be cut after"):
            pieces.cut(count)
