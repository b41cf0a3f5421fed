"""Scales that are folded into what comes before change nothing, in every family that has a place for them."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from safetensors.numpy import save_file

from models.conftest import save
from models.tiny import TINY
from octavo.checkpoints import open_checkpoint
from octavo.kernels.reference import ReferenceBackend
from octavo.models.registry import family
from octavo.quant.writer import Choice, Limits, Met, Tensors
from octavo.quantize import making
from octavo.quantize.asked import Asked, Report
from octavo.quantize.calibration import run
from octavo.quantize.folds import find_folds, unfolded
from octavo.quantize.making import Matrices, projections_of
from octavo.quantize.stored import StoredWeight, load_stored, numbers
from support.forward import load, logits

IDS = [int(i) for i in np.random.default_rng(8).integers(3, 150, 40)]
# Projections of a layer that something foldable comes before; of those left a plain activation, a norm on the
# residual's path or a norm that experts read too comes before.
REACHED = {
    ("llama", "plain"): {"q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"},
    ("llama", "tied_biased"): {"q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"},
    ("qwen2", "plain"): {"q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"},
    ("qwen3", "biased"): {"q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"},
    ("phi3", "window"): {"qkv_proj", "o_proj", "gate_up_proj", "down_proj"},
    ("gemma", "plain"): {"q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"},
    ("gemma2", "capped"): {"q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"},
    ("olmo2", "plain"): {"o_proj", "down_proj"},
    ("starcoder2", "window"): {"q_proj", "k_proj", "v_proj", "o_proj", "c_fc"},
    ("gpt_neox", "parallel"): {"query_key_value", "dense", "dense_h_to_4h"},
    ("falcon", "7b"): {"query_key_value", "dense", "dense_h_to_4h"},
    ("opt", "pre"): {"q_proj", "k_proj", "v_proj", "out_proj", "fc1"},
    ("mixtral", "plain"): {"q_proj", "k_proj", "v_proj", "o_proj"},
}


class Unrounded:
    """Keeps floats, and scales columns at random."""

    limits = Limits((32,), calibrated=True, folds=True, columns=1)

    def __init__(self) -> None:
        self._random = np.random.default_rng(0)

    def settings(self, choice: Choice, left_out: Sequence[str]) -> dict[str, Any]:
        return {}

    def write(self, stem: str, w: npt.NDArray[np.float32], choice: Choice, met: Met | None) -> Tensors:
        return {f"{stem}.weight": w}

    def scales(
        self, ws: Sequence[npt.NDArray[np.float32]], met: Met, choice: Choice, ties: npt.NDArray[np.int64]
    ) -> npt.NDArray[np.float32]:
        assert {w.shape[1] for w in ws} == {len(ties)}
        some = np.exp2(self._random.integers(-3, 4, int(ties.max()) + 1))
        return np.asarray(some[ties], np.float32)


@pytest.mark.parametrize(("name", "variant"), REACHED)
def test_nothing_changes(name: str, variant: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(making, "writer_of", lambda method: Unrounded())
    folder = save({"model_type": family(name).hf[0], **TINY[name][variant]}, tmp_path / "dense")
    checkpoint, report = open_checkpoint(folder), Report()
    matrices = Matrices(checkpoint, Asked(folder, tmp_path, "none", Choice(32, -1)), report)
    stored = load_stored(checkpoint, lambda name: numbers(checkpoint, name))
    matrices.choose(stored)
    folds = find_folds(stored)
    reached = defaultdict[str, set[str]](set)  # a layer's number -> of its projections
    for reader in (reader for fold in folds for reader in fold.readers):
        layer = re.search(r"\.(\d+)\.", reader)
        reached[layer[1] if layer else ""].add(reader.split(".")[-2])
    assert len(reached) == len(stored.model.stack.layers)
    assert all(found == REACHED[name, variant] for found in reached.values())
    left = unfolded(folds, stored.matrices)
    assert len(left) + sum(len(fold.readers) for fold in folds) == len(matrices.targets)
    matrices.use_folds(folds)

    def meet(weight: StoredWeight, x: npt.NDArray[np.float32]) -> None:
        for named in projections_of(weight, matrices.targets):
            assert len(x) == len(IDS) or "experts" in named.name, "a projection of the last layer, too"
            matrices.look(named.name, x)

    run(stored, np.array([IDS], np.int32), meet)
    changed, tensors = 0, dict[str, Any]()
    for stored_name in checkpoint.tensors:
        if stored_name in matrices.targets:
            tensors |= matrices.make_sampled(stored_name)
        else:
            tensor = matrices.untouched(stored_name)
            tensors[stored_name] = tensor.data.view(np.float32).reshape(tensor.shape)
        old = checkpoint.tensors[stored_name].data.view(np.float32).reshape(tensors[stored_name].shape)
        changed += not np.array_equal(old, tensors[stored_name])
    assert changed > len(folds)
    target = tmp_path / "folded"
    target.mkdir()
    save_file({k: np.ascontiguousarray(v) for k, v in tensors.items()}, target / "model.safetensors")
    (target / "config.json").write_bytes((folder / "config.json").read_bytes())
    backend = ReferenceBackend()
    before, after = (logits(load(p, backend), backend, IDS, [len(IDS)]) for p in (folder, target))
    assert np.abs(after - before).max() <= 2e-4 * np.abs(before).max()
