"""Triton products of one row, y = x W^T: what decoding one stream spends its time in.

There is nothing to reuse, so no tensor core and no shared memory for W: each thread reads 16 bytes of a
row of W at a time and multiplies in f32 what it has read. A number of four or eight bits becomes an f32 by
its place: its bits, left where they lie in their word, under the exponent of 2^23, less 2^23. That is
q 2^s, exactly; x comes with 2^-s. With ops.linear's epilogue. No atomics.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
import triton
import triton.language as tl

from octavo.kernels.cuda.launch import cdiv, next_power_of_2
from octavo.kernels.cuda.rows import ACTIVATIONS, activate, finish
from octavo.kernels.cuda.weight import Part
from octavo.kernels.weight import BLOCK, Layout

if TYPE_CHECKING:
    from octavo.kernels.cuda.gemm import Epilogue

EXPONENT = 0x4B000000
"""The bits of 2^23. An argument of the kernel, as one instruction takes a constant and a register, not two
constants."""
FORMS = {Layout.F32: 0, Layout.S8: 1, Layout.U4: 2}


@dataclass(frozen=True, slots=True)
class Strip:
    """What a program does: bn rows of W, bk columns (dense) or blocks of 32 at a time."""

    bn: int
    bk: int
    warps: int
    stages: int = 1


def serves(part: Part) -> bool:
    """Whether there is a product of one row for such weights."""
    return part.values.dim() == (2 if part.dense else 3) and (
        part.dense or (part.layout in FORMS and part.group == BLOCK)
    )


def strip_of(part: Part, width: int, sms: int) -> Strip:
    """Few rows of W to a program where W is small, so that all multiprocessors read."""
    if part.dense:
        bk = min(max(next_power_of_2(part.columns), 16), 1024)
        return Strip(8 if width >= 32 * sms else 4 if width >= 8 * sms else 2, bk, 4)
    blocks = next_power_of_2(part.columns // BLOCK)
    return Strip(32, min(blocks, 16), 4)


@triton.jit
def lifted(words, exponent, SHIFT: tl.constexpr, MASK: tl.constexpr, OFFSET: tl.constexpr):
    """The number under MASK of each word >> SHIFT, as f32 and as large as its place there, less OFFSET."""
    return (((words >> SHIFT) & MASK) | exponent).to(tl.float32, bitcast=True) - OFFSET


@triton.jit
def nibble_sums(words, x, exponent, KB: tl.constexpr):
    """sum over a block's 32 columns of q x: words [KB, BN, 4], x [KB, 32] -> [KB, BN]. Byte j of a block
    holds column j in its low nibble, column j + 16 in its high one."""
    column = tl.arange(0, 32)
    shrink = tl.where(column % 2 == 0, 1.0, 0.00390625) * tl.where(column < 16, 1.0, 0.0625)
    x = tl.permute(tl.reshape(x * shrink[None, :], (KB, 2, 4, 4)), (0, 2, 1, 3))
    even, odd = tl.split(tl.reshape(x, (KB, 4, 2, 2, 2)))  # bytes 0 and 2 of a word, 1 and 3
    byte_0, byte_2 = tl.split(even)
    byte_1, byte_3 = tl.split(odd)
    low, high = tl.split(byte_0)
    part = lifted(words, exponent, 0, 0xF, 8388608.0) * low[:, None, :]
    part += lifted(words, exponent, 0, 0xF0, 8388608.0) * high[:, None, :]
    low, high = tl.split(byte_1)
    part += lifted(words, exponent, 0, 0xF00, 8388608.0) * low[:, None, :]
    part += lifted(words, exponent, 0, 0xF000, 8388608.0) * high[:, None, :]
    low, high = tl.split(byte_2)
    part += lifted(words, exponent, 16, 0xF, 8388608.0) * low[:, None, :]
    part += lifted(words, exponent, 16, 0xF0, 8388608.0) * high[:, None, :]
    low, high = tl.split(byte_3)
    part += lifted(words, exponent, 16, 0xF00, 8388608.0) * low[:, None, :]
    part += lifted(words, exponent, 16, 0xF000, 8388608.0) * high[:, None, :]
    return tl.sum(part, axis=2)


@triton.jit
def byte_sums(words, x, exponent, KB: tl.constexpr):
    """The same of int8: words [KB, BN, 8]. 128 is added to a byte before it is lifted, and taken off after."""
    words = words ^ -2139062144  # 0x80808080
    shrink = tl.where(tl.arange(0, 32) % 2 == 0, 1.0, 0.00390625)
    even, odd = tl.split(tl.reshape(x * shrink[None, :], (KB, 8, 2, 2)))
    byte_0, byte_2 = tl.split(even)
    byte_1, byte_3 = tl.split(odd)
    part = lifted(words, exponent, 0, 0xFF, 8388736.0) * byte_0[:, None, :]
    part += lifted(words, exponent, 0, 0xFF00, 8421376.0) * byte_1[:, None, :]
    part += lifted(words, exponent, 16, 0xFF, 8388736.0) * byte_2[:, None, :]
    part += lifted(words, exponent, 16, 0xFF00, 8421376.0) * byte_3[:, None, :]
    return tl.sum(part, axis=2)


@triton.jit
def blocks_of_row(
    acc, x, sums, w, scale, minimum, block, block_ok, n, n_ok, n_len, exponent,
    FORM: tl.constexpr, MINIMUM: tl.constexpr, KB: tl.constexpr,
):  # fmt: skip
    """acc [KB, BN] + what KB blocks give to BN rows; x [KB, 32], sums [KB] of it."""
    WORDS: tl.constexpr = 4 if FORM == 2 else 8
    ok = block_ok[:, None] & n_ok[None, :]
    at = block[:, None].to(tl.int64) * n_len + n[None, :]
    word = tl.arange(0, WORDS)
    words = tl.load(w + (at[:, :, None] * WORDS + word[None, None, :]), mask=ok[:, :, None], other=0)
    step = tl.load(scale + at, mask=ok, other=0.0).to(tl.float32)
    if FORM == 2:
        part = nibble_sums(words, x, exponent, KB)
    else:
        part = byte_sums(words, x, exponent, KB)
    acc += part * step
    if MINIMUM:
        acc += sums[:, None] * tl.load(minimum + at, mask=ok, other=0.0).to(tl.float32)
    return acc


@triton.jit
def quantized_row(
    x, w, scale, minimum, n, n_ok, n_len, blocks, width, exponent,
    FORM: tl.constexpr, MINIMUM: tl.constexpr, GATED: tl.constexpr, BN: tl.constexpr, KB: tl.constexpr,
    STAGES: tl.constexpr,
):  # fmt: skip
    acc, up = tl.zeros([KB, BN], tl.float32), tl.zeros([KB, BN], tl.float32)
    for first in tl.range(0, blocks, KB, num_stages=STAGES):
        block = first + tl.arange(0, KB)
        block_ok = block < blocks
        numbers = tl.load(
            x + block[:, None] * 32 + tl.arange(0, 32)[None, :], mask=block_ok[:, None], other=0.0
        ).to(tl.float32)
        sums = tl.sum(numbers, axis=1)
        acc = blocks_of_row(
            acc, numbers, sums, w, scale, minimum, block, block_ok, n, n_ok, n_len, exponent, FORM,
            MINIMUM, KB,
        )  # fmt: skip
        if GATED:
            up = blocks_of_row(
                up, numbers, sums, w, scale, minimum, block, block_ok, n + width, n_ok, n_len,
                exponent, FORM, MINIMUM, KB,
            )  # fmt: skip
    return tl.sum(acc, axis=0), tl.sum(up, axis=0)


@triton.jit
def dense_row(
    x, w, n, n_ok, k_len, width,
    GATED: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr, STAGES: tl.constexpr,
):  # fmt: skip
    acc, up = tl.zeros([BN, BK], tl.float32), tl.zeros([BN, BK], tl.float32)
    for k0 in tl.range(0, k_len, BK, num_stages=STAGES):
        k = k0 + tl.arange(0, BK)
        ok = n_ok[:, None] & (k < k_len)[None, :]
        a = tl.load(x + k, mask=k < k_len, other=0.0).to(tl.float32)
        at = n[:, None].to(tl.int64) * k_len + k[None, :]
        acc += tl.load(w + at, mask=ok, other=0.0).to(tl.float32) * a[None, :]
        if GATED:
            at += width.to(tl.int64) * k_len
            up += tl.load(w + at, mask=ok, other=0.0).to(tl.float32) * a[None, :]
    return tl.sum(acc, axis=1), tl.sum(up, axis=1)


@triton.jit
def row_kernel(
    x, w, scale, minimum, y, bias, residual, factor, softcap, n_len, k_len, width, exponent,
    FORM: tl.constexpr, MINIMUM: tl.constexpr, GATED: tl.constexpr, BIAS: tl.constexpr, KIND: tl.constexpr,
    RESIDUAL: tl.constexpr, SCALE: tl.constexpr, SOFTCAP: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr,
    STAGES: tl.constexpr,
):  # fmt: skip
    """BN columns of y a program. n_len rows of W, width columns of y (n_len / 2 where GATED)."""
    n = tl.program_id(0) * BN + tl.arange(0, BN)
    n_ok = n < width
    if FORM == 0:
        z, up = dense_row(x, w, n, n_ok, k_len, width, GATED, BN, BK, STAGES)
    else:
        z, up = quantized_row(
            x, w, scale, minimum, n, n_ok, n_len, k_len // 32, width, exponent, FORM, MINIMUM, GATED, BN,
            BK, STAGES,
        )  # fmt: skip
    if BIAS:
        z += tl.load(bias + n, mask=n_ok, other=0.0)
    if GATED:
        if BIAS:
            up += tl.load(bias + n + width, mask=n_ok, other=0.0)
        z = finish(activate(z, KIND) * up, 0, factor, softcap, SCALE, SOFTCAP)
    else:
        z = finish(z, KIND, factor, softcap, SCALE, SOFTCAP)
    if RESIDUAL:
        z += tl.load(residual + n, mask=n_ok, other=0.0).to(tl.float32)
    tl.store(y + n, z.to(y.dtype.element_ty), mask=n_ok)


def row_product(x: torch.Tensor, part: Part, y: torch.Tensor, end: Epilogue, sms: int) -> torch.Tensor:
    """Fill y [1, width] with the epilogue of x W^T, x [1, K]. Returns y."""
    width = y.shape[1]
    strip = strip_of(part, width, sms)
    values = part.values if part.dense else part.values.view(torch.int32)
    row_kernel[(cdiv(width, strip.bn),)](
        x, values, x if part.scale is None else part.scale, x if part.minimum is None else part.minimum, y,
        x if end.bias is None else end.bias, x if end.residual is None else end.residual,
        end.scale, end.softcap or 1.0, part.rows, part.columns, width, EXPONENT,
        FORM=FORMS[part.layout], MINIMUM=part.minimum is not None, GATED=end.gated,
        BIAS=end.bias is not None, KIND=ACTIVATIONS[end.activation], RESIDUAL=end.residual is not None,
        SCALE=end.scale != 1.0, SOFTCAP=end.softcap is not None, BN=strip.bn, BK=strip.bk,
        STAGES=strip.stages, num_warps=strip.warps,
    )  # fmt: skip
    return y


__all__ = ["Strip", "row_product", "serves", "strip_of"]
