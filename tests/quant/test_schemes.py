"""Quantized checkpoints of several tensors a matrix, against the libraries that write them."""

from __future__ import annotations

import json
from typing import Any

import bitsandbytes.functional as bnb
import numpy as np
import pytest
import torch

from octavo.checkpoints.base import StoredTensor
from octavo.errors import CheckpointError
from octavo.kernels.coded import FP4_CODE, NF4_CODE
from octavo.kernels.weight import Layout, Weight
from octavo.quant.schemes import names, scheme_of
from octavo.quant.writer import Choice, writer_of

FORMATS = {
    torch.uint8: "U8", torch.int8: "I8", torch.float8_e4m3fn: "F8_E4M3", torch.float32: "F32",
    torch.bfloat16: "BF16", torch.float16: "F16",
}  # fmt: skip
Tensors = dict[str, torch.Tensor]
INT8 = {"quant_method": "bitsandbytes", "load_in_8bit": True}
NF4 = {"quant_method": "bitsandbytes", "load_in_4bit": True, "bnb_4bit_quant_type": "nf4"}
BLOCKS = {"quant_method": "fp8", "weight_block_size": [128, 128], "activation_scheme": "dynamic"}


def compressed(
    strategy: str, kind: str = "float", form: str = "float-quantized", **more: Any
) -> dict[str, Any]:
    weights = {"num_bits": 8, "type": kind, "strategy": strategy, "symmetric": True, **more}
    groups = {"group_0": {"targets": ["Linear"], "weights": weights}}
    return {"quant_method": "compressed-tensors", "format": form, "config_groups": groups}


def stored(name: str, tensor: torch.Tensor) -> StoredTensor:
    data = tensor.contiguous().reshape(-1).view(torch.uint8).numpy()
    return StoredTensor(name, tuple(tensor.shape), FORMATS[tensor.dtype], data, lambda: None)


def read(
    settings: dict[str, Any], tensors: Tensors, shape: tuple[int, int], taken: set[str] | None = None
) -> Weight | None:
    """X.weight by the scheme of these settings."""

    def take(name: str) -> StoredTensor | None:
        if name not in tensors:
            return None
        (set() if taken is None else taken).add(name)
        return stored(name, tensors[name])

    scheme = scheme_of({"quantization_config": settings})
    assert scheme is not None
    return scheme("X.weight", shape, take)


def nf4(
    shape: tuple[int, int], kind: str = "nf4", nested: bool = True, blocks: int = 64
) -> tuple[Tensors, Any]:
    """What bitsandbytes writes of a random matrix, and what it reads from that."""
    torch.manual_seed(0)
    w = torch.randn(shape) * 0.05
    packed, state = bnb.quantize_4bit(w, blocksize=blocks, compress_statistics=nested, quant_type=kind)
    tensors = {"X.weight": packed} | {f"X.weight.{k}": v for k, v in state.as_dict(packed=True).items()}
    return tensors, bnb.dequantize_4bit(packed, state).numpy()


def fp8(scale: torch.Tensor, shape: tuple[int, int]) -> tuple[torch.Tensor, Any]:
    """Random E4M3 numbers, and these times scale [N, K] in f32 by torch."""
    torch.manual_seed(0)
    q = (torch.randn(shape) * 40).to(torch.float8_e4m3fn)
    return q, (q.float() * scale).numpy()


def test_names() -> None:
    assert names() == ["awq", "bitsandbytes", "compressed_tensors", "fp8", "gptq"]
    assert scheme_of({}) is None


@pytest.mark.parametrize("nested", [False, True])
@pytest.mark.parametrize("shape", [(3, 64), (40, 640)])
@pytest.mark.parametrize(("kind", "code"), [("nf4", NF4_CODE), ("fp4", FP4_CODE)])
def test_nibbles_equal_bitsandbytes(kind: str, code: Any, shape: tuple[int, int], nested: bool) -> None:
    tensors, theirs = nf4(shape, kind, nested=nested)
    taken: set[str] = set()
    weight = read(NF4 | {"bnb_4bit_quant_type": kind}, tensors, shape, taken)
    assert weight is not None
    assert (weight.layout, weight.shape, taken) == (Layout(kind), shape, set(tensors))
    np.testing.assert_array_equal(weight.dequantize(), theirs)
    assert np.unique(theirs).size > 15
    np.testing.assert_array_equal(bnb.get_4bit_type(kind, device="cpu").numpy(), code)
    picked = np.array([2, 0, 1])
    np.testing.assert_array_equal(weight.rows(picked).dequantize(), theirs[picked])


def test_double_quantization_saves_a_third_of_a_bit() -> None:
    """Of each weight, in the file, and what that costs is little beside what four bits cost."""
    w = np.random.default_rng(0).standard_normal((512, 1024)).astype(np.float32)
    sizes, errors = [], []
    for nested in (False, True):
        tensors = writer_of("nf4").write("X", w, Choice(4, -1, nested=nested), None)
        as_torch = {name: torch.from_numpy(np.array(each)) for name, each in tensors.items()}
        weight = read(NF4, as_torch, (512, 1024))
        assert weight is not None
        sizes.append(8 * sum(each.nbytes for each in tensors.values()) / w.size)
        errors.append(np.square(weight.dequantize() - w).mean())
    assert sizes[0] - sizes[1] >= 0.35
    assert errors[1] <= 1.02 * errors[0]


