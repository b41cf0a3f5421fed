"""W8A8 and W4A8: x rounded to int8 once, then multiplied in integers by the tensor cores.

The same numbers, in the same order, as gemm.quantized_steps with ROUND, which rounds x in each tile and
multiplies its integers as floats: that costs less where x has few rows, this where it has many.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import triton
import triton.language as tl

from octavo.kernels.cuda.launch import cdiv, next_power_of_2
from octavo.kernels.weight import BLOCK


@triton.jit
def round_nearest(v):
    """To the nearest integer, ties to even, for |v| < 2^22."""
    return (v + 12582912.0) - 12582912.0


@triton.jit
def rounded(v, AXIS: tl.constexpr):
    """(whole numbers, steps) of blocks v of 32 along AXIS, the last: ops.linear's step 1."""
    # max passes over NaN; a row that holds one must not become finite
    step = tl.div_rn(tl.max(tl.abs(v), axis=AXIS), 127.0) + 0.0 * tl.sum(v, axis=AXIS)
    whole = tl.expand_dims(tl.where(step == 0.0, 1.0, step), AXIS) + tl.zeros_like(v)
    return round_nearest(tl.div_rn(v, whole)), step


@triton.jit
def round_kernel(x, q, d, stride_x, rows, blocks, BN: tl.constexpr):
    """q [M, K] and d [K / 32, M] of x [M, K]: ops.linear's step 1, BN blocks of one row a program."""
    row = tl.program_id(0).to(tl.int64)
    block = tl.program_id(1) * BN + tl.arange(0, BN)
    j = tl.arange(0, 32)
    at = block[:, None] * 32 + j[None, :]
    ok = (block < blocks)[:, None] & (j >= 0)[None, :]
    v = tl.load(x + row * stride_x + at, mask=ok, other=0.0).to(tl.float32)
    numbers, step = rounded(v, 1)
    tl.store(q + row * blocks * 32 + at, numbers.to(tl.int8), mask=ok)
    tl.store(d + block * rows + row, step, mask=block < blocks)


@dataclass(frozen=True, slots=True, eq=False)
class RoundedRows:
    """Rows x [M, K] as int8 q [M, K] and f32 steps d [K / 32, M], each of 32 columns."""

    x: torch.Tensor
    q: torch.Tensor
    d: torch.Tensor

    @classmethod
    def of(cls, x: torch.Tensor) -> RoundedRows:
        """Room for them."""
        rows, columns = x.shape
        q = torch.empty((rows, columns), dtype=torch.int8, device=x.device)
        return cls(x, q, torch.empty((columns // BLOCK, rows), device=x.device))


def round_rows(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """x [M, K], rows adjacent in memory, as int8 [M, K] and f32 steps [K / 32, M]."""
    rows, columns = x.shape
    blocks, made = columns // BLOCK, RoundedRows.of(x)
    q, d = made.q, made.d
    bn = min(next_power_of_2(blocks), 64)
    if rows:
        round_kernel[(rows, cdiv(blocks, bn))](x, q, d, x.stride(0), rows, blocks, BN=bn)
    return q, d


@triton.jit
def integer_steps(
    acc, xp, dp, x_rows, row_ok, w, scale, minimum, n, n_ok, n_len, first, last,
    FORM: tl.constexpr, MINIMUM: tl.constexpr, GROUP: tl.constexpr,
):  # fmt: skip
    """acc + the products of blocks first..last - 1 of 32 columns of int8 rows xp, whose steps are dp."""
    j = tl.arange(0, 32)
    for block in range(first, last):
        table = block // max(GROUP // 32, 1) * n_len
        q = tl.load(xp[:, None] + (block * 32 + j)[None, :], mask=row_ok[:, None], other=0)
        if FORM == 2:
            here = w + (block * n_len + n[None, :]) * 16 + (j % 16)[:, None]
            packed = tl.load(here, mask=n_ok[None, :], other=0)
            b = tl.where((j < 16)[:, None], packed & 15, packed >> 4).to(tl.int8)
        else:
            b = tl.load(w + (block * n_len + n[None, :]) * 32 + j[:, None], mask=n_ok[None, :], other=0)
        if GROUP == 16:  # two scales a block: each product has the other half's columns as zeros
            s_at = scale + block * 2 * n_len + n
            none = tl.zeros_like(b)
            part = tl.dot(q, tl.where((j < 16)[:, None], b, none)).to(tl.float32)
            part = part * tl.load(s_at, mask=n_ok, other=0.0).to(tl.float32)[None, :]
            s_high = tl.load(s_at + n_len, mask=n_ok, other=0.0).to(tl.float32)
            part += tl.dot(q, tl.where((j < 16)[:, None], none, b)).to(tl.float32) * s_high[None, :]
        else:
            part = tl.dot(q, b).to(tl.float32)
            part = part * tl.load(scale + table + n, mask=n_ok, other=0.0).to(tl.float32)[None, :]
        if MINIMUM and GROUP == 16:
            m_at = minimum + block * 2 * n_len + n
            whole = q.to(tl.int32)
            first = tl.sum(tl.where((j < 16)[None, :], whole, 0), axis=1).to(tl.float32)
            m = tl.load(m_at, mask=n_ok, other=0.0).to(tl.float32)
            part += first[:, None] * m[None, :]
            m = tl.load(m_at + n_len, mask=n_ok, other=0.0).to(tl.float32)
            part += (tl.sum(whole, axis=1).to(tl.float32) - first)[:, None] * m[None, :]
        elif MINIMUM:  # the same for all columns of the block, so it meets the sum of x
            m = tl.load(minimum + table + n, mask=n_ok, other=0.0).to(tl.float32)
            part += tl.sum(q.to(tl.int32), axis=1).to(tl.float32)[:, None] * m[None, :]
        d = tl.load(dp + block * x_rows, mask=row_ok, other=0.0)
        acc += part * d[:, None]
    return acc
