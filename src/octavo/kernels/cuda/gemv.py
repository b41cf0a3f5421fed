"""Triton products of one row, y = x W^T: what decoding one stream spends its time in.

There is nothing to reuse, so no tensor core and no shared memory for W: each thread reads 16 bytes of a
row of W at a time, the first of them before its turn comes (order.py). Dense numbers meet x in f32. Integers
of four or eight bits meet it as integers, four at once (dp4a): of each 32 columns x is 16 bits, in steps of a
power of two such that the largest needs 15 of them. A bf16 number has 8 bits, so it is exact unless 2^7 times
smaller than the largest of its block, a f16 2^4 times; what is lost is half a step at most, 2^-15 of the
largest. With ops.linear's epilogue. No atomics.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
import triton
import triton.language as tl
from triton.runtime.interpreter import InterpretedFunction

from octavo.kernels.cuda.integer import round_nearest
from octavo.kernels.cuda.launch import cdiv, next_power_of_2
from octavo.kernels.cuda.norms import activate, finish
from octavo.kernels.cuda.order import chained, in_turn
from octavo.kernels.cuda.weight import PackedRows
from octavo.kernels.weight import BLOCK, Layout

if TYPE_CHECKING:
    from octavo.kernels.cuda.norms import Epilogue

INTERPRETED = isinstance(tl.sum, InterpretedFunction)
FORMS = {Layout.F32: 0, Layout.S8: 1, Layout.U4: 2}


@dataclass(frozen=True, slots=True)
class Strip:
    """What a program does: bn rows of W, bk columns (dense) or blocks of 32 at a time."""

    bn: int
    bk: int
    warps: int
    ahead: bool = False


def serves(part: PackedRows) -> bool:
    """Whether there is a product of one row for such weights."""
    return part.values.dim() == (2 if part.dense else 3) and (
        part.dense or (part.layout in FORMS and part.group % BLOCK == 0)
    )


def strip_of(part: PackedRows, width: int, sms: int) -> Strip:
    """As measured on an H100: few rows of W to a program where W is small, so that all multiprocessors read;
    many where it is large, as these lie together."""
    if part.dense:
        bk = min(max(next_power_of_2(part.columns), 16), 1024)
        return Strip(4 if width >= 16 * sms else 2, bk, 4)
    blocks = next_power_of_2(part.columns // BLOCK)
    if width >= 512 * sms:
        return Strip(128, min(blocks, 4), 4, True)
    if width >= 64 * sms:
        return Strip(16, min(blocks, 32), 4)
    return Strip(32, min(blocks, 32 if width >= 40 * sms else 64), 8, True)


@triton.jit
def four(a, b, c, SIGNED: tl.constexpr, ASM: tl.constexpr):
    """c + the sum of the products of the four bytes of a and of b. a's are signed; b's are where SIGNED."""
    if ASM:
        if SIGNED:
            c = tl.inline_asm_elementwise(
                "dp4a.s32.s32 $0, $1, $2, $3;", "=r,r,r,r", [a, b, c], dtype=tl.int32, is_pure=True, pack=1
            )
        else:
            c = tl.inline_asm_elementwise(
                "dp4a.s32.u32 $0, $1, $2, $3;", "=r,r,r,r", [a, b, c], dtype=tl.int32, is_pure=True, pack=1
            )
    else:
        for byte in tl.static_range(4):
            mine = (a << (24 - 8 * byte)) >> 24
            other = (b << (24 - 8 * byte)) >> 24 if SIGNED else (b >> (8 * byte)) & 255
            c += mine * other
    return c


@triton.jit
def in_sixteen_bits(x):
    """(integers of 16 bits, steps) of blocks x [KB, 32]. A block that holds NaN or infinity gets NaN."""
    top = tl.maximum(tl.max(tl.abs(x), axis=1), 1e-30)
    power = (top.to(tl.int32, bitcast=True) & 0x7F800000).to(tl.float32, bitcast=True)
    step = power * 0.00006103515625 + 0.0 * tl.sum(x, axis=1)  # 2^-14
    whole = round_nearest(x * (16384.0 / power)[:, None])
    return tl.where(whole == whole, whole, 0.0).to(tl.int32), step


@triton.jit
def in_words(bytes_, KB: tl.constexpr):
    """Bytes [KB, 32], four to a word: [KB, 8]."""
    place = tl.arange(0, 4)[None, None, :] * 8
    return tl.sum((tl.reshape(bytes_, (KB, 8, 4)) & 255) << place, axis=2)


@triton.jit
def nibble_sums(words, x, KB: tl.constexpr, ASM: tl.constexpr):
    """sum over a block's 32 columns of q x: words [KB, BN, 4], x [KB, 32] -> [KB, BN]. Byte j of a block
    holds column j in its low nibble, column j + 16 in its high one."""
    low, high = words & 0x0F0F0F0F, (words >> 4) & 0x0F0F0F0F
    a, b = tl.split(tl.permute(tl.reshape(in_words(x >> 8, KB), (KB, 2, 4)), (0, 2, 1)))
    zero = tl.zeros_like(words)
    top = four(low, a[:, None, :] + zero, zero, True, ASM)
    top = four(high, b[:, None, :] + zero, top, True, ASM)
    a, b = tl.split(tl.permute(tl.reshape(in_words(x, KB), (KB, 2, 4)), (0, 2, 1)))
    part = four(low, a[:, None, :] + zero, top * 256, False, ASM)
    part = four(high, b[:, None, :] + zero, part, False, ASM)
    return tl.sum(part, axis=2)


@triton.jit
def byte_sums(words, x, KB: tl.constexpr, ASM: tl.constexpr):
    """The same of int8: words [KB, BN, 8]."""
    zero = tl.zeros_like(words)
    top = four(words, in_words(x >> 8, KB)[:, None, :] + zero, zero, True, ASM)
    part = four(words, in_words(x, KB)[:, None, :] + zero, top * 256, False, ASM)
    return tl.sum(part, axis=2)


@triton.jit
def read_blocks(
    w, scale, minimum, block, blocks, n, n_ok, n_len,
    FORM: tl.constexpr, MINIMUM: tl.constexpr, GROUP: tl.constexpr,
):  # fmt: skip
    """The words, scales and minima of some blocks of BN rows."""
    WORDS: tl.constexpr = 4 if FORM == 2 else 8
    ok = (block < blocks)[:, None] & n_ok[None, :]
    at = block[:, None].to(tl.int64) * n_len + n[None, :]
    word = tl.arange(0, WORDS)
    words = tl.load(w + (at[:, :, None] * WORDS + word[None, None, :]), mask=ok[:, :, None], other=0)
    at_table = (block // (GROUP // 32))[:, None].to(tl.int64) * n_len + n[None, :]
    size = tl.load(scale + at_table, mask=ok, other=0.0)
    low = size
    if MINIMUM:
        low = tl.load(minimum + at_table, mask=ok, other=0.0)
    return words, size, low


@triton.jit
def add_blocks(
    acc, x, step, sums, words, size, low,
    FORM: tl.constexpr, MINIMUM: tl.constexpr, KB: tl.constexpr, ASM: tl.constexpr,
):  # fmt: skip
    """acc [KB, BN] + their products with x [KB, 32] in steps [KB]; sums [KB] of what x stands for."""
    if FORM == 2:
        part = nibble_sums(words, x, KB, ASM)
    else:
        part = byte_sums(words, x, KB, ASM)
    acc += part.to(tl.float32) * (size.to(tl.float32) * step[:, None])
    if MINIMUM:
        acc += sums[:, None] * low.to(tl.float32)
    return acc


@triton.jit
def quantized_row(
    x, w, scale, minimum, n, n_ok, n_len, blocks, width,
    FORM: tl.constexpr, MINIMUM: tl.constexpr, GROUP: tl.constexpr, GATED: tl.constexpr, BN: tl.constexpr,
    KB: tl.constexpr,
    AHEAD: tl.constexpr, ASM: tl.constexpr, CHAINED: tl.constexpr,
):  # fmt: skip
    """AHEAD: each round's weights are asked for one round before."""
    acc, up = tl.zeros([KB, BN], tl.float32), tl.zeros([KB, BN], tl.float32)
    block, j = tl.arange(0, KB), tl.arange(0, 32)
    words, size, low = read_blocks(w, scale, minimum, block, blocks, n, n_ok, n_len, FORM, MINIMUM, GROUP)
    for first in range(0, blocks, KB):
        block = first + tl.arange(0, KB)
        if AHEAD:  # they were asked for a round ago, so that the wait for memory falls on arithmetic
            here, here_size, here_low = words, size, low
        else:  # strip_of says where asking ahead pays
            here, here_size, here_low = read_blocks(
                w, scale, minimum, block, blocks, n, n_ok, n_len, FORM, MINIMUM, GROUP
            )
        up_words, up_size, up_low = here, here_size, here_low
        if GATED:
            up_words, up_size, up_low = read_blocks(
                w, scale, minimum, block, blocks, n + width, n_ok, n_len, FORM, MINIMUM, GROUP
            )
        in_turn(CHAINED)  # (again and again, which costs nothing)
        if AHEAD:
            words, size, low = read_blocks(
                w, scale, minimum, block + KB, blocks, n, n_ok, n_len, FORM, MINIMUM, GROUP
            )
        numbers = tl.load(x + block[:, None] * 32 + j[None, :], mask=(block < blocks)[:, None], other=0.0).to(
            tl.float32
        )
        sums = tl.sum(numbers, axis=1)
        whole, step = in_sixteen_bits(numbers)
        acc = add_blocks(acc, whole, step, sums, here, here_size, here_low, FORM, MINIMUM, KB, ASM)
        if GATED:
            up = add_blocks(up, whole, step, sums, up_words, up_size, up_low, FORM, MINIMUM, KB, ASM)
    return tl.sum(acc, axis=0), tl.sum(up, axis=0)