def test_int8_equals_bitsandbytes() -> None:
    torch.manual_seed(0)
    codes, rows, _ = bnb.int8_vectorwise_quant((torch.randn(6, 96) * 0.05).half())
    tensors = {"X.weight": codes, "X.SCB": rows, "X.weight_format": torch.zeros((), dtype=torch.uint8)}
    taken: set[str] = set()
    weight = read(INT8, tensors, (6, 96), taken)
    assert weight is not None
    assert (weight.layout, weight.group, taken) == (Layout.S8, 96, set(tensors))
    theirs = bnb.int8_vectorwise_dequant(codes, rows).numpy()
    np.testing.assert_allclose(weight.dequantize(), theirs, rtol=3e-7, atol=0)
    with pytest.raises(CheckpointError, match=r"'X\.SCB' is missing"):
        read(INT8, {"X.weight": codes}, (6, 96))
    with pytest.raises(CheckpointError, match=r"'X\.SCB' holds numbers that are not finite"):
        read(INT8, tensors | {"X.SCB": rows * torch.nan}, (6, 96))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_fp8_in_blocks_equals_torch(dtype: torch.dtype) -> None:
    shape = (200, 320)
    scale = (torch.rand(2, 3) + 0.1).to(dtype)
    wide = scale.float().repeat_interleave(128, 0)[:200].repeat_interleave(128, 1)[:, :320]
    q, theirs = fp8(wide, shape)
    for settings, name in ((BLOCKS, "scale_inv"), (compressed("block", block_structure=[128, 128]), "scale")):
        weight = read(settings, {"X.weight": q, f"X.weight_{name}": scale}, shape)
        assert weight is not None
        assert (weight.layout, weight.group) == (Layout.F8, 128)
        np.testing.assert_array_equal(weight.dequantize(), theirs)
        np.testing.assert_array_equal(weight.rows(slice(100, 140)).dequantize(), theirs[100:140])


@pytest.mark.parametrize("scale_shape", [(), (1,), (48,), (48, 1)])
def test_fp8_by_tensor_and_by_row_equals_torch(scale_shape: tuple[int, ...]) -> None:
    scale, shape = torch.rand(scale_shape) + 0.1, (48, 100)
    q, theirs = fp8(scale.reshape(-1, 1), shape)
    tensors = {"X.weight": q, "X.weight_scale": scale, "X.input_scale": torch.ones(1)}
    for settings in ({"quant_method": "fp8"}, compressed("channel")):
        taken: set[str] = set()
        weight = read(settings, tensors, shape, taken)
        assert weight is not None
        assert (weight.layout, weight.group, taken) == (Layout.F8, 100, set(tensors))
        np.testing.assert_array_equal(weight.dequantize(), theirs)


def test_int8_by_row_is_s8_without_loss() -> None:
    torch.manual_seed(1)
    q = torch.randint(-128, 128, (6, 96), dtype=torch.int8)
    scale = torch.rand(6, 1).bfloat16()
    settings = compressed("channel", "int", "int-quantized")
    weight = read(settings, {"X.weight": q, "X.weight_scale": scale}, (6, 96))
    assert weight is not None
    assert weight.layout is Layout.S8
    np.testing.assert_array_equal(weight.dequantize(), (q.float() * scale.float()).numpy())


