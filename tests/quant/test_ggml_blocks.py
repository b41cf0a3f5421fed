"""GGML's blocks made of floats: the bytes of the gguf package's quantizers, and errors where it has none."""

from __future__ import annotations

import gguf
import numpy as np
import pytest

from octavo.errors import CheckpointError
from octavo.quant.registry import get_format


def numbers(rows: int = 40, columns: int = 1024) -> np.ndarray:
    """Of several sizes, with blocks of zeros, of one number and of ties."""
    rng = np.random.default_rng(0)
    x = (rng.standard_normal((rows, columns)) * np.exp(rng.standard_normal((rows, 1)))).astype(np.float32)
    x[0], x[1], x[2, 64:96] = 0, 0.5, -3
    x[3] = np.round(x[3] * 4) / 4
    x[4] = np.abs(x[4]) + 1
    return x


@pytest.mark.parametrize("name", ["Q4_0", "Q4_1", "Q5_0", "Q8_0", "F16", "BF16", "F32"])
def test_bytes_are_those_of_the_gguf_package(name: str) -> None:
    x = numbers()
    blocks = get_format(name).made(x)
    theirs = gguf.quantize(x, gguf.GGMLQuantizationType[name])
    np.testing.assert_array_equal(blocks.view(np.uint8).reshape(len(x), -1), theirs.view(np.uint8))


def error(name: str, x: np.ndarray) -> float:
    """Of what the gguf package reads from the blocks, as a part of x."""
    kind = gguf.GGMLQuantizationType[name]
    blocks = get_format(name).made(x).view(np.uint8).reshape(len(x), -1)
    back = gguf.dequantize(blocks, kind)
    assert back.shape == x.shape
    return float(np.square(back - x).sum() / np.square(x).sum())


def test_two_levels_of_scales_lose_no_more_than_one() -> None:
    """Q4_K has 4.5 bits, as Q4_0 has, and Q6_K 6.56: by theory a quarter of the error for a bit."""
    x = numbers()
    assert error("Q4_K", x) < 0.75 * error("Q4_0", x)
    assert error("Q6_K", x) < error("Q5_0", x) / 3
    assert error("Q8_0", x) < error("Q6_K", x)


@pytest.mark.parametrize("name", ["Q4_K", "Q6_K"])
def test_zeros_and_equal_numbers_stay(name: str) -> None:
    x = np.zeros((3, 256), np.float32)
    x[1], x[2] = 0.5, -0.5
    back = gguf.dequantize(
        get_format(name).made(x).view(np.uint8).reshape(3, -1), gguf.GGMLQuantizationType[name]
    )
    np.testing.assert_array_equal(back[0], 0)
    np.testing.assert_allclose(back, x, atol=0.01)


@pytest.mark.parametrize("name", ["Q4_0", "Q4_1", "Q5_0", "Q8_0", "Q4_K", "Q6_K", "F16"])
def test_numbers_beyond_its_scales_are_refused(name: str) -> None:
    x = numbers()
    x[7, 3] = 1e9
    with pytest.raises(CheckpointError, match=f"too large for {name}"):
        get_format(name).made(x)


def test_what_nobody_makes_is_refused() -> None:
    with pytest.raises(CheckpointError, match="Q3_K of rows of 256 numbers cannot be made"):
        get_format("Q3_K").made(np.zeros((1, 256), np.float32))
    with pytest.raises(CheckpointError, match="Q4_K of rows of 192 numbers cannot be made"):
        get_format("Q4_K").made(np.zeros((1, 192), np.float32))
