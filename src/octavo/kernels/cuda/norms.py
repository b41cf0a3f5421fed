"""Triton kernels from rows to rows: norms with the addition before them, activations, epilogues."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
import triton
import triton.language as tl

from octavo.kernels.cuda.integer import RoundedRows, rounded
from octavo.kernels.cuda.launch import cdiv, next_power_of_2
from octavo.kernels.cuda.order import chained, in_turn
from octavo.kernels.ops import Activation

ACTIVATIONS = {a: i for i, a in enumerate(Activation)}


@triton.jit
def tanh(x):
    """2 sigmoid(2 x) - 1, which keeps its sign and saturates; relative error is lost near 0 only."""
    return 2.0 * tl.sigmoid(2.0 * x) - 1.0


@triton.jit
def activate(x, KIND: tl.constexpr):
    """Activation number KIND (ACTIVATIONS) of f32."""
    if KIND == 1:
        x = x * tl.sigmoid(x)
    elif KIND == 2:
        x = x * 0.5 * (1.0 + tl.erf(x * 0.7071067811865476))
    elif KIND == 3:
        x = x * tl.sigmoid(1.5957691216057308 * (x + 0.044715 * x * x * x))
    elif KIND == 4:
        x = tl.maximum(x, 0.0, propagate_nan=tl.PropagateNan.ALL)
    return x


@triton.jit(do_not_specialize=["rows"])
def norm_kernel(
    x, added, total, y, q, d, gain, bias, rows, width, eps,
    ADD: tl.constexpr, LAYER: tl.constexpr, BIAS: tl.constexpr, ROUND: tl.constexpr, BR: tl.constexpr,
    BLOCK: tl.constexpr, CHAINED: tl.constexpr,
):  # fmt: skip
    """BR rows a program: total = x + added where ADD, then y = norm of it; where ROUND, q and d are y
    rounded (integer.RoundedRows)."""
    in_turn(CHAINED)
    row = tl.program_id(0).to(tl.int64) * BR + tl.arange(0, BR)
    i = tl.arange(0, BLOCK)[None, :]
    at = row[:, None] * width + i
    inside = (row < rows)[:, None] & (i < width)
    v = tl.load(x + at, mask=inside, other=0.0).to(tl.float32)
    if ADD:
        v += tl.load(added + at, mask=inside, other=0.0).to(tl.float32)
        tl.store(total + at, v.to(total.dtype.element_ty), mask=inside)
        v = v.to(total.dtype.element_ty).to(tl.float32)
    if LAYER:
        v = tl.where(inside, v - (tl.sum(v, axis=1) / width)[:, None], 0.0)
    rms = tl.sqrt(tl.sum(v * v, axis=1) / width + eps)
    v = v / rms[:, None] * tl.load(gain + i, mask=i < width, other=0.0)
    if BIAS:
        v += tl.load(bias + i, mask=i < width, other=0.0)
    v = v.to(y.dtype.element_ty)
    tl.store(y + at, v, mask=inside)
    if ROUND:
        blocks = tl.reshape(tl.where(inside, v.to(tl.float32), 0.0), (BR, BLOCK // 32, 32))
        numbers, step = rounded(blocks, 2)
        tl.store(q + at, tl.reshape(numbers, (BR, BLOCK)).to(tl.int8), mask=inside)
        block = tl.arange(0, BLOCK // 32)[None, :]
        ok = (row < rows)[:, None] & (block * 32 < width)
        tl.store(d + block * rows + row[:, None], step, mask=ok)


@dataclass(frozen=True, slots=True, eq=False)
class RowNorm:
    """ops.rms_norm or, where layer, ops.layer_norm."""

    gain: torch.Tensor
    bias: torch.Tensor | None
    eps: float
    layer: bool


def norm(
    x: torch.Tensor, added: torch.Tensor | None, how: RowNorm, programs: int, rounds: bool = False
) -> tuple[torch.Tensor, torch.Tensor | RoundedRows]:
    """(x + added, its norm), both [rows, width]; added None: x itself is the first.

    Args:
        rounds: the norm comes rounded to int8 too, by the same kernel; width is a multiple of 32.
        programs: rows share a program where there are more than this many; 0: never (how a program
            adds its rows up depends on how many it has).
    """
    (rows, width), gain, bias = x.shape, how.gain, how.bias
    y = torch.empty_like(x)
    total = x if added is None else torch.empty_like(x)
    made = RoundedRows.of(y) if rounds else None
    if rows:
        block = next_power_of_2(width)
        br = 1 if programs == 0 else min(next_power_of_2(max(rows // programs, 1)), max(8192 // block, 1))
        norm_kernel[(cdiv(rows, br),)](
            x, x if added is None else added, total, y, y if made is None else made.q,
            gain if made is None else made.d, gain, gain if bias is None else bias, rows, width, how.eps,
            ADD=added is not None, LAYER=how.layer, BIAS=bias is not None, ROUND=rounds, BR=br, BLOCK=block,
            num_warps=min(max(br * block // 512, 1), 16), **chained(x),
        )  # fmt: skip
    return total, y if made is None else made


@triton.jit
def finish(z, KIND: tl.constexpr, scale, softcap, SCALE: tl.constexpr, SOFTCAP: tl.constexpr):
    """Steps 2 and 3 of ops.linear for a projection that is not gated."""
    z = activate(z, KIND)
    if SCALE:
        z = z * scale
    if SOFTCAP:
        z = softcap * tanh(z / softcap)
    return z


@triton.jit
def add_up(z, at, inside, stride_split, SPLITS: tl.constexpr):
    """Partial products at one place, splits ascending."""
    v = tl.load(z + at, mask=inside, other=0.0).to(tl.float32)
    for split in tl.static_range(1, SPLITS):
        v += tl.load(z + split * stride_split + at, mask=inside, other=0.0).to(tl.float32)
    return v


@triton.jit(do_not_specialize=["rows"])
def epilogue_kernel(
    z, y, bias, residual, scale, softcap, width, stride_z, stride_split, stride_y, stride_residual, rows,
    SPLITS: tl.constexpr, BIAS: tl.constexpr, KIND: tl.constexpr, GATED: tl.constexpr,
    RESIDUAL: tl.constexpr, SCALE: tl.constexpr, SOFTCAP: tl.constexpr,
    BR: tl.constexpr, BLOCK: tl.constexpr, CHAINED: tl.constexpr,
):  # fmt: skip
    """y = ops.linear's epilogue of the sum of SPLITS partial products z."""
    in_turn(CHAINED)
    row = (tl.program_id(0) * BR + tl.arange(0, BR))[:, None].to(tl.int64)
    i = (tl.program_id(1) * BLOCK + tl.arange(0, BLOCK))[None, :]
    inside = (row < rows) & (i < width)
    v = add_up(z, row * stride_z + i, inside, stride_split, SPLITS)
    if BIAS:
        v += tl.load(bias + i, mask=i < width, other=0.0)
    if GATED:
        up = add_up(z, row * stride_z + i + width, inside, stride_split, SPLITS)
        if BIAS:
            up += tl.load(bias + i + width, mask=i < width, other=0.0)
        v = finish(activate(v, KIND) * up, 0, scale, softcap, SCALE, SOFTCAP)
    else:
        v = finish(v, KIND, scale, softcap, SCALE, SOFTCAP)
    if RESIDUAL:
        v += tl.load(residual + row * stride_residual + i, mask=inside, other=0.0).to(tl.float32)
    tl.store(y + row * stride_y + i, v.to(y.dtype.element_ty), mask=inside)


