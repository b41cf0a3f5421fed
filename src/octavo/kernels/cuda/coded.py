"""Codes of floats (kernels/coded.py) in Triton: products' steps over K, and whole matrices widened.

E4M3 becomes f16 by its bits: sign and exponent-and-mantissa are moved to f16's places, and what they say
there is 2^-8 of the number; the scale makes up for it. That holds for subnormals, and asks nothing of
the GPU. NaN (0x7f, 0xff) would become 480: weights that hold it are refused when they are packed.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from octavo.kernels.coded import F8_GROUP, NF4_GROUP
from octavo.kernels.cuda.launch import cdiv
from octavo.kernels.cuda.weight import PackedRows


@triton.jit
def f8_part(codes):
    """2^-8 of the numbers, exactly, as f16."""
    bits = codes.to(tl.int16)
    return (((bits & 128) << 8) | ((bits & 127) << 7)).to(tl.float16, bitcast=True)


@triton.jit
def f8_steps(
    acc, x, xp, row_ok, w, scale, n, n_ok, n_len, k_len, first, last, GROUPED: tl.constexpr, BK: tl.constexpr
):
    """acc + x[:, first:last] W[:, first:last]^T. BK divides 128, and first is a multiple of it."""
    k = tl.arange(0, BK)
    for k0 in range(first, last, BK):
        ok = k0 + k < last
        a = tl.load(xp[:, None] + (k0 + k)[None, :], mask=row_ok[:, None] & ok[None, :], other=0.0)
        at = n[None, :].to(tl.int64) * k_len + (k0 + k)[:, None]
        b = f8_part(tl.load(w + at, mask=ok[:, None] & n_ok[None, :], other=0)).to(a.dtype)
        if GROUPED:
            s = tl.load(scale + (k0 // 128) * n_len + n, mask=n_ok, other=0.0)
            acc += tl.dot(a, b, input_precision="ieee") * (s * 256.0)[None, :]
        else:
            acc = tl.dot(a, b, acc, input_precision="ieee")
    if not GROUPED:
        acc = acc * (tl.load(scale + n, mask=n_ok, other=0.0) * 256.0)[None, :]
    return acc


@triton.jit
def nf4_steps(acc, x, xp, row_ok, w, scale, code, n, n_ok, n_len, first, last):
    """acc + the products of blocks first..last - 1 of 64 columns, each in two halves of 32."""
    j = tl.arange(0, 32)
    for block in range(first, last):
        at = xp[:, None] + (block * 64 + j)[None, :]
        low = tl.load(at, mask=row_ok[:, None], other=0.0)
        high = tl.load(at + 32, mask=row_ok[:, None], other=0.0)
        here = (block * n_len + n[None, :]).to(tl.int64) * 32 + j[:, None]
        packed = tl.load(w + here, mask=n_ok[None, :], other=0).to(tl.int32)
        w_low, w_high = tl.load(code + (packed & 15)), tl.load(code + (packed >> 4))
        part = tl.dot(low, w_low.to(low.dtype), input_precision="ieee")
        part = tl.dot(high, w_high.to(low.dtype), part, input_precision="ieee")
        acc += part * tl.load(scale + block * n_len + n, mask=n_ok, other=0.0)[None, :]
    return acc


@triton.jit
def widen_coded_kernel(
    w, scale, code, ids, added, y, n_len, k_len, factor,
    NF4: tl.constexpr, GROUP: tl.constexpr, IDS: tl.constexpr, ADD: tl.constexpr, BK: tl.constexpr,
):  # fmt: skip
    """y[i] = factor * row ids[i] (or i) of W, + added[i]: BK columns of one row a program. GROUP 0: a row."""
    row = tl.program_id(0).to(tl.int64)
    n = tl.load(ids + row).to(tl.int64) if IDS else row
    k = tl.program_id(1) * BK + tl.arange(0, BK)
    ok = k < k_len
    if NF4:
        packed = tl.load(w + ((k // 64) * n_len + n) * 32 + k % 32, mask=ok, other=0).to(tl.int32)
        v = tl.load(code + tl.where(k % 64 < 32, packed & 15, packed >> 4))
    else:
        v = f8_part(tl.load(w + n * k_len + k, mask=ok, other=0)).to(tl.float32) * 256.0
    group = k // GROUP if GROUP > 0 else 0 * k
    v = v * tl.load(scale + group * n_len + n, mask=ok, other=0.0) * factor
    if ADD:
        v += tl.load(added + row * k_len + k, mask=ok, other=0.0).to(tl.float32)
    tl.store(y + row * k_len + k, v.to(y.dtype.element_ty), mask=ok)


def widen_coded(
    part: PackedRows, y: torch.Tensor, ids: torch.Tensor | None, factor: float, added: torch.Tensor | None
) -> torch.Tensor:
    """gemm.widen of F8 and NF4: fill y [rows, K]."""
    assert part.scale is not None  # made by weight.pack
    nf4, block = part.layout.nibbles, 1024
    group = NF4_GROUP if nf4 else F8_GROUP if part.scale.shape[-2] > 1 else 0
    if y.shape[0]:
        widen_coded_kernel[(y.shape[0], cdiv(part.columns, block))](
            part.values, part.scale, part.scale if part.code is None else part.code,
            part.values if ids is None else ids, y if added is None else added, y,
            part.rows, part.columns, factor,
            NF4=nf4, GROUP=group, IDS=ids is not None, ADD=added is not None, BK=block,
        )  # fmt: skip
    return y
