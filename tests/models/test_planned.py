"""What is planned without numbers weighs what is packed, for every format, scheme and family."""

from __future__ import annotations

import json
import math
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from models.tiny import VARIANTS
from octavo import quant
from octavo.checkpoints import open_checkpoint
from octavo.checkpoints.base import StoredTensor
from octavo.errors import CheckpointError
from octavo.kernels.outline import Outline
from octavo.kernels.select import native_available
from octavo.kernels.weight import Layout, Weight
from octavo.models.load import load_model, outline_model
from octavo.quant.registry import outline
from octavo.quant.scheme import outlines_of

pytestmark = pytest.mark.skipif(not native_available(), reason="the native kernels are not built")

Folders = Callable[[str, str], Path]
SHAPES = [(160, 256), (7, 512), (33, 256)]


def backends() -> tuple[Any, Any]:
    from octavo.kernels.cpu import CpuBackend

    return CpuBackend(), CpuBackend(planned=True)


def stored(name: str, shape: tuple[int, int]) -> Weight:
    format_ = quant.get_format(name)
    nbytes = math.prod(shape) // format_.block * format_.block_bytes
    return quant.weight(StoredTensor("w", shape, name, np.zeros(nbytes, np.uint8), lambda: None))


@pytest.mark.parametrize("name", quant.names())
def test_a_format_weighs_what_is_packed(name: str) -> None:
    real, planner = backends()
    for shape in SHAPES:
        weight, form = stored(name, shape), outline(name, shape)
        assert (form.layout, form.shape, form.nbytes) == (weight.layout, weight.shape, weight.nbytes)
        assert form.group == weight.group
        assert form.dequantize().shape == shape
        other = outline("F16", shape)
        for options in ({}, {"head": True}):
            assert planner.pack([form], **options).nbytes == real.pack([weight], **options).nbytes
        assert planner.pack([form, form], gated=True).nbytes == real.pack([weight, weight], gated=True).nbytes
        mixed = stored("F16", shape)
        assert planner.pack([form, other]).nbytes == real.pack([weight, mixed]).nbytes
        assert planner.pack([form, other], gated=True).nbytes == real.pack([weight, mixed], gated=True).nbytes


@pytest.mark.parametrize("name", quant.names())
def test_an_outline_is_cut_as_a_weight_is(name: str) -> None:
    weight, form = stored(name, (16, 256)), outline(name, (16, 256))
    for index in (slice(3, 9), np.array([5, 0, 9])):
        assert form.rows(index).nbytes == weight.rows(index).nbytes
        assert form.rows(index).shape == weight.rows(index).shape
    for change in ("transpose", "widened", "with_minima", "dense_f32"):
        mine, theirs = getattr(form, change)(), getattr(weight, change)()
        assert (mine.layout, mine.shape, mine.nbytes) == (theirs.layout, theirs.shape, theirs.nbytes)


@pytest.mark.parametrize("layout", [Layout.F8, Layout.NF4])
def test_codes_are_planned_without_being_read(layout: Layout, monkeypatch: pytest.MonkeyPatch) -> None:
    real, planner = backends()
    values = np.zeros((48, 256 if layout is Layout.F8 else 128), layout.dtype)
    scale = np.ones((48, 2 if layout is Layout.F8 else 4), np.float32)
    weight = Weight(layout, (48, 256), values, scale)
    packed = real.pack([weight]).nbytes
    monkeypatch.setattr(Weight, "dequantize", lambda self: pytest.fail("planning has computed numbers"))
    assert planner.pack([weight]).nbytes == packed
    assert planner.pack([Outline.coded(layout, (48, 256), scale.shape[1])]).nbytes == packed


def test_an_outline_cannot_be_packed() -> None:
    with pytest.raises(ValueError, match="only be planned"):
        backends()[0].pack([outline("F32", (8, 8))])


def test_rows_must_be_whole_blocks() -> None:
    with pytest.raises(CheckpointError, match="whole blocks of 256"):
        outline("Q4_K", (8, 128))
    with pytest.raises(CheckpointError, match="Q9_9"):
        outline("Q9_9", (8, 128))


@pytest.mark.parametrize(("name", "variant"), VARIANTS, ids=["-".join(v) for v in VARIANTS])
@pytest.mark.parametrize("dtype", ["auto", "bfloat16"])
def test_a_family_weighs_what_is_loaded(
    name: str, variant: str, dtype: str, tiny_folder: Folders, tmp_path: Path
) -> None:
    """By its tensors' headers, and by config.json alone."""
    folder = tiny_folder(name, variant)
    real, planner = backends()
    model, nbytes = load_model(open_checkpoint(folder), real, dtype)
    planned, weighed = outline_model(open_checkpoint(folder, headers=True), planner, dtype)
    assert weighed == nbytes
    assert (planned.vocab_size, planned.max_position) == (model.vocab_size, model.max_position)
    assert list(planned.kv_specs("f16")) == list(model.kv_specs("f16"))
    shutil.copy(folder / "config.json", tmp_path)
    alone = open_checkpoint(tmp_path, headers=True)
    assert outline_model(alone, backends()[1], dtype)[1] == nbytes
    with pytest.raises(CheckpointError, match="holds no safetensors"):
        open_checkpoint(tmp_path)


def test_leftovers_are_refused_as_by_a_load(tiny_folder: Folders, tmp_path: Path) -> None:
    shutil.copytree(tiny_folder("llama", "plain"), tmp_path, dirs_exist_ok=True)
    config = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps(config | {"num_hidden_layers": 2}))
    with pytest.raises(CheckpointError, match="config and tensors contradict each other"):
        outline_model(open_checkpoint(tmp_path, headers=True), backends()[1])


@pytest.mark.parametrize(
    ("settings", "layout", "columns"),
    [
        ({"quant_method": "fp8", "weight_block_size": [128, 128]}, Layout.F8, 2),
        ({"quant_method": "fp8"}, Layout.F8, 1),
        ({"quant_method": "bitsandbytes", "load_in_4bit": True, "bnb_4bit_quant_type": "nf4"}, Layout.NF4, 4),
        (
            {
                "quant_method": "compressed-tensors",
                "format": "int-quantized",
                "config_groups": {"g": {"weights": {"num_bits": 8, "type": "int", "strategy": "channel"}}},
                "ignore": ["re:.*layers.1.*", "lm_head"],
            },
            Layout.S8,
            1,
        ),
    ],
)
def test_what_a_config_says_of_its_method(settings: dict[str, Any], layout: Layout, columns: int) -> None:
    found = outlines_of({"quantization_config": settings})
    assert found is not None
    form = found("model.layers.0.mlp.up_proj", (64, 256))
    assert form is not None
    assert form.scale is not None
    assert (form.layout, form.shape, form.scale.shape) == (layout, (64, 256), (64, columns))
    assert found("lm_head", (64, 256)) is None
    if "ignore" in settings:
        assert found("model.layers.1.mlp.up_proj", (64, 256)) is None
    assert outlines_of({}) is None
    assert form.values.dtype in (np.dtype(np.int8), np.dtype(np.uint8), np.dtype(ml_dtypes.float8_e4m3fn))
