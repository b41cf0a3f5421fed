"""Weights of floats, quantized while they are loaded: against the libraries that define the formats."""

from __future__ import annotations

import tracemalloc
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import bitsandbytes.functional as bnb
import numpy as np
import pytest
import torch

from octavo.config.quantization import METHODS, ON_LOAD, check_quantization
from octavo.errors import CheckpointError, UnsupportedError
from octavo.kernels.outline import outline_of
from octavo.kernels.weight import Weight
from octavo.quant.on_load import made_on_load, methods
from octavo.quant.scheme import names as stored_methods

SHAPE = (300, 256)


def random(seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal(SHAPE).astype(np.float32) * 0.05


@dataclass
class Files:
    """As much of a checkpoint as a method is chosen by."""

    config: dict[str, Any] = field(default_factory=dict)
    kind: str = "hf"
    path: Path = Path("folder")
    tensors: dict[str, Any] = field(default_factory=dict)


def stored_as(method: str) -> Files:
    return Files({"quantization_config": {"quant_method": method}})


def test_every_name_that_is_taken_is_one_of_a_registry() -> None:
    assert set(ON_LOAD) == set(methods())
    known = {name.replace("_", "-") for name in stored_methods()}
    spelt = {"gguf", "gptq_marlin", "awq_marlin", "bitsandbytes-nf4", "bitsandbytes-fp4"}
    assert set(METHODS) == known | spelt | set(ON_LOAD)
    with pytest.raises(UnsupportedError, match="quantization 'q3' is not supported; gguf, gptq"):
        check_quantization("q3")


def test_nf4_is_what_bitsandbytes_makes() -> None:
    w = random()
    packed, state = bnb.quantize_4bit(torch.from_numpy(w), blocksize=64, quant_type="nf4")
    made = methods()["nf4"].weight("w", Weight.dense(w))
    np.testing.assert_array_equal(made.dequantize(), bnb.dequantize_4bit(packed, state).numpy())


def test_eetq_is_what_bitsandbytes_makes() -> None:
    w = random().astype(np.float16)
    codes, rows, _ = bnb.int8_vectorwise_quant(torch.from_numpy(w))
    made = methods()["eetq"].weight("w", Weight.dense(w))
    exact = w.astype(np.float64) * (127 / np.abs(w.astype(np.float64)).max(axis=1, keepdims=True))
    ties = np.abs(np.abs(exact) % 1 - 0.5) < 1e-4
    ours, theirs = made.values.reshape(SHAPE), codes.numpy()
    np.testing.assert_array_equal(ours[~ties], theirs[~ties])
    assert (np.abs(ours - exact) <= 0.5001).all()
    assert ties.mean() < 0.01
    assert made.scale is not None
    np.testing.assert_allclose(made.scale[:, 0], rows.numpy() / 127, rtol=1e-6)


@pytest.mark.parametrize(("columns", "group"), [(256, 128), (192, 64), (96, 32)])
def test_int8_is_within_half_a_step(columns: int, group: int) -> None:
    """Of the largest number of a group, over 127; a group's scale is all that f16 rounds."""
    w = np.ascontiguousarray(random()[:, :columns])
    w[5, :group], w[6, :group] = 0, 0.25
    made = methods()["int8"].weight("w", Weight.dense(w))
    assert made.group == group
    assert made.scale is not None
    assert made.scale.dtype == np.float16
    step = np.abs(w.reshape(len(w), -1, group)).max(axis=2, keepdims=True) / 127
    away = np.abs(made.dequantize() - w).reshape(len(w), -1, group)
    assert (away <= 0.57 * step).all()  # half of it, and 127 times what the scale was rounded by
    np.testing.assert_array_equal(made.dequantize()[5, :group], 0)
    rows = methods()["eetq"].weight("w", Weight.dense(w))
    assert np.square(away).sum() < 0.9 * np.square(rows.dequantize() - w).sum()


def test_fp8_is_what_torch_makes() -> None:
    w = random()
    w[3] = 0
    made = methods()["fp8"].weight("w", Weight.dense(w))
    scale = torch.from_numpy(w).abs().amax(dim=1, keepdim=True) / 448
    q = (torch.from_numpy(w) / torch.where(scale > 0, scale, 1)).clamp(-448, 448).to(torch.float8_e4m3fn)
    np.testing.assert_array_equal(made.dequantize(), (q.float() * scale).numpy())


def test_int4_is_within_half_a_step() -> None:
    w = random()
    w[5, 32:64], w[6, :32], w[7, :32] = 0, 0.25, -0.25
    made = methods()["int4"].weight("w", Weight.dense(w))
    assert made.scale is not None
    step = np.repeat(made.scale.astype(np.float32), 32, axis=1)
    away = np.abs(made.dequantize() - w)
    assert (away <= 1.02 * step + 1e-7).all()  # half of it, and what the zero point was rounded by
    assert np.median(away / np.maximum(step, 1e-9)) <= 0.27
    np.testing.assert_array_equal(made.dequantize()[5, 32:64], 0)
    np.testing.assert_allclose(made.dequantize()[6:8, :32], w[6:8, :32], rtol=1e-3)


@pytest.mark.parametrize("name", sorted(methods()))
def test_outlines_and_bounded_memory(name: str) -> None:
    """Some rows are f32 at a time: a matrix is held in its new form, and once more while it is joined."""
    method, w = methods()[name], np.tile(random(), (40, 4)).astype(np.float16)
    tracemalloc.start()
    made = method.weight("w", Weight.dense(w))
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak <= 2 * made.nbytes + 24 * 256 * w.shape[1]
    outline = method.weight("w", outline_of(Weight.dense(w)))
    assert (outline.layout, outline.shape, outline.group, outline.nbytes) == (
        made.layout, made.shape, made.group, made.nbytes,
    )  # fmt: skip
    odd = Weight.dense(w[:, :33])
    assert method.weight("w", odd).layout is odd.layout or method.columns == 1


@pytest.mark.parametrize("name", sorted(methods()))
@pytest.mark.parametrize("wrong", [np.nan, np.inf])
def test_numbers_that_are_not_finite_are_refused(name: str, wrong: float) -> None:
    w = random()
    w[290, 7] = wrong
    with pytest.raises(CheckpointError, match="tensor 'w' holds numbers that are not finite"):
        methods()[name].weight("w", Weight.dense(w))


@pytest.mark.parametrize("name", ["int4", "int8"])
def test_numbers_beyond_a_scales_reach_are_refused(name: str) -> None:
    w = random()
    w[290, 7] = 1e7
    with pytest.raises(CheckpointError, match=f"tensor 'w' holds numbers too large for {name}'s scales"):
        methods()[name].weight("w", Weight.dense(w))


@pytest.mark.parametrize(
    ("wanted", "files"),
    [
        (None, Files()), (None, stored_as("awq")), ("awq", stored_as("awq")),
        ("awq_marlin", stored_as("awq")),
        ("gptq", stored_as("gptq")), ("gptq_marlin", stored_as("gptq")), ("fp8", stored_as("fp8")),
        ("bitsandbytes", stored_as("bitsandbytes")), ("bitsandbytes-nf4", stored_as("bitsandbytes")),
        ("compressed-tensors", stored_as("compressed-tensors")), ("gguf", Files(kind="gguf")),
    ],
)  # fmt: skip
def test_what_files_are_may_be_said(wanted: str | None, files: Files) -> None:
    assert made_on_load(wanted, files) is None  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("wanted", "files", "message"),
    [
        ("awq", stored_as("gptq"), "quantization 'awq' contradicts folder, which is stored as gptq"),
        ("int8", stored_as("fp8"), "quantization 'int8' contradicts folder, which is stored as fp8"),
        ("gguf", stored_as("awq"), "contradicts folder, which is stored as awq"),
        ("gptq", Files(), "asks for files of that kind, and folder holds floats: made while .* bitsand"),
        ("gguf", Files(), "asks for files of that kind"),
    ],
)  # fmt: skip
def test_contradictions_are_refused(wanted: str, files: Files, message: str) -> None:
    with pytest.raises(UnsupportedError, match=message):
        made_on_load(wanted, files)  # type: ignore[arg-type]
