"""Whole models on the GPU backend, interpreted, against the reference (which equals transformers)."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from models.conftest import save
from models.tiny import TINY
from octavo.models.registry import families, family
from support.cuda import REFERENCE, interpreted
from support.cuts import FEW, check_cuts, check_sampled
from support.forward import Sequences, load, logits

# NumPy warns of infinities under the interpreter; a GPU does not.
pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning")

IDS = [int(i) for i in np.random.default_rng(5).integers(3, 150, 24)]
SHORT = ("llama", "deepseek_v3", "gpt2", "t5")
NAMES = [f.name if f.name in SHORT else pytest.param(f.name, marks=pytest.mark.slow) for f in families()]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """A family's first variant, with random weights."""

    def make(name: str) -> Path:
        arguments = next(iter(TINY[name].values()))
        return save({"model_type": family(name).hf[0], **arguments}, tmp_path_factory.mktemp(name))

    return make


@pytest.mark.parametrize("name", NAMES)
def test_logits_equal_the_references(name: str, folder: Callable[[str], Path]) -> None:
    """A prompt in three chunks, one of them a single token."""
    path = folder(name)
    backend = interpreted()
    ours = logits(load(path, backend), backend, IDS, [15, 1, 8])
    theirs = logits(load(path, REFERENCE), REFERENCE, IDS, [len(IDS)])
    assert np.abs(ours - theirs).max() <= 3e-5 * np.abs(theirs).max()


@pytest.mark.parametrize("name", NAMES)
def test_taps_and_cuts_change_no_bit(name: str, folder: Callable[[str], Path]) -> None:
    backend = interpreted()
    check_cuts(load(folder(name), backend), backend, FEW)


@pytest.mark.parametrize("name", ["llama", "falcon", "deepseek_v2"])
def test_rows_that_nobody_samples_change_no_bit(name: str, folder: Callable[[str], Path]) -> None:
    backend = interpreted(exact=True)
    check_sampled(load(folder(name), backend), backend, FEW)


def test_bit_exact_in_a_batch_and_alone(folder: Callable[[str], Path]) -> None:
    path = folder("llama")
    backend = interpreted(exact=True)
    model = load(path, backend)
    together = Sequences(model, backend, [24, 9])
    first = together.logits({0: IDS[:20], 1: IDS[3:11]})
    rest = together.logits({0: IDS[20:21], 1: IDS[11:12]})
    alone = logits(model, backend, IDS[:21], [21])
    # bits are `make gpu-check`'s: the interpreter's BLAS adds by a row's place in its tile
    np.testing.assert_allclose(
        np.concatenate([first[0], rest[0]]), alone, rtol=0, atol=3e-6 * np.abs(alone).max()
    )
