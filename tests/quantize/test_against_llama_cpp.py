"""GGUF files that `octavo quantize` makes, read by llama.cpp: logits and greedy texts are Octavo's."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from octavo.checkpoints import sources
from octavo.kernels.reference import ReferenceBackend
from octavo.quantize.asked import Asked
from octavo.quantize.job import quantize
from support.forward import load, logits
from support.llama_cpp import Run, choose_alike
from support.small_models import save_model

pytestmark = pytest.mark.oracle
IDS = [int(i) for i in np.random.default_rng(8).integers(3, 300, 40)]
WIDE: dict[str, Any] = {"hidden_size": 256, "intermediate_size": 512, "num_hidden_layers": 8}
LLAMA3: dict[str, Any] = {
    "rope_type": "llama3", "rope_theta": 500.0, "factor": 8.0, "low_freq_factor": 1.0,
    "high_freq_factor": 4.0, "original_max_position_embeddings": 32,
}  # fmt: skip


@pytest.mark.parametrize(
    ("kind", "apart"),
    [("F32", 1e-3), ("F16", 2e-3), ("Q8_0", 0.05), ("Q4_0", 0.05), ("Q4_1", 0.05), ("Q4_K_M", 0.05)],
)
@pytest.mark.parametrize("changes", [{}, {"rope_parameters": LLAMA3}], ids=["plain", "llama3"])
def test_logits(kind: str, apart: float, changes: dict[str, Any], tmp_path: Path) -> None:
    """Where weights are integers llama.cpp rounds activations to 8 bits, and Octavo with float32 does not."""
    llama_cpp = pytest.importorskip("llama_cpp")
    folder = save_model(tmp_path / "dense", **WIDE, **changes)
    quantize(Asked(folder, tmp_path / "out.gguf", kind=kind))
    llama = llama_cpp.Llama(
        str(tmp_path / "out.gguf"), n_ctx=64, n_batch=64, logits_all=True, verbose=False, type_k=0, type_v=0
    )
    llama.eval(IDS)
    theirs = np.array(llama.scores[: len(IDS)])
    backend = ReferenceBackend()
    ours = logits(load(tmp_path / "out.gguf", backend), backend, IDS, [len(IDS)])
    assert np.sqrt(np.square(ours - theirs).mean()) <= apart * np.abs(theirs).max()
    assert llama.tokenize(b"hello there, a text", add_bos=False)


@pytest.mark.parametrize(
    ("alias", "kind"),
    [("smollm2", "Q8_0"), ("smollm2", "Q4_1"), ("smollm2", "Q4_0"), ("gemma3-270m", "Q4_K_M")],
)
def test_the_text_is_the_same_but_for_near_ties(alias: str, kind: str, tmp_path: Path) -> None:
    pytest.importorskip("llama_cpp")
    out = tmp_path / f"{alias}-{kind}.gguf"
    quantize(Asked(sources.resolve(alias), out, kind=kind, requantize=True))
    choose_alike(Run.of(out))