@dataclass(frozen=True, slots=True, eq=False)
class Epilogue:
    """Steps 1 to 4 of ops.linear, without the product."""

    bias: torch.Tensor | None = None
    activation: Activation = Activation.NONE
    gated: bool = False
    scale: float = 1.0
    softcap: float | None = None
    residual: torch.Tensor | None = None

    @property
    def sums(self) -> bool:
        """Whether step 4, if anything, is all that there is."""
        plain = self.bias is None and self.activation is Activation.NONE and not self.gated
        return plain and self.scale == 1.0 and self.softcap is None

    @property
    def flags(self) -> dict[str, Any]:
        """What kernels that end with finish() are compiled for."""
        return {
            "BIAS": self.bias is not None, "KIND": ACTIVATIONS[self.activation], "GATED": self.gated,
            "RESIDUAL": self.residual is not None, "SCALE": self.scale != 1.0,
            "SOFTCAP": self.softcap is not None,
        }  # fmt: skip


def epilogue(z: torch.Tensor, y: torch.Tensor, end: Epilogue) -> torch.Tensor:
    """Fill y [rows, width] from z [splits, rows, width or 2 width]. Returns y."""
    splits, rows, _ = z.shape
    width = y.shape[1]
    block = min(next_power_of_2(width), 512)
    br = min(next_power_of_2(rows), max(1024 // block, 1) if rows < 4096 else 4)
    if rows:
        epilogue_kernel[(cdiv(rows, br), cdiv(width, block))](
            z, y, z if end.bias is None else end.bias, z if end.residual is None else end.residual,
            end.scale, end.softcap or 1.0, width, z.stride(1), z.stride(0), y.stride(0),
            0 if end.residual is None else end.residual.stride(0), rows,
            SPLITS=splits, BR=br, BLOCK=block, **end.flags, **chained(y),
        )  # fmt: skip
    return y


@triton.jit
def gate_kernel(x, gate, y, width, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    i = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    share = tl.sigmoid(tl.load(gate + row).to(tl.float32))
    v = tl.load(x + row * width + i, mask=i < width, other=0.0).to(tl.float32)
    tl.store(y + row * width + i, (share * v).to(y.dtype.element_ty), mask=i < width)


def gate_rows(x: torch.Tensor, gate: torch.Tensor) -> torch.Tensor:
    """sigmoid(gate[t, 0]) * x[t]."""
    y = torch.empty_like(x)
    block = min(next_power_of_2(x.shape[1]), 1024)
    if x.shape[0]:
        gate_kernel[(x.shape[0], cdiv(x.shape[1], block))](x, gate, y, x.shape[1], BLOCK=block)
    return y
