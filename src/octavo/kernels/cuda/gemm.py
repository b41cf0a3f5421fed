"""Triton products y = x W^T for every layout, with ops.linear's epilogue; dense ones for bit-exactness.

A program computes a tile [BM, BN] of one split of K and goes on to the next tile (persistent). Blocks
of 32 columns are multiplied as integers, exactly, and scaled after: sum_k x_k q_k * scale + sum_k x_k *
minimum. Codes of floats (coded.py) are looked up, multiplied as x is, and scaled after.
With one split the epilogue runs on the accumulator; several write partial sums, which
rows.epilogue adds in ascending order. No atomics: equal tiles give equal bits.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
import triton
import triton.language as tl

from octavo.kernels.coded import NF4_GROUP
from octavo.kernels.cuda.coded import f8_steps, nf4_steps, widen_coded
from octavo.kernels.cuda.gemv import row_product, serves
from octavo.kernels.cuda.integer import RoundedRows, integer_steps, round_nearest, round_rows
from octavo.kernels.cuda.launch import cdiv, next_power_of_2
from octavo.kernels.cuda.norms import Epilogue, activate, epilogue, finish
from octavo.kernels.cuda.weight import PackedRows
from octavo.kernels.weight import BLOCK, Layout

FORMS = {Layout.F32: 0, Layout.S8: 1, Layout.U4: 2, Layout.F8: 3, Layout.NF4: 4, Layout.FP4: 4}


ROUNDED_ROWS = 64
"""From so many rows on x is rounded once, before the product, instead of in each tile."""


SHARED = 99 << 10
"""Bytes that every GPU since Ampere lets a program's threads share."""


@dataclass(frozen=True, slots=True)
class Tiles:
    """The shape of a product's work. splits: of K, by K and N alone where bits must not depend on M."""

    bm: int
    bn: int
    bk: int
    splits: int
    warps: int
    stages: int