@triton.jit
def dense_row(
    x, w, n, n_ok, k_len, width,
    GATED: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr, CHAINED: tl.constexpr,
):  # fmt: skip
    """Each round's weights are asked for one round before."""
    acc, up = tl.zeros([BN, BK], tl.float32), tl.zeros([BN, BK], tl.float32)
    k = tl.arange(0, BK)
    row = w + n[:, None].to(tl.int64) * k_len
    to_up = width.to(tl.int64) * k_len
    ok = n_ok[:, None] & (k < k_len)[None, :]
    b = tl.load(row + k[None, :], mask=ok, other=0.0)
    b_up = b
    if GATED:
        b_up = tl.load(row + to_up + k[None, :], mask=ok, other=0.0)
    in_turn(CHAINED)
    for k0 in range(0, k_len, BK):
        here, here_up = b, b_up
        at = k0 + BK + k
        ok = n_ok[:, None] & (at < k_len)[None, :]
        b = tl.load(row + at[None, :], mask=ok, other=0.0)
        if GATED:
            b_up = tl.load(row + to_up + at[None, :], mask=ok, other=0.0)
        a = tl.load(x + k0 + k, mask=k0 + k < k_len, other=0.0).to(tl.float32)[None, :]
        acc += here.to(tl.float32) * a
        if GATED:
            up += here_up.to(tl.float32) * a
    return tl.sum(acc, axis=1), tl.sum(up, axis=1)


