"""Every format against the gguf package's dequantize, to the bit, and never a copy of the file."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import numpy.typing as npt
import pytest

from octavo import quant
from octavo.checkpoints.base import StoredTensor
from octavo.checkpoints.gguf import GGML_TYPES, GGUFCheckpoint
from octavo.errors import CheckpointError
from octavo.quant import formats, registry


def stored(data: npt.NDArray[Any], shape: tuple[int, ...], format_: str) -> StoredTensor:
    return StoredTensor("t", shape, format_, data.reshape(-1).view(np.uint8), lambda: None)


def random_bytes(name: str, n: int, k: int) -> npt.NDArray[np.uint8]:
    """Bytes of an [n, k] tensor whose floats are finite, at every sign and size."""
    form = quant.get_format(name)
    rng = np.random.default_rng(7)
    blocks = rng.integers(0, 256, (n, k // form.block, form.block_bytes), np.uint8)
    fields = form.dtype.fields or {"all": (form.dtype, 0)}
    for dtype, offset, *_ in fields.values():
        if np.dtype(dtype).kind in "fV" and dtype.subdtype is None:  # bfloat16 is of kind V
            values = rng.standard_normal(blocks.shape[:2]).astype(dtype)
            blocks[..., offset : offset + dtype.itemsize] = values[..., None].view(np.uint8)
    if name == "IQ1_M":  # its scale is the four highest nibbles; an exponent below 16 is finite
        blocks[..., 55] &= 0xBF
    if "e" in fields:  # an exponent: 2^-128 to 2^15
        blocks[..., fields["e"][1]] %= 144
    return blocks.reshape(-1)


def bits(array: npt.NDArray[np.float32]) -> npt.NDArray[np.uint32]:
    """Zeros without their sign: what is a product in a file may be a factor in a layout."""
    return (np.ascontiguousarray(array, np.float32) + np.float32(0)).view(np.uint32).reshape(-1)


def test_names() -> None:
    assert quant.names() == [
        "BF16", "F16", "F32", "IQ1_M", "IQ1_S", "IQ2_S", "IQ2_XS", "IQ2_XXS", "IQ3_S", "IQ3_XXS", "IQ4_NL",
        "IQ4_XS", "MXFP4", "Q2_K", "Q3_K", "Q4_0", "Q4_1", "Q4_K", "Q5_0", "Q5_1",
        "Q5_K", "Q6_K", "Q8_0", "TQ1_0", "TQ2_0",
    ]  # fmt: skip


@pytest.mark.parametrize("name", quant.names())
def test_block_sizes(name: str) -> None:
    form = quant.get_format(name)
    assert (form.name, form.block, form.block_bytes) in GGML_TYPES.values()


@pytest.mark.parametrize("name", quant.names())
def test_dequantize_equals_the_gguf_package(name: str) -> None:
    n, k = 5, 768
    data = random_bytes(name, n, k)
    weight = quant.weight(stored(data, (n, k), name))
    theirs = gguf.dequantize(as_gguf_holds_it(data, name), gguf.GGMLQuantizationType[name])
    assert weight.shape == (n, k)
    assert np.array_equal(bits(weight.dequantize()), bits(theirs))
    assert np.unique(theirs).size > 24  # not all alike: the comparison says something


def as_gguf_holds_it(data: npt.NDArray[np.uint8], name: str) -> npt.NDArray[Any]:
    return data.view({"F32": np.float32, "F16": np.float16}.get(name, np.uint8))


@pytest.mark.parametrize("name", ["BF16", "F16", "F32", "Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0"])
def test_weights_are_views(name: str) -> None:
    """Of the file, where a layout holds the format's bytes as they are; the others are repacked."""
    data = random_bytes(name, 2, 64)
    weight = quant.weight(stored(data, (2, 64), name))
    for part in (weight.values, weight.scale, weight.minimum):
        assert part is None or np.shares_memory(part, data)