def test_what_is_stored_plainly_is_left_to_others() -> None:
    plain = {"X.weight": torch.ones(2, 64)}
    for settings in (NF4, BLOCKS, compressed("tensor")):
        assert read(settings, plain, (2, 64)) is None
        assert read(settings, {}, (2, 64)) is None


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (
            {"quant_method": "hqq"},
            "quant_method 'hqq'; supported: awq, bitsandbytes, compressed_tensors, ",
        ),
        ({}, "quant_method None"),
        ({"quant_method": "base"}, "quant_method 'base'"),
        (NF4 | {"bnb_4bit_quant_type": "af4"}, "af4 is not supported; nf4 and fp4 are"),
        (BLOCKS | {"weight_block_size": [64, 64]}, r"blocks of \[64, 64\] are not supported"),
        (BLOCKS | {"fmt": "e5m2"}, "format 'e5m2' are not supported; e4m3 is"),
        (compressed("group", group_size=32), "8 bits by group are not supported"),
        (compressed("channel", num_bits=4), "4 bits by channel are not supported"),
        (compressed("channel", form="marlin-24"), "'marlin-24' are not supported"),
        (compressed("channel", symmetric=False), "zero points are supported in pack-quantized alone"),
        (compressed("block", block_structure=[128, 64]), r"blocks of \[128, 64\]"),
    ],
)
def test_settings_that_are_not_covered_are_refused(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(CheckpointError, match=message):
        scheme_of({"quantization_config": settings})


def broken_nf4(**state: Any) -> Tensors:
    tensors, _ = nf4((4, 64))
    name = "X.weight.quant_state.bitsandbytes__nf4"
    said = json.loads(tensors[name].numpy().tobytes()) | state
    return tensors | {name: torch.tensor(list(json.dumps(said).encode()), dtype=torch.uint8)}


@pytest.mark.parametrize(
    ("tensors", "message"),
    [
        (nf4((4, 64), "fp4")[0], "is of fp4, and bnb_4bit_quant_type says nf4"),
        (nf4((4, 128))[0], r"has shape \[4, 128\], expected"),
        (broken_nf4(shape=[2, 128]), r"has shape \[2, 128\], expected \[4, 64\]"),
        (broken_nf4(blocksize=128), "in blocks of 128 is not supported"),
        (broken_nf4(nested_blocksize=1), "nested scales of blocks of 1"),
        (broken_nf4(nested_offset=None), "lacks nested_blocksize, nested_offset"),
        (nf4((4, 64))[0] | {"X.weight.quant_map": torch.zeros(16)}, "quant_map that is not NF4's"),
        (
            nf4((4, 64))[0] | {"X.weight": torch.zeros(127, 1, dtype=torch.uint8)},
            "127 bytes of U8 are not NF4",
        ),
        (nf4((4, 64), nested=False)[0] | {"X.weight.absmax": torch.ones(3)}, "has 3 scales, expected 4"),
        (
            nf4((4, 64))[0] | {"X.weight.quant_state.bitsandbytes__nf4": torch.zeros(4, dtype=torch.uint8)},
            "is not a JSON object",
        ),
        (
            {k: v for k, v in nf4((4, 64))[0].items() if not k.endswith(".absmax")},
            "tensor 'X.weight.absmax' is missing",
        ),
        (
            nf4((4, 64), nested=False)[0] | {"X.weight.absmax": torch.tensor([1.0, 2.0, torch.nan, 1.0])},
            "tensor 'X.weight.absmax' holds numbers that are not finite",
        ),
        (broken_nf4(nested_offset=float("inf")), "'X.weight.absmax' holds numbers that are not finite"),
    ],
)
def test_broken_nf4_is_refused(tensors: Tensors, message: str) -> None:
    with pytest.raises(CheckpointError, match=message):
        read(NF4, tensors, (4, 64))


@pytest.mark.parametrize(
    ("settings", "more", "message"),
    [
        (BLOCKS, {}, "is FP8 without X.weight_scale or weight_scale_inv"),
        (
            BLOCKS,
            {"X.weight_scale_inv": torch.ones(2, 2)},
            r"of shape \[2, 2\] holds no scales of \[200, 320\]",
        ),
        ({"quant_method": "fp8"}, {"X.weight_scale": torch.ones(7)}, r"shape \[7\] holds no scales"),
        (
            {"quant_method": "fp8"},
            {"X.weight_scale": torch.ones(1, dtype=torch.int8)},
            "holds no floats, but I8",
        ),
        (compressed("tensor"), {}, "'X.weight_scale' is missing"),
        (
            compressed("channel"),
            {"X.weight_scale": torch.full((200, 1), torch.nan)},
            "tensor 'X.weight_scale' holds numbers that are not finite",
        ),
        (
            BLOCKS,
            {"X.weight_scale_inv": torch.full((2, 3), torch.inf)},
            "tensor 'X.weight_scale_inv' holds numbers that are not finite",
        ),
    ],
)
def test_broken_fp8_is_refused(settings: dict[str, Any], more: Tensors, message: str) -> None:
    q, _ = fp8(torch.ones(1), (200, 320))
    with pytest.raises(CheckpointError, match=message):
        read(settings, {"X.weight": q, **more}, (200, 320))
    with pytest.raises(CheckpointError, match=r"has shape \[200, 320\], expected \[320, 200\]"):
        read({"quant_method": "fp8"}, {"X.weight": q, "X.weight_scale": torch.ones(1)}, (320, 200))


def test_int8_of_odd_shapes_is_refused() -> None:
    settings = compressed("channel", "int", "int-quantized")
    with pytest.raises(CheckpointError, match="multiple of 32 columns"):
        read(
            settings,
            {"X.weight": torch.ones(4, 33, dtype=torch.int8), "X.weight_scale": torch.ones(4, 1)},
            (4, 33),
        )


@pytest.mark.parametrize(
    ("values", "scale", "message"),
    [
        (np.zeros((4, 40), np.uint8), np.ones((4, 1), np.float32), "needs a multiple of 64 columns, not 80"),
        (np.zeros((4, 64), np.uint8), np.ones((4, 1), np.float32), "lacks its f32 scales"),
        (np.zeros((4, 64), np.uint8), np.ones((4, 2), np.float16), "lacks its f32 scales"),
        (np.zeros((4, 64), np.int8), np.ones((4, 2), np.float32), "holds int8"),
    ],
)
def test_weights_that_are_not_nf4(values: Any, scale: Any, message: str) -> None:
    with pytest.raises(CheckpointError, match=message):
        Weight(Layout.NF4, (4, 2 * values.shape[1]), values, scale)
