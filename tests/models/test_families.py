"""Every family against transformers, discovered from the registry."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from octavo.kernels.reference import ReferenceBackend
from octavo.models.registry import families
from support.forward import load, logits

IDS = [int(i) for i in np.random.default_rng(5).integers(0, 150, 70)]
TYPES = [t for f in families() for t in f.hf]


def truth(folder: Path, ids: list[int]) -> np.ndarray:
    import torch
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    with torch.no_grad():
        return model(torch.tensor([ids])).logits[0].numpy()


@pytest.mark.parametrize("model_type", TYPES)
def test_prompt_logits_equal_transformers(model_type: str, tiny_folder: Callable[[str], Path]) -> None:
    folder = tiny_folder(model_type)
    backend = ReferenceBackend()
    ours = logits(load(folder, backend), backend, IDS, [len(IDS)])
    theirs = truth(folder, IDS)
    assert np.abs(ours - theirs).max() <= 1e-4 * np.abs(theirs).max()


@pytest.mark.parametrize("model_type", TYPES)
@pytest.mark.parametrize("chunks", [[1] * 70, [7] * 10, [16, 17, 31, 6], [69, 1]])
def test_chunked_equals_whole(model_type: str, chunks: list[int], tiny_folder: Callable[[str], Path]) -> None:
    backend = ReferenceBackend()
    model = load(tiny_folder(model_type), backend)
    whole = logits(model, backend, IDS, [len(IDS)])
    for page_size in (1, 5, 16):
        chunked = logits(model, backend, IDS, chunks, page_size)
        np.testing.assert_allclose(chunked, whole, atol=1e-4 * np.abs(whole).max(), rtol=0)
