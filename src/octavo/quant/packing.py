"""Integers of a few bits in words of 32, as GPTQ, AWQ and compressed-tensors store them, to Weights."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from octavo.checkpoints.base import StoredTensor
from octavo.errors import CheckpointError
from octavo.kernels.outline import Outline
from octavo.kernels.weight import BLOCK, MOST_ZERO, Array, F32Array, Layout, Weight
from octavo.quant.scheme import check_finite, table

U8 = npt.NDArray[np.uint8]
Integers = npt.NDArray[np.int64]
_CENTRE = 8  # of U4 without zero points
_WORD = 32


def nibbles(q: U8) -> U8:
    """[..., 32] numbers below 16 -> [..., 16] bytes as U4 has them: the first half low, the second high."""
    return q[..., :16] | q[..., 16:] << np.uint8(4)


def int32_matrix(tensor: StoredTensor, shape: tuple[int, int]) -> npt.NDArray[np.uint32]:
    """A stored matrix of 32-bit words.

    Raises:
        CheckpointError: it is no such matrix.
    """
    if tensor.format != "I32" or tuple(tensor.shape) != shape:
        raise CheckpointError(
            f"tensor {tensor.name!r} is {tensor.format} {list(tensor.shape)}, expected I32 {list(shape)}"
        )
    return tensor.data.view("<u4").reshape(shape)


def word_count(count: int, bits: int) -> int:
    """Words that hold so many numbers.

    Raises:
        CheckpointError: they do not end with a word.
    """
    together = _WORD // bits if _WORD % bits == 0 else _WORD
    if count % together:
        raise CheckpointError(f"{count} numbers of {bits} bits do not fill whole words")
    return count * bits // _WORD


def unpacked(packed: npt.NDArray[np.uint32], bits: int) -> U8:
    """Words [W, N], each column a stream of numbers, the first in the lowest bits -> [W * 32 / bits, N].

    Three bits do not divide a word: there 32 numbers take three words, and some lie across two.
    """
    each, together = (1, _WORD // bits) if _WORD % bits == 0 else (bits, _WORD)
    count, width = packed.shape
    streams = packed.reshape(count // each, each, width)
    numbers = np.empty((count // each, together, width), np.uint8)
    for i in range(together):
        word, shift = divmod(i * bits, _WORD)
        number = streams[:, word] >> np.uint32(shift)
        if shift + bits > _WORD:
            number |= streams[:, word + 1] << np.uint32(_WORD - shift)
        numbers[:, i] = number & np.uint32(2**bits - 1)
    return numbers.reshape(-1, width)


def packed(numbers: npt.NDArray[np.integer[Any]], bits: int) -> npt.NDArray[np.int32]:
    """unpacked()'s inverse: numbers [n, N] of so many bits -> words [n bits / 32, N].

    Raises:
        CheckpointError: they do not fill whole words.
    """
    count, width = numbers.shape
    word_count(count, bits)
    each, together = (1, _WORD // bits) if _WORD % bits == 0 else (bits, _WORD)
    streams = numbers.astype(np.uint32).reshape(count // together, together, width)
    words = np.zeros((count // together, each, width), np.uint32)
    for i in range(together):
        word, shift = divmod(i * bits, _WORD)
        words[:, word] |= streams[:, i] << np.uint32(shift)
        if shift + bits > _WORD:
            words[:, word + 1] |= streams[:, i] >> np.uint32(_WORD - shift)
    return words.reshape(-1, width).view(np.int32)


def order_of(tensor: StoredTensor, columns: int, groups: int) -> npt.NDArray[np.int32] | None:
    """The order of columns in which each group's lie together; None: they do already.

    Args:
        tensor: g_idx, each column's group, [K] I32.

    Raises:
        CheckpointError: it is no such tensor, there is no such group, or groups differ in size.
    """
    name = tensor.name
    if tensor.format != "I32" or tuple(tensor.shape) != (columns,):
        raise CheckpointError(
            f"tensor {name!r} is {tensor.format} {list(tensor.shape)}, expected I32 {[columns]}"
        )
    g_idx = tensor.data.view("<i4").astype(np.int64)
    if g_idx.min(initial=0) < 0 or g_idx.max(initial=0) >= groups:
        raise CheckpointError(f"tensor {name!r} names groups beyond the {groups} that have scales")
    size = len(g_idx) // groups
    if np.any(np.bincount(g_idx, minlength=groups) != size):
        raise CheckpointError(
            f"tensor {name!r} has groups of other sizes than {size}, which is not supported"
        )
    order = np.argsort(g_idx, kind="stable").astype(np.int32)
    return None if np.array_equal(order, np.arange(len(order))) else order


def check_groups(name: str, columns: int, group: int) -> int:
    """How many groups of so many columns (-1: all of them) a row has.

    Raises:
        CheckpointError: they do not divide it, or are no whole blocks.
    """
    size = columns if group == -1 else group
    if size < 1 or columns % size or size % BLOCK:
        raise CheckpointError(
            f"tensor {name!r}: groups of {group} are not supported in rows of {columns}: "
            f"multiples of {BLOCK} that divide them are"
        )
    return columns // size


def scales_of(tensor: StoredTensor, shape: tuple[int, int], group: int) -> F32Array:
    """A table of scales as f32.

    Args:
        shape: as it must be stored.
        group: what quantization_config says, for the message.

    Raises:
        CheckpointError: it has another shape, or holds no floats.
    """
    scale = table(tensor)
    if scale.shape != shape:
        raise CheckpointError(
            f"tensor {tensor.name!r} has shape {list(scale.shape)}, expected {list(shape)}: its group_size "
            f"is {group}"
        )
    return scale


def narrowed(name: str, scale: F32Array) -> Array:
    """Scales as f16 where that changes none.

    Raises:
        CheckpointError: some are not finite.
    """
    check_finite(name, scale)
    with np.errstate(over="ignore"):
        half = scale.astype(np.float16)
    return half if np.array_equal(half.astype(np.float32), scale) else np.ascontiguousarray(scale)


def integer_weight(
    q: U8, bits: int, scale: Array, zero: Integers, order: npt.NDArray[np.int32] | None
) -> Weight:
    """w = scale (q - zero).

    Args:
        q: [N, K] in W's order of columns. Numbers of fewer than four bits lie in four; those of eight in S8.
        scale: [N, K/G], as narrowed() makes it.
        zero: [N, K/G], or [1, 1] for all. Where all are one, q moves in their stead.
    """
    n, k = q.shape
    if order is not None:
        q = q[:, order]
    shared = int(zero.flat[0]) if (zero == zero.flat[0]).all() else None
    if bits == 8:
        values = (q ^ np.uint8(128)).view(np.int8).reshape(n, k // BLOCK, BLOCK)
        minimum = None if shared == 128 else scale.astype(np.float32) * (128 - zero).astype(np.float32)
        return Weight(Layout.S8, (n, k), values, scale, minimum, order=order)
    if shared is not None and 0 <= _CENTRE - shared <= 16 - 2**bits:
        q, kept = q + np.uint8(_CENTRE - shared), None
    else:
        kept = np.ascontiguousarray(np.broadcast_to(zero, scale.shape), np.uint8)
    packed = nibbles(q.reshape(n, k // BLOCK, BLOCK))
    return Weight(Layout.U4, (n, k), packed, scale, zero=kept, order=order)


def integer_outline(shape: tuple[int, int], bits: int, groups: int, wide: bool, zeros: bool) -> Outline:
    """The form of integer_weight's."""
    layout = Layout.S8 if bits == 8 else Layout.U4
    return Outline.coded(layout, shape, groups, wide, zeros and layout is Layout.U4)


assert MOST_ZERO >= 16
