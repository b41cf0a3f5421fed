"""GPTQ, AWQ and compressed-tensors' packed integers, against numbers that were packed bit by bit."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from octavo.checkpoints.base import StoredTensor
from octavo.errors import CheckpointError
from octavo.kernels.weight import Layout, Weight
from octavo.quant.scheme import Outlining
from octavo.quant.schemes import scheme_of
from support import packed_integers as pack

Settings = dict[str, Any]
SHAPE = (32, 256)


def gptq(bits: int = 4, group: int = 64, **more: Any) -> Settings:
    return {"quant_method": "gptq", "bits": bits, "group_size": group, "sym": False, **more}


def awq(group: int = 64, **more: Any) -> Settings:
    return {
        "quant_method": "awq",
        "bits": 4,
        "group_size": group,
        "zero_point": True,
        "version": "gemm",
        **more,
    }


def compressed(bits: int = 4, group: int | None = 64, **more: Any) -> Settings:
    weights = {
        "num_bits": bits,
        "type": "int",
        "strategy": "group" if group else "channel",
        "group_size": group,
    }
    groups = {"group_0": {"targets": ["Linear"], "weights": weights | {"symmetric": True} | more}}
    return {"quant_method": "compressed-tensors", "format": "pack-quantized", "config_groups": groups}


def read(
    settings: Settings, tensors: pack.Tensors, shape: tuple[int, int] = SHAPE, outline: bool = False
) -> Any:
    """X.weight by the scheme of these settings; every tensor must be taken."""
    taken: set[str] = set()

    def take(name: str) -> StoredTensor | None:
        taken.add(name)
        return pack.stored(name, tensors[name]) if name in tensors else None

    scheme = scheme_of({"quantization_config": settings})
    assert isinstance(scheme, Outlining)
    assert callable(scheme)
    found = scheme.outline("X.weight", shape, take) if outline else scheme("X.weight", shape, take)
    assert found is None or set(tensors) <= taken
    return found


def by_groups(group: int) -> pack.I64:
    return np.arange(SHAPE[1]) // group


@pytest.mark.parametrize("version", [1, 2])
@pytest.mark.parametrize("group", [32, 64, 128, -1])
@pytest.mark.parametrize("bits", [2, 3, 4, 8])
def test_gptq(bits: int, group: int, version: int) -> None:
    columns = SHAPE[1] if group == -1 else group
    q, zero, scale = pack.integers(np.random.default_rng(bits), SHAPE, bits, columns)
    tensors = pack.gptq(q, zero, scale, by_groups(columns), bits, version)
    settings = gptq(bits, group, checkpoint_format="gptq" if version == 1 else "gptq_v2")
    weight = read(settings, tensors)
    assert weight.layout is (Layout.S8 if bits == 8 else Layout.U4)
    assert weight.group == columns
    np.testing.assert_array_equal(weight.dequantize(), pack.numbers(q, zero, scale, by_groups(columns)))


def test_gptq_by_hand() -> None:
    """Eight numbers to a word, the first in its lowest four bits; the stored zero 7 means 8."""
    q = np.zeros((8, 32), np.int64)
    q[0, :8] = [1, 2, 3, 4, 5, 6, 7, 15]
    tensors: pack.Tensors = {
        "X.qweight": np.zeros((4, 8), np.int32),
        "X.qzeros": np.array([[0x77777777]], np.int32),
        "X.scales": np.full((1, 8), 0.5, np.float16),
    }
    tensors["X.qweight"][0, 0] = np.uint32(0xF7654321).view(np.int32)
    weight = read(gptq(group=32, sym=True), tensors, (8, 32))
    np.testing.assert_array_equal(weight.dequantize(), (q - 8) * np.float32(0.5))
    assert weight.zero is None


@pytest.mark.parametrize("bits", [2, 3, 4, 8])
def test_zero_points_that_are_all_the_centre_cost_nothing(bits: int) -> None:
    q, zero, scale = pack.integers(np.random.default_rng(bits), SHAPE, bits, 64)
    zero[:] = 2 ** (bits - 1)
    weight = read(gptq(bits), pack.gptq(q, zero, scale, by_groups(64), bits))
    assert weight.zero is None
    assert weight.minimum is None
    np.testing.assert_array_equal(weight.dequantize(), pack.numbers(q, zero, scale, by_groups(64)))


def test_act_order() -> None:
    """Columns of a group lie apart (desc_act): the packed ones together, in an order that is kept."""
    rng = np.random.default_rng(5)
    g_idx = rng.permutation(by_groups(64))
    q, zero, scale = pack.integers(rng, SHAPE, 4, 64)
    truth = pack.numbers(q, zero, scale, g_idx)
    for settings, tensors in (
        (gptq(desc_act=True), pack.gptq(q, zero, scale, g_idx, 4)),
        (compressed(symmetric=False, actorder="group"), pack.compressed(q, zero, scale, g_idx, 4)),
    ):
        weight = read(settings, tensors)
        assert weight.order is not None
        np.testing.assert_array_equal(weight.dequantize(), truth)
        np.testing.assert_array_equal(weight.rows(slice(3, 9)).dequantize(), truth[3:9])


@pytest.mark.parametrize("group", [32, 128, -1])
def test_awq(group: int) -> None:
    columns = SHAPE[1] if group == -1 else group
    q, zero, scale = pack.integers(np.random.default_rng(7), SHAPE, 4, columns)
    weight = read(awq(group), pack.awq(q, zero, scale))
    np.testing.assert_array_equal(weight.dequantize(), pack.numbers(q, zero, scale, by_groups(columns)))


def test_awq_by_hand() -> None:
    """The word 0x75316420 holds 0, 1, 2, ... 7 of eight rows."""
    tensors: pack.Tensors = {
        "X.qweight": np.full((32, 1), 0x75316420, np.int32),
        "X.qzeros": np.zeros((1, 1), np.int32),
        "X.scales": np.ones((1, 8), np.float16),
    }
    weight = read(awq(32), tensors, (8, 32))
    np.testing.assert_array_equal(weight.dequantize(), np.repeat(np.arange(8.0)[:, None], 32, axis=1))


@pytest.mark.parametrize("symmetric", [True, False])
@pytest.mark.parametrize("group", [32, 128, None])
@pytest.mark.parametrize("bits", [4, 8])
def test_compressed_tensors(bits: int, group: int | None, symmetric: bool) -> None:
    columns = group or SHAPE[1]
    q, zero, scale = pack.integers(np.random.default_rng(9), SHAPE, bits, columns)
    if symmetric:
        zero[:] = 2 ** (bits - 1)
    tensors = pack.compressed(q, None if symmetric else zero, scale, None, bits)
    weight = read(compressed(bits, group, symmetric=symmetric), tensors)
    np.testing.assert_array_equal(weight.dequantize(), pack.numbers(q, zero, scale, by_groups(columns)))


def test_scales_beyond_f16_stay_f32() -> None:
    q, zero, scale = pack.integers(np.random.default_rng(9), SHAPE, 4, 64)
    scale = scale + np.float32(1e-7)
    weight = read(compressed(symmetric=False), pack.compressed(q, zero, scale, None, 4, wide=True))
    assert weight.scale.dtype == np.float32
    np.testing.assert_array_equal(weight.dequantize(), pack.numbers(q, zero, scale, by_groups(64)))


@pytest.mark.parametrize(("group", "most"), [(128, 4.2), (32, 4.76)])
def test_bits_a_weight(group: int, most: float) -> None:
    q, zero, scale = pack.integers(np.random.default_rng(9), SHAPE, 4, group)
    weight = read(awq(group), pack.awq(q, zero, scale))
    assert 8 * weight.nbytes / q.size <= most
    outline = read(awq(group), pack.awq(q, zero, scale), outline=True)
    assert outline.nbytes == weight.nbytes


@pytest.mark.parametrize("settings", [gptq(), gptq(8, sym=True), awq(), compressed(), compressed(8, None)])
def test_outlines_have_the_form_and_take_the_tensors(settings: Settings) -> None:
    method, bits = settings["quant_method"], settings.get("bits", 4)
    q, zero, scale = pack.integers(np.random.default_rng(2), SHAPE, bits, 64)
    if method == "compressed-tensors":
        weights = settings["config_groups"]["group_0"]["weights"]
        bits, columns = weights["num_bits"], weights["group_size"] or SHAPE[1]
        q, zero, scale = pack.integers(np.random.default_rng(2), SHAPE, bits, columns)
        tensors = pack.compressed(q, None, scale, None, bits)
    elif method == "awq":
        tensors = pack.awq(q, zero, scale)
    else:
        zero = np.full_like(zero, 128) if bits == 8 else zero
        tensors = pack.gptq(q, zero, scale, by_groups(64), bits)
    weight, outline = read(settings, tensors), read(settings, tensors, outline=True)
    assert (outline.layout, outline.shape, outline.group) == (weight.layout, weight.shape, weight.group)
    assert outline.nbytes == weight.nbytes
    assert read(settings, {}, outline=True) is None
    assert read(settings, {}) is None


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (gptq(5), "GPTQ weights of 5 bits are not supported; 2, 3, 4 and 8 are"),
        (gptq(checkpoint_format="marlin"), "checkpoint_format 'marlin' is not supported"),
        (gptq(dynamic={"-:x": {}}), r"single modules \(dynamic\) are not supported"),
        (gptq(group="a"), "group_size is a number of columns or -1, not 'a'"),
        (awq(bits=8), "AWQ weights of 8 bits are not supported; 4 are"),
        (awq(version="gemv"), "packing 'gemv' is not supported; gemm is"),
        (compressed(3), "3 bits by group are not supported"),
        (compressed(strategy="tensor"), "4 bits by tensor are not supported"),
    ],
)
def test_settings_that_are_not_covered_are_refused(settings: Settings, message: str) -> None:
    with pytest.raises(CheckpointError, match=message):
        scheme_of({"quantization_config": settings})


def broken(**other: Any) -> pack.Tensors:
    """GPTQ's tensors of groups of 64, some of them replaced, None: left out."""
    q, zero, scale = pack.integers(np.random.default_rng(1), SHAPE, 4, 64)
    tensors = pack.gptq(q, zero, scale, by_groups(64), 4) | {f"X.{k}": v for k, v in other.items()}
    return {name: array for name, array in tensors.items() if array is not None}


