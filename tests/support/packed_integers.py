"""GPTQ's, AWQ's and compressed-tensors' tensors of given integers, packed one bit after the other.

Slow and plain on purpose, from the formats' descriptions alone: src/octavo/quant shares nothing with it.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from octavo.checkpoints.base import StoredTensor

I64 = npt.NDArray[np.int64]
F32 = npt.NDArray[np.float32]
Tensors = dict[str, npt.NDArray[np.generic]]
_NAMES = {"int32": "I32", "int64": "I64", "float16": "F16", "float32": "F32", "int8": "I8", "uint8": "U8"}


def stream(numbers: I64, bits: int) -> I64:
    """Numbers [n] one after the other, lowest bit first, as words of 32 bits (signed)."""
    whole = 0
    for i, number in enumerate(numbers.tolist()):
        whole |= number << (bits * i)
    words = [(whole >> (32 * w)) & 0xFFFFFFFF for w in range(len(numbers) * bits // 32)]
    return np.array([w - (1 << 32) if w >> 31 else w for w in words], np.int64)


def streams(matrix: I64, bits: int) -> npt.NDArray[np.int32]:
    """Each column of [n, m] a stream: [n bits / 32, m]."""
    return np.stack([stream(column, bits) for column in matrix.T], axis=1).astype(np.int32)


def integers(rng: np.random.Generator, shape: tuple[int, int], bits: int, group: int) -> tuple[I64, I64, F32]:
    """q [N, K], zeros [N, K/G] that a stored zero of one less can name, scales [N, K/G] that f16 holds."""
    n, k = shape
    groups = k // group
    q = rng.integers(0, 2**bits, (n, k))
    zero = rng.integers(1, 2**bits, (n, groups))
    scale = rng.uniform(0.001, 0.02, (n, groups)).astype(np.float16).astype(np.float32)
    return q, zero, scale


def numbers(q: I64, zero: I64, scale: F32, g_idx: I64) -> F32:
    """w = scale (q - zero) of each column's group, in f32."""
    return np.asarray(scale[:, g_idx] * (q - zero[:, g_idx]).astype(np.float32), np.float32)


def gptq(q: I64, zero: I64, scale: F32, g_idx: I64, bits: int, version: int = 1) -> Tensors:
    """X's tensors, as AutoGPTQ (1) or GPTQModel (2) write them."""
    stored = zero - 1 if version == 1 else zero
    return {
        "X.qweight": streams(q.T, bits),
        "X.qzeros": streams(stored, bits).reshape(-1, zero.shape[1]).T.copy(),
        "X.scales": scale.T.astype(np.float16),
        "X.g_idx": g_idx.astype(np.int32),
    }


def awq(q: I64, zero: I64, scale: F32) -> Tensors:
    """X's tensors, as AutoAWQ's GEMM has them."""

    def packed(matrix: I64) -> npt.NDArray[np.int32]:
        """[n, N] -> [n, N / 8]: nibble i of a word holds number (0, 2, 4, 6, 1, 3, 5, 7)[i]."""
        places = [matrix[:, i::8] for i in (0, 2, 4, 6, 1, 3, 5, 7)]
        words = sum(place << (4 * i) for i, place in enumerate(places))
        return np.asarray(words).astype(np.uint32).view(np.int32)

    return {"X.qweight": packed(q.T), "X.qzeros": packed(zero.T), "X.scales": scale.T.astype(np.float16)}


def compressed(
    q: I64, zero: I64 | None, scale: F32, g_idx: I64 | None, bits: int, wide: bool = False
) -> Tensors:
    """X's tensors in pack-quantized; q and zero with the centre added, as they are stored."""
    found: Tensors = {
        "X.weight_packed": streams(q.T, bits).T.copy(),
        "X.weight_scale": scale if wide else scale.astype(np.float16),
        "X.weight_shape": np.array(q.shape, np.int64),
    }
    if zero is not None:
        found["X.weight_zero_point"] = streams(zero, bits)
    if g_idx is not None:
        found["X.weight_g_idx"] = g_idx.astype(np.int32)
    return found


def stored(name: str, array: npt.NDArray[np.generic]) -> StoredTensor:
    data = np.ascontiguousarray(array).reshape(-1).view(np.uint8)
    return StoredTensor(name, array.shape, _NAMES[array.dtype.name], data, lambda: None)