@dataclass(frozen=True, slots=True)
class TilePolicy:
    """What tiles are chosen by.

    Attributes:
        sms: multiprocessors to keep busy.
        exact: one shape of tile for every M, so that a row's bits are its own.
        rounds: activations meet quantized weights as int8 per block of 32 (ops.linear's text);
            otherwise they stay as they are.
        fixed_split: KV positions of a split of attention where exact.
        wide: x is f32, which integers of 16 bits would round.
        shared: bytes of memory that a program's threads can share.
    """

    sms: int
    exact: bool = False
    rounds: bool = False
    fixed_split: int = 1024
    wide: bool = False
    shared: int = SHARED

    def rounding(self, m: int, layout: Layout) -> int:
        """product_kernel's ROUND. Both ways give the same numbers; exact does not rely on it."""
        if not (self.rounds and layout.quantized):
            return 0
        return 2 if self.exact or m >= ROUNDED_ROWS else 1

    def alone(self, part: PackedRows) -> bool:
        """Whether a single row has a kernel of its own: exact means one kernel for every M."""
        if self.exact or self.rounding(1, part.layout):
            return False
        return serves(part) and (part.dense or not self.wide)

    def tiles(self, m: int, n: int, k: int, layout: Layout = Layout.F32) -> Tiles:
        bm = 64 if self.exact else min(max(next_power_of_2(m), 16), 64)
        bn = 64 if bm <= 32 else 128
        bn = min(bn, max(next_power_of_2(n), 16))
        steps = cdiv(k, 256)
        programs = cdiv(n, bn) * (1 if self.exact else cdiv(m, bm))
        splits = max(min(2 * self.sms // programs, steps, 8), 1)
        bk = min(128 if layout is Layout.F8 else 64, max(next_power_of_2(k), 16))
        dense = not (layout.quantized or layout.coded)
        return Tiles(bm, bn, bk, splits, 4 if bm * bn <= 64 * 64 else 8, 4 if dense else 3)


@triton.jit
def dense_steps(acc, x, xp, row_ok, w, n, n_ok, k_len, first, last, BK: tl.constexpr):
    """acc + x[:, first:last] W[:, first:last]^T."""
    k = tl.arange(0, BK)
    for k0 in range(first, last, BK):
        ok = k0 + k < last
        a = tl.load(xp[:, None] + (k0 + k)[None, :], mask=row_ok[:, None] & ok[None, :], other=0.0)
        at = n[None, :].to(tl.int64) * k_len + (k0 + k)[:, None]
        b = tl.load(w + at, mask=ok[:, None] & n_ok[None, :], other=0.0)
        acc = tl.dot(a.to(b.dtype), b, acc, input_precision="ieee")
    return acc


@triton.jit
def quantized_steps(
    acc, x, xp, row_ok, w, scale, minimum, n, n_ok, n_len, first, last,
    FORM: tl.constexpr, MINIMUM: tl.constexpr, GROUP: tl.constexpr, ROUND: tl.constexpr,
):  # fmt: skip
    """acc + the products of blocks first..last - 1 of 32 columns, each in two halves of 16."""
    j = tl.arange(0, 16)
    for block in range(first, last):
        table = block // max(GROUP // 32, 1) * n_len
        at = xp[:, None] + (block * 32 + j)[None, :]
        low = tl.load(at, mask=row_ok[:, None], other=0.0)
        high = tl.load(at + 16, mask=row_ok[:, None], other=0.0)
        if ROUND:
            low_f, high_f = low.to(tl.float32), high.to(tl.float32)
            top = tl.maximum(tl.max(tl.abs(low_f), axis=1), tl.max(tl.abs(high_f), axis=1))
            # max passes over NaN; a row that holds one must not become finite
            d = tl.div_rn(top, 127.0) + 0.0 * (tl.sum(low_f, axis=1) + tl.sum(high_f, axis=1))
            whole = tl.where(d == 0.0, 1.0, d)[:, None] + tl.zeros_like(low_f)
            low = round_nearest(tl.div_rn(low_f, whole)).to(low.dtype)
            high = round_nearest(tl.div_rn(high_f, whole)).to(high.dtype)
        if FORM == 2:  # a byte holds columns j and j + 16
            bytes_ = tl.load(w + (block * n_len + n[None, :]) * 16 + j[:, None], mask=n_ok[None, :], other=0)
            w_low, w_high = (bytes_ & 15).to(low.dtype), (bytes_ >> 4).to(low.dtype)
        else:
            here = w + (block * n_len + n[None, :]) * 32 + j[:, None]
            w_low = tl.load(here, mask=n_ok[None, :], other=0).to(low.dtype)
            w_high = tl.load(here + 16, mask=n_ok[None, :], other=0).to(low.dtype)
        if GROUP == 16:  # each half of the block has a scale of its own
            s_at = scale + block * 2 * n_len + n
            part = tl.dot(low, w_low, input_precision="ieee")
            part = part * tl.load(s_at, mask=n_ok, other=0.0).to(tl.float32)[None, :]
            s_high = tl.load(s_at + n_len, mask=n_ok, other=0.0).to(tl.float32)
            part += tl.dot(high, w_high, input_precision="ieee") * s_high[None, :]
        else:
            part = tl.dot(low, w_low, input_precision="ieee")
            part = tl.dot(high, w_high, part, input_precision="ieee")
            part = part * tl.load(scale + table + n, mask=n_ok, other=0.0).to(tl.float32)[None, :]
        if MINIMUM and GROUP == 16:
            m_at = minimum + block * 2 * n_len + n
            m = tl.load(m_at, mask=n_ok, other=0.0).to(tl.float32)
            part += tl.sum(low.to(tl.float32), axis=1)[:, None] * m[None, :]
            m = tl.load(m_at + n_len, mask=n_ok, other=0.0).to(tl.float32)
            part += tl.sum(high.to(tl.float32), axis=1)[:, None] * m[None, :]
        elif MINIMUM:  # the same for all columns of the block, so it meets the sum of x
            m = tl.load(minimum + table + n, mask=n_ok, other=0.0).to(tl.float32)
            sums = tl.sum(low.to(tl.float32), axis=1) + tl.sum(high.to(tl.float32), axis=1)
            part += sums[:, None] * m[None, :]
        if ROUND:
            part = part * d[:, None]
        acc += part
    return acc


@triton.jit
def steps(
    x, xp, dp, x_rows, row_ok, w, scale, minimum, code, bias, n, n_ok, n_len, k_len, first, last,
    FORM: tl.constexpr, MINIMUM: tl.constexpr, GROUP: tl.constexpr, ROUND: tl.constexpr,
    BIAS: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr,
):  # fmt: skip
    """x W^T [BM, BN] of rows n of W over steps first..last - 1, in f32, and the bias."""
    acc = tl.zeros([BM, BN], tl.float32)
    if FORM == 0:
        acc = dense_steps(acc, x, xp, row_ok, w, n, n_ok, k_len, first, last, BK)
    elif FORM == 3:  # GROUP: not 0 where there is more than one scale a row
        acc = f8_steps(acc, x, xp, row_ok, w, scale, n, n_ok, n_len, k_len, first, last, GROUP, BK)
    elif FORM == 4:
        acc = nf4_steps(acc, x, xp, row_ok, w, scale, code, n, n_ok, n_len, first, last)
    elif ROUND == 2:
        acc = integer_steps(
            acc, xp, dp, x_rows, row_ok, w, scale, minimum, n, n_ok, n_len, first, last, FORM, MINIMUM, GROUP
        )
    else:
        acc = quantized_steps(
            acc, x, xp, row_ok, w, scale, minimum, n, n_ok, n_len, first, last, FORM, MINIMUM, GROUP, ROUND
        )
    if BIAS:
        acc += tl.load(bias + n, mask=n_ok, other=0.0)[None, :]
    return acc


@triton.jit(do_not_specialize=["m_len", "x_rows", "tiles", "m_tiles"])
def product_kernel(
    x, d, w, scale, minimum, code, y, bias, residual, rows_of, expert_of, factor, softcap,
    m_len, n_len, k_len, width, x_rows, stride_x, stride_y, stride_split, stride_residual, tiles,
    m_tiles, n_tiles, per_split, expert_w, expert_s,
    FORM: tl.constexpr, MINIMUM: tl.constexpr, GROUP: tl.constexpr, ROUND: tl.constexpr,
    EXPERTS: tl.constexpr, SHARED: tl.constexpr, SPLITS: tl.constexpr, GATED: tl.constexpr,
    BIAS: tl.constexpr, KIND: tl.constexpr, RESIDUAL: tl.constexpr, SCALE: tl.constexpr,
    SOFTCAP: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr,
):  # fmt: skip
    """Tiles of y; see the module's text.

    m_len rows of x, n_len rows of W, width columns of y (n_len / 2 where GATED and SPLITS is 1).
    per_split: columns (dense, F8) or blocks of 32 (quantized) or of 64 (NF4) of a split.
    GROUP: columns of integers that share a scale; of F8 whether there are several.
    ROUND: 0 x stays as it is, 1 it is rounded in each tile, 2 it was (x int8, d its steps; integer.py).
    EXPERTS: rows_of [m_tiles * BM] are the rows of y that a tile computes, from row rows_of // SHARED
    of x, with the weights of expert_of [m_tiles]; a row >= m_len, or an expert < 0, is nobody's.
    """
    k_end = k_len if FORM == 0 or FORM == 3 else k_len // (64 if FORM == 4 else 32)
    for tile in range(tl.program_id(0), tiles, tl.num_programs(0)):
        split = tile % SPLITS
        m_tile = (tile // SPLITS) % m_tiles
        n = (tile // SPLITS // m_tiles) * BN + tl.arange(0, BN)
        n_ok = n < width
        out_row = m_tile * BM + tl.arange(0, BM)
        base_w, base_s, base_m = w, scale, minimum
        used = True
        if EXPERTS:  # the number of tiles is known by shapes alone: some are nobody's
            expert = tl.load(expert_of + m_tile)
            used = expert >= 0
            out_row = tl.load(rows_of + out_row)
            safe = tl.maximum(expert, 0).to(tl.int64)
            base_w += safe * expert_w
            base_s += safe * expert_s
            base_m += safe * expert_s
        if used:
            row_ok = out_row < m_len
            xp = x + (out_row // SHARED).to(tl.int64) * stride_x
            dp = d + out_row // SHARED
            first = split * per_split
            last = tl.minimum(first + per_split, k_end)
            acc = steps(
                x, xp, dp, x_rows, row_ok, base_w, base_s, base_m, code, bias, n, n_ok, n_len, k_len,
                first, last, FORM, MINIMUM, GROUP, ROUND, BIAS, BM, BN, BK,
            )  # fmt: skip
            if GATED:  # the first half of W's rows are gates: they meet the others here, unstored
                up = steps(
                    x, xp, dp, x_rows, row_ok, base_w, base_s, base_m, code, bias, n + width, n_ok, n_len,
                    k_len, first, last, FORM, MINIMUM, GROUP, ROUND, BIAS, BM, BN, BK,
                )  # fmt: skip
                acc = activate(acc, KIND) * up
                acc = finish(acc, 0, factor, softcap, SCALE, SOFTCAP)
            else:
                acc = finish(acc, KIND, factor, softcap, SCALE, SOFTCAP)
            inside = row_ok[:, None] & n_ok[None, :]
            row = out_row[:, None].to(tl.int64)
            if RESIDUAL:  # last, as ops.linear says: it is neither scaled nor capped
                added = tl.load(residual + row * stride_residual + n[None, :], mask=inside, other=0.0)
                acc += added.to(tl.float32)
            at = split.to(tl.int64) * stride_split + row * stride_y + n[None, :]
            tl.store(y + at, acc.to(y.dtype.element_ty), mask=inside)


@dataclass(frozen=True, slots=True, eq=False)
class ExpertTiles:
    """Which rows of y each tile of bm rows computes, and with whose weights (moe.assign).

    shared: so many adjacent rows of y are of one row of x.
    """

    rows_of: torch.Tensor
    expert_of: torch.Tensor
    bm: int
    shared: int = 1


@dataclass(frozen=True, slots=True)
class Cut:
    """How a product is cut. rounding: TilePolicy.rounding."""

    tiles: Tiles
    splits: int
    rounding: int


def product(
    x: torch.Tensor,
    part: PackedRows,
    y: torch.Tensor,
    end: Epilogue,
    policy: TilePolicy,
    experts: ExpertTiles | None = None,
    whole: RoundedRows | None = None,
) -> torch.Tensor:
    """Fill y [M, width] with the epilogue of x W^T. Returns y.

    Args:
        x [M / experts.shared, K], rows adjacent in memory.
        whole: x rounded already, if it was.
        experts: part holds [E, ...] weights; without: one.
    """
    m = y.shape[0]
    if not m:
        return y
    if experts is None and m == 1 and policy.alone(part):  # nothing to reuse: no tensor cores (gemv.py)
        return row_product(x, part, y, end, policy.sms)
    tiles = policy.tiles(m, part.rows, part.columns, part.layout)
    splits = tiles.splits if experts is None else 1
    rounding = policy.rounding(m, part.layout)
    steps_of_x = None
    if rounding == 2:  # the norm before may have rounded x already, in its own kernel
        x, steps_of_x = round_rows(x) if whole is None else (whole.q, whole.d)
    work, xs = Cut(tiles, splits, rounding), (x, x if steps_of_x is None else steps_of_x)
    programs = 8 * policy.sms
    if splits == 1:  # a program has the whole sum of its tile, and can end it itself
        launch(xs, part, y[None], end, work, programs, experts)
        return y
    z = torch.empty((splits, m, part.rows), device=x.device)
    launch(xs, part, z, Epilogue(), work, programs, None)
    return epilogue(z, y, end)


def launch(
    xs: tuple[torch.Tensor, torch.Tensor], part: PackedRows, y: torch.Tensor, end: Epilogue, work: Cut,
    programs: int, experts: ExpertTiles | None,
) -> None:  # fmt: skip
    """y [splits, M, width]; xs: x and, where rounding is 2, its steps. programs: the most."""
    (x, d), tiles, splits = xs, work.tiles, work.splits
    _, m, width = y.shape
    bm = tiles.bm if experts is None else experts.bm
    m_tiles = cdiv(m, bm) if experts is None else experts.expert_of.shape[0]
    n_tiles = cdiv(width, tiles.bn)
    count = splits * m_tiles * n_tiles
    step = BLOCK if part.quantized else NF4_GROUP if part.layout.nibbles else tiles.bk
    blocks = part.quantized or part.layout.nibbles
    per_split = cdiv(cdiv(part.columns, step), splits) * (1 if blocks else step)
    several = part.scale is not None and part.scale.shape[-2] > 1
    group = int(several) if part.layout is Layout.F8 else part.group
    scale = x if part.scale is None else part.scale
    table = 0 if part.scale is None else part.scale.stride(0)
    product_kernel[(min(count, programs),)](
        x, d, part.values, scale, x if part.minimum is None else part.minimum,
        x if part.code is None else part.code, y, x if end.bias is None else end.bias,
        x if end.residual is None else end.residual,
        x if experts is None else experts.rows_of, x if experts is None else experts.expert_of,
        end.scale, end.softcap or 1.0,
        m, part.rows, part.columns, width, x.shape[0], x.stride(0), y.stride(1), y.stride(0),
        0 if end.residual is None else end.residual.stride(0), count, m_tiles, n_tiles, per_split,
        part.values.stride(0), table,
        FORM=FORMS[part.layout], MINIMUM=part.minimum is not None, GROUP=group,
        ROUND=work.rounding, EXPERTS=experts is not None, SHARED=1 if experts is None else experts.shared,
        SPLITS=splits, BM=bm, BN=tiles.bn, BK=tiles.bk, num_warps=tiles.warps, num_stages=tiles.stages,
        **end.flags,
    )  # fmt: skip


@triton.jit
def widen_kernel(
    w, scale, minimum, ids, added, y, n_len, blocks, factor,
    FORM: tl.constexpr, MINIMUM: tl.constexpr, GROUP: tl.constexpr, IDS: tl.constexpr, ADD: tl.constexpr,
    BN: tl.constexpr,
):  # fmt: skip
    """y[i] = factor * row ids[i] (or i) of W, + added[i]: BN blocks of 32 of one row a program."""
    row = tl.program_id(0).to(tl.int64)
    n = tl.load(ids + row).to(tl.int64) if IDS else row
    block = tl.program_id(1) * BN + tl.arange(0, BN)
    j = tl.arange(0, 32)
    ok = (block < blocks)[:, None] & (j >= 0)[None, :]
    place = block.to(tl.int64)[:, None] * n_len + n
    if FORM == 2:
        packed = tl.load(w + place * 16 + (j % 16)[None, :], mask=ok, other=0)
        q = tl.where(j[None, :] < 16, packed & 15, packed >> 4).to(tl.float32)
    else:
        q = tl.load(w + place * 32 + j[None, :], mask=ok, other=0).to(tl.float32)
    at = (block // max(GROUP // 32, 1)).to(tl.int64)[:, None] * n_len + n
    if GROUP == 16:
        at = (block.to(tl.int64)[:, None] * 2 + (j // 16)[None, :]) * n_len + n
    v = q * tl.load(scale + at + 0 * j[None, :], mask=ok, other=0.0).to(tl.float32)
    if MINIMUM:
        v += tl.load(minimum + at + 0 * j[None, :], mask=ok, other=0.0).to(tl.float32)
    v = v * factor
    out = row * blocks * 32 + block[:, None] * 32 + j[None, :]
    if ADD:
        v += tl.load(added + out, mask=ok, other=0.0).to(tl.float32)
    tl.store(y + out, v.to(y.dtype.element_ty), mask=ok)


def widen(
    part: PackedRows,
    dtype: torch.dtype,
    ids: torch.Tensor | None = None,
    factor: float = 1.0,
    added: torch.Tensor | None = None,
) -> torch.Tensor:
    """Rows ids (all where None) of a part that is not dense, as numbers [rows, K]."""
    rows = part.rows if ids is None else ids.shape[0]
    blocks = part.columns // BLOCK
    y = torch.empty((rows, part.columns), dtype=dtype, device=part.values.device)
    if part.order is not None:
        packed = widen(replace(part, order=None), dtype, ids, factor)
        y.index_copy_(1, part.order, packed)
        return y if added is None else y + added
    if not part.quantized:
        return widen_coded(part, y, ids, factor, added)
    bn = min(next_power_of_2(blocks), 32)
    if rows:
        widen_kernel[(rows, cdiv(blocks, bn))](
            part.values, part.scale, part.values if part.minimum is None else part.minimum,
            part.values if ids is None else ids, y if added is None else added, y,
            part.rows, blocks, factor,
            FORM=FORMS[part.layout], MINIMUM=part.minimum is not None, GROUP=part.group,
            IDS=ids is not None, ADD=added is not None, BN=bn,
        )  # fmt: skip
    return y