@pytest.mark.parametrize(
    ("settings", "tensors", "message"),
    [
        (gptq(group=48), broken(), "groups of 48 are not supported in rows of 256"),
        (gptq(group=16), broken(), "groups of 16 are not supported"),
        (gptq(group=0), broken(), "groups of 0 are not supported"),
        (gptq(group=128), broken(), r"'X.scales' has shape \[4, 32\], expected \[2, 32\]"),
        (gptq(8), broken(), r"'X.qweight' is I32 \[32, 32\], expected I32 \[64, 32\]"),
        (gptq(), broken(scales=None), "tensor 'X.scales' is missing"),
        (gptq(), broken(qzeros=None), "tensor 'X.qzeros' is missing"),
        (gptq(), broken(qweight=np.zeros((32, 32), np.float32)), r"'X.qweight' is F32"),
        (gptq(), broken(g_idx=np.full(256, 4, np.int32)), "names groups beyond the 4"),
        (gptq(), broken(g_idx=np.full(256, -1, np.int32)), "names groups beyond the 4"),
        (gptq(), broken(g_idx=np.zeros(256, np.int32)), "has groups of other sizes than 64"),
        (gptq(), broken(g_idx=np.zeros(255, np.int32)), r"'X.g_idx' is I32 \[255\], expected I32 \[256\]"),
        (gptq(), broken(scales=np.full((4, 32), np.nan, np.float16)), "numbers that are not finite"),
        (gptq(), broken(scales=np.full((4, 32), np.inf, np.float16)), "numbers that are not finite"),
        (gptq(), broken(scales=np.zeros((4, 32), np.int32)), "holds no floats, but I32"),
    ],
)
def test_broken_tensors_are_refused(settings: Settings, tensors: pack.Tensors, message: str) -> None:
    with pytest.raises(CheckpointError, match=message):
        read(settings, tensors)


def test_columns_are_cut_between_groups() -> None:
    q, zero, scale = pack.integers(np.random.default_rng(1), SHAPE, 4, 64)
    weight: Weight = read(awq(), pack.awq(q, zero, scale))
    dense = weight.dequantize()
    np.testing.assert_array_equal(weight.columns(64, 192).dequantize(), dense[:, 64:192])
    with pytest.raises(CheckpointError, match="columns 32 to 192 cut a group of 64"):
        weight.columns(32, 192)
