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
from octavo.errors import CheckpointError, UnsupportedError
from octavo.kernels.ops import Backend
from octavo.kernels.reference import ReferenceBackend
from octavo.kernels.select import native_available
from octavo.kernels.weight import Weight
from octavo.models.layers import Use
from octavo.models.load import load_model, outline_model
from octavo.models.loader import Loader
from octavo.quant.on_load import methods
from support import packed_integers as packing
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


def integers(w: torch.Tensor, act_order: bool) -> tuple[packing.I64, packing.I64, packing.F32, packing.I64]:
    """q, zeros, scales and groups of 32 columns of w, rounded to nearest."""
    n, k = w.shape
    groups = np.arange(k) // 32
    g_idx = np.random.default_rng(3).permutation(groups) if act_order else groups
    columns = w.numpy()[:, np.argsort(g_idx, kind="stable")].reshape(n, k // 32, 32)
    low, high = np.minimum(columns.min(axis=2), 0), np.maximum(columns.max(axis=2), 0)
    scale = ((high - low) / 15 + 1e-6).astype(np.float16).astype(np.float32)
    zero = np.clip(np.rint(-low / scale), 1, 15).astype(np.int64)
    q = np.clip(np.rint(w.numpy() / scale[:, g_idx]) + zero[:, g_idx], 0, 15).astype(np.int64)
    return q, zero, scale, g_idx


def as_torch(found: packing.Tensors, name: str) -> Tensors:
    stem = name.removesuffix(".weight")
    return {key.replace("X", stem, 1): torch.from_numpy(np.ascontiguousarray(v)) for key, v in found.items()}


def gptq(name: str, w: torch.Tensor) -> tuple[Tensors, torch.Tensor]:
    q, zero, scale, g_idx = integers(w, act_order=True)
    meant = torch.from_numpy(packing.numbers(q, zero, scale, g_idx))
    return as_torch(packing.gptq(q, zero, scale, g_idx, 4), name), meant


def awq(name: str, w: torch.Tensor) -> tuple[Tensors, torch.Tensor]:
    q, zero, scale, g_idx = integers(w, act_order=False)
    return as_torch(packing.awq(q, zero, scale), name), torch.from_numpy(
        packing.numbers(q, zero, scale, g_idx)
    )


METHODS = {
    "gptq": (gptq, {"quant_method": "gptq", "bits": 4, "group_size": 32, "desc_act": True, "sym": False}),
    "awq": (awq, {"quant_method": "awq", "bits": 4, "group_size": 32, "zero_point": True, "version": "gemm"}),
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


def of_floats(folder: Path) -> bool:
    """Whether x meets its numbers as it is."""
    return json.loads((folder / "config.json").read_text())["quantization_config"]["quant_method"] in (
        "bitsandbytes",
        "fp8",
    )


def run(folder: Path, backend: Backend, dtype: str) -> Any:
    return logits(load(folder, backend, dtype), backend, IDS, [len(IDS)])


def test_logits_are_those_of_what_it_means(folders: tuple[Path, Path]) -> None:
    quantized, dense = folders
    want = run(dense, ReferenceBackend(), "float32")
    if of_floats(quantized):
        np.testing.assert_array_equal(run(quantized, ReferenceBackend(), "auto"), want)
    np.testing.assert_array_equal(run(quantized, ReferenceBackend(), "float32"), want)


@pytest.mark.skipif(not native_available(), reason="needs the native kernels")
def test_the_native_backend_reads_them_as_they_are(folders: tuple[Path, Path]) -> None:
    """Codes of floats have the bits of the dense model; integers meet x as the reference says."""
    from octavo.kernels.cpu import CpuBackend

    quantized, dense = folders
    got = run(quantized, CpuBackend(), "auto")
    if of_floats(quantized):
        np.testing.assert_array_equal(got, run(dense, CpuBackend(), "auto"))
    want = run(quantized, ReferenceBackend(), "auto")
    largest = np.abs(want).max()  # a hidden value on the edge of two integers may round either way
    assert np.abs(got - want).max() < 0.02 * largest
    # Which values are, depends on the CPU that NumPy meets; all later tokens see one. So texts are short.
    both = [(load(quantized, each, "auto"), each) for each in (CpuBackend(), ReferenceBackend())]
    errors = []
    for at in range(0, len(IDS), 2):
        got, want = (logits(model, backend, IDS[at : at + 2], [2]) for model, backend in both)
        errors.append(np.abs(got - want))
    assert np.median(np.concatenate(errors)) < 1e-4 * largest


@pytest.mark.skipif(not native_available(), reason="needs the native kernels")
def test_it_takes_no_more_memory_than_its_file(folders: tuple[Path, Path]) -> None:
    from octavo.kernels.cpu import CpuBackend

    quantized, dense = folders
    sizes = [load_model(open_checkpoint(folder), CpuBackend())[1] for folder in (quantized, dense)]
    assert sizes[0] <= 0.55 * sizes[1]  # of f32, the embedding included


def test_scales_that_nobody_reads_are_not_ignored(folders: tuple[Path, Path], tmp_path: Path) -> None:
    quantized, _ = folders
    broken = tmp_path / "broken"
    shutil.copytree(quantized, broken)
    tensors = load_file(broken / "model.safetensors") | {
        "model.layers.0.self_attn.q_proj.other": torch.ones(1)
    }
    save_file(tensors, broken / "model.safetensors")
    with pytest.raises(CheckpointError, match=r"q_proj\.other"):
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


@pytest.mark.parametrize("name", ["int8", "eetq", "int4", "nf4", "fp8"])
def test_quantized_while_loading(name: str, save_tiny: Save, tmp_path: Path) -> None:
    """Its projections are what the method makes of them, its embedding and head are not."""
    shape = {"hidden_size": 128, "intermediate_size": 192, "num_hidden_layers": 2, "vocab_size": 160}
    heads = {"num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 64}
    folder = save_tiny({"model_type": "llama", **shape, **heads}, tmp_path / "dense")
    checkpoint, method = open_checkpoint(folder), methods()[name]
    loader, up = (
        Loader(checkpoint, ReferenceBackend(), {}, method=method),
        "model.layers.1.mlp.up_proj.weight",
    )
    stored = load_file(folder / "model.safetensors")
    made = loader.weight(up, (192, 128))
    assert made.layout.quantized or made.layout.coded
    want = method.weight("up", Weight.dense(stored[up].float().numpy()))
    np.testing.assert_array_equal(made.dequantize(), want.dequantize())
    for name_of, use in (("model.embed_tokens", Use.HEAD), ("lm_head", Use.HEAD)):
        if f"{name_of}.weight" in stored:
            assert loader.weight(f"{name_of}.weight", (160, 128), use=use).scale is None

    def run(quantization: str | None) -> Any:
        backend = ReferenceBackend()
        model, nbytes = load_model(checkpoint, backend, quantization=quantization)
        assert nbytes > 0
        return logits(model, backend, IDS, [len(IDS)])

    plain, quantized = run(None), run(name)
    assert np.isfinite(quantized).all()
    assert np.abs(quantized - plain).max() > 0
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(
        json.dumps(config | {"quantization_config": {"quant_method": "awq", "bits": 4}})
    )
    with pytest.raises(UnsupportedError, match="contradicts dense, which is stored as awq"):
        load_model(open_checkpoint(folder), ReferenceBackend(), quantization=name)