@triton.jit
def row_kernel(
    x, w, scale, minimum, y, bias, residual, factor, softcap, n_len, k_len, width,
    FORM: tl.constexpr, MINIMUM: tl.constexpr, GROUP: tl.constexpr, GATED: tl.constexpr, BIAS: tl.constexpr,
    KIND: tl.constexpr, RESIDUAL: tl.constexpr, SCALE: tl.constexpr, SOFTCAP: tl.constexpr, BN: tl.constexpr,
    BK: tl.constexpr, AHEAD: tl.constexpr, ASM: tl.constexpr, CHAINED: tl.constexpr,
):  # fmt: skip
    """BN columns of y a program. n_len rows of W, width columns of y (n_len / 2 where GATED)."""
    n = tl.program_id(0) * BN + tl.arange(0, BN)
    n_ok = n < width
    if FORM == 0:
        z, up = dense_row(x, w, n, n_ok, k_len, width, GATED, BN, BK, CHAINED)
    else:
        z, up = quantized_row(
            x, w, scale, minimum, n, n_ok, n_len, k_len // 32, width, FORM, MINIMUM, GROUP, GATED, BN, BK,
            AHEAD, ASM, CHAINED,
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


def row_product(x: torch.Tensor, part: PackedRows, y: torch.Tensor, end: Epilogue, sms: int) -> torch.Tensor:
    """Fill y [1, width] with the epilogue of x W^T, x [1, K]. Returns y."""
    width = y.shape[1]
    strip = strip_of(part, width, sms)
    values = part.values if part.dense else part.values.view(torch.int32)
    row_kernel[(cdiv(width, strip.bn),)](
        x, values, x if part.scale is None else part.scale, x if part.minimum is None else part.minimum, y,
        x if end.bias is None else end.bias, x if end.residual is None else end.residual,
        end.scale, end.softcap or 1.0, part.rows, part.columns, width,
        FORM=FORMS[part.layout], MINIMUM=part.minimum is not None, GROUP=part.group, BN=strip.bn, BK=strip.bk,
        AHEAD=strip.ahead, ASM=not INTERPRETED, num_warps=strip.warps, **end.flags, **chained(x),
    )  # fmt: skip
    return y


__all__ = ["Strip", "row_product", "serves", "strip_of"]
