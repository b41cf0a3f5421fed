"""Whole models from quantized checkpoints: what the matrices mean, run dense, gives the same logits."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import bitsandbytes.functional as bnb
import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from octavo.checkpoints import open_checkpoint
from octavo.errors import CheckpointError
from octavo.kernels.ops import Backend
from octavo.kernels.reference import ReferenceBackend
from octavo.kernels.select import native_available
from octavo.models.load import load_model, outline_model
from support.forward import load, logits

IDS = [int(i) for i in np.random.default_rng(8).integers(3, 150, 24)]
Tensors = dict[str, torch.Tensor]
Save = Callable[[dict[str, Any], Path], Path]


def nf4(name: str, w: torch.Tensor) -> tuple[Tensors, torch.Tensor]:
    packed, state = bnb.quantize_4bit(w, blocksize=64, compress_statistics=True, quant_type="nf4")
    parts = {f"{name}.{key}": value for key, value in state.as_dict(packed=True).items()}
    return {name: packed, **parts}, bnb.dequantize_4bit(packed, state)


def fp8(name: str, w: torch.Tensor) -> tuple[Tensors, torch.Tensor]:
    scale = w.abs().amax(dim=1, keepdim=True) / 448
    q = (w / scale).to(torch.float8_e4m3fn)
    parts = {name: q, f"{name}_scale": scale, name.replace("weight", "input_scale"): torch.ones(1)}
    return parts, q.float() * scale


METHODS = {
    "bitsandbytes": (nf4, {"quant_method": "bitsandbytes", "bnb_4bit_quant_type": "nf4"}),
    "fp8": (fp8, {"quant_method": "fp8", "activation_scheme": "static"}),
}


@pytest.fixture(scope="module", params=METHODS)
def folders(
    request: pytest.FixtureRequest, save_tiny: Save, tmp_path_factory: pytest.TempPathFactory
) -> tuple[Path, Path]:
    """(the quantized model, the dense one that it means)."""
    quantize, settings = METHODS[request.param]
    shape = {"hidden_size": 128, "intermediate_size": 192, "num_hidden_layers": 2, "vocab_size": 160}
    heads = {"num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 64}
    root = tmp_path_factory.mktemp(request.param)
    dense = save_tiny({"model_type": "llama", **shape, **heads}, root / "dense")
    target = root / "quantized"
    shutil.copytree(dense, target)
    stored, meant = load_file(dense / "model.safetensors"), Tensors()
    kept = Tensors()
    for name, w in stored.items():
        if name.endswith("_proj.weight"):
            parts, meant[name] = quantize(name, w.float())
            kept |= parts
        else:
            kept[name] = meant[name] = w
    save_file({k: v.contiguous() for k, v in kept.items()}, target / "model.safetensors")
    save_file({k: v.contiguous() for k, v in meant.items()}, dense / "model.safetensors")
    config = json.loads((target / "config.json").read_text()) | {"quantization_config": settings}
    (target / "config.json").write_text(json.dumps(config))
    return target, dense


def run(folder: Path, backend: Backend, dtype: str) -> Any:
    return logits(load(folder, backend, dtype), backend, IDS, [len(IDS)])


def test_logits_are_those_of_what_it_means(folders: tuple[Path, Path]) -> None:
    quantized, dense = folders
    want = run(dense, ReferenceBackend(), "float32")
    np.testing.assert_array_equal(run(quantized, ReferenceBackend(), "auto"), want)
    np.testing.assert_array_equal(run(quantized, ReferenceBackend(), "float32"), want)


@pytest.mark.skipif(not native_available(), reason="needs the native kernels")
def test_the_native_backend_reads_them_as_f16(folders: tuple[Path, Path]) -> None:
    """Embedding and norms are f32 in both; the projections are each rounded once."""
    from octavo.kernels.cpu import CpuBackend

    quantized, dense = folders
    stored = load_file(dense / "model.safetensors")
    rounded = {k: v.half().float() if k.endswith("_proj.weight") else v for k, v in stored.items()}
    half = dense.parent / "half"
    shutil.copytree(dense, half, dirs_exist_ok=True)
    save_file(rounded, half / "model.safetensors")
    want = run(half, ReferenceBackend(), "float32")
    np.testing.assert_allclose(run(quantized, CpuBackend(), "auto"), want, atol=1e-4 * np.abs(want).max())


def test_scales_that_nobody_reads_are_not_ignored(folders: tuple[Path, Path], tmp_path: Path) -> None:
    quantized, _ = folders
    broken = tmp_path / "broken"
    shutil.copytree(quantized, broken)
    tensors = load_file(broken / "model.safetensors") | {
        "model.layers.0.self_attn.q_proj.g_idx": torch.ones(1)
    }
    save_file(tensors, broken / "model.safetensors")
    with pytest.raises(CheckpointError, match=r"q_proj\.g_idx"):
        load(broken, ReferenceBackend(), "auto")


@pytest.mark.skipif(not native_available(), reason="the native kernels are not built")
def test_it_is_planned_by_its_files_and_by_its_config_alone(
    folders: tuple[Path, Path], tmp_path: Path
) -> None:
    from octavo.kernels.cpu import CpuBackend

    quantized, _ = folders
    _, nbytes = load_model(open_checkpoint(quantized), CpuBackend())
    shutil.copy(quantized / "config.json", tmp_path)
    for folder in (quantized, tmp_path):
        assert outline_model(open_checkpoint(folder, headers=True), CpuBackend(planned=True))[1] == nbytes