@pytest.mark.parametrize("name", ["F32", "F16", "BF16"])
def test_odd_addresses_are_copied_to_even_ones(name: str) -> None:
    data = random_bytes(name, 2, 8)
    shifted = np.concatenate([np.zeros(1, np.uint8), data])[1:]
    weight = quant.weight(stored(shifted, (2, 8), name))
    assert weight.values.flags.aligned
    assert weight.values.tobytes() == data.tobytes()


@pytest.mark.parametrize("name", quant.names())
def test_vectors(name: str) -> None:
    data = random_bytes(name, 1, 256)
    found = quant.vector(stored(data, (256,), name))
    assert found.dtype == np.float32
    assert found.flags.writeable
    assert np.array_equal(bits(found), bits(quant.weight(stored(data, (1, 256), name)).dequantize()))


def test_release_reaches_the_tensor() -> None:
    calls: list[int] = []
    tensor = StoredTensor("t", (1, 1), "F32", np.zeros(4, np.uint8), lambda: calls.append(1))
    release = quant.weight(tensor).release
    assert release is not None
    release()
    assert calls == [1]


@pytest.mark.parametrize(
    ("shape", "format_", "nbytes", "message"),
    [
        ((2, 32), "Q8_1", 36, "tensor t: the number format Q8_1 is not supported; supported: BF16, F16"),
        ((2, 32), "q4_0", 36, "format q4_0 is not supported"),
        ((2, 32), "REGISTRY", 36, "format REGISTRY is not supported"),
        ((2, 2, 32), "Q4_0", 72, r"shape \[2, 2, 32\] is not a matrix"),
        ((2, 32), "Q4_0", 35, r"35 bytes are not Q4_0 \[2, 32\]"),
        ((2, 16), "Q4_0", 18, r"18 bytes are not Q4_0 \[2, 16\]"),
        ((), "F32", 4, "is not a matrix"),
    ],
)
def test_what_does_not_fit_is_refused(
    shape: tuple[int, ...], format_: str, nbytes: int, message: str
) -> None:
    with pytest.raises(CheckpointError, match=message):
        quant.weight(stored(np.zeros(nbytes, np.uint8), shape, format_))


def test_a_matrix_is_no_vector() -> None:
    with pytest.raises(CheckpointError, match="is not a vector"):
        quant.vector(stored(np.zeros(8, np.uint8), (1, 2), "F32"))


def test_smollm2_to_the_bit(smollm2: GGUFCheckpoint) -> None:
    """Layer 0 and the embedding: every format of the real file, with the file's own scales."""
    for name, tensor in smollm2.tensors.items():
        if name.startswith("blk.") and not name.startswith("blk.0."):
            continue
        kind = gguf.GGMLQuantizationType[tensor.format]
        raw = as_gguf_holds_it(tensor.data, tensor.format)
        theirs = gguf.dequantize(raw.reshape(tensor.shape[0], -1), kind)
        assert np.array_equal(bits(quant.weight(tensor).dequantize()), bits(theirs)), name
        tensor.release()


ONE_FORMAT = """
import numpy as np

from octavo.kernels.weight import Weight
from octavo.quant.registry import Format


def unpack(blocks, release):
    return Weight.dense((blocks["d"].astype(np.float32)[..., None] * blocks["q"]).reshape(len(blocks), -1))


FORMATS = (Format("Q8_0", 32, np.dtype([("d", "<f2"), ("q", "i1", (32,))]), unpack),)
"""


def test_a_format_is_one_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A file that lies in the folder is read, and nothing else lists it."""
    (tmp_path / "q8_0.py").write_text(ONE_FORMAT)
    monkeypatch.setattr(formats, "__path__", [str(tmp_path)])
    registry._formats.cache_clear()
    try:
        assert quant.names() == ["Q8_0"]
        with pytest.raises(CheckpointError, match="Q2_K is not supported; supported: Q8_0"):
            quant.get_format("Q2_K")
        test_block_sizes("Q8_0")
        test_dequantize_equals_the_gguf_package("Q8_0")
    finally:
        registry._formats.cache_clear()
        sys.modules.pop("octavo.quant.formats.q8_0", None)
