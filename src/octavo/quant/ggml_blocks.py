"""GGML's blocks, made of f32: what formats/ggml.py reads.

Q4_0, Q4_1, Q5_0 and Q8_0 have the bytes of ggml's own reference quantizers (ggml-quants.c,
quantize_row_*_ref). Q4_K and Q6_K have two levels of scales: here those of each group are searched for, by
least squares over a number of first guesses, weighted by |w|, and then rounded themselves; ggml searches
otherwise, so bytes differ, and errors are alike.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from octavo.kernels.weight import F32Array
from octavo.quant.packing import nibbles

U8 = npt.NDArray[np.uint8]
Blocks = npt.NDArray[Any]
_GUESSES = np.linspace(0.85, 1.1, 16, dtype=np.float32)
"""Of a group's scale, as shares of what its range asks for."""


def _inverse(d: F32Array) -> F32Array:
    return np.divide(np.float32(1), d, out=np.zeros_like(d), where=d != 0)


def _largest(x: F32Array) -> F32Array:
    """The number of the largest size of each block, with its sign: [..., 1]."""
    return np.take_along_axis(x, np.abs(x).argmax(axis=-1, keepdims=True), axis=-1)


def q4_0(x: F32Array, out: Blocks) -> None:
    """x [..., 32] to blocks [...]."""
    d = _largest(x) / np.float32(-8)
    q = np.trunc(x * _inverse(d) + np.float32(8.5)).astype(np.uint8).clip(0, 15)
    out["d"], out["q"] = d[..., 0], nibbles(q)


def q4_1(x: F32Array, out: Blocks) -> None:
    low = x.min(axis=-1, keepdims=True)
    d = (x.max(axis=-1, keepdims=True) - low) / np.float32(15)
    q = np.trunc((x - low) * _inverse(d) + np.float32(0.5)).astype(np.uint8).clip(0, 15)
    out["d"], out["m"], out["q"] = d[..., 0], low[..., 0], nibbles(q)


def q5_0(x: F32Array, out: Blocks) -> None:
    d = _largest(x) / np.float32(-16)
    q = np.trunc(x * _inverse(d) + np.float32(16.5)).astype(np.uint8).clip(0, 31)
    out["d"] = d[..., 0]
    out["q"][..., :4] = np.packbits(q >> np.uint8(4), axis=-1, bitorder="little")
    out["q"][..., 4:] = nibbles(q & np.uint8(15))


def q8_0(x: F32Array, out: Blocks) -> None:
    """Halves are rounded away from zero."""
    d = np.abs(x).max(axis=-1, keepdims=True) / np.float32(127)
    shares = x * _inverse(d)
    out["d"] = d[..., 0]
    out["q"] = np.copysign(np.floor(np.abs(shares) + np.float32(0.5)), shares).astype(np.int8)


def q4_k(x: F32Array, out: Blocks) -> None:
    """x [..., 256] to blocks [...]."""
    groups = x.reshape(*x.shape[:-1], 8, 32)
    scale, low = _affine(groups)
    d, dmin = (part.max(axis=-1, keepdims=True) / np.float32(63) for part in (scale, low))
    d, dmin = (part.astype(np.float16).astype(np.float32) for part in (d, dmin))
    s, m = (np.rint(part * _inverse(u)).clip(0, 63).astype(np.uint8) for part, u in ((scale, d), (low, dmin)))
    step, offset = (d * s)[..., None], (dmin * m)[..., None]
    q = np.rint((groups + offset) * _inverse(step)).clip(0, 15).astype(np.uint8)
    out["d"], out["dmin"] = d[..., 0], dmin[..., 0]
    high = np.uint8(4), np.uint8(6)
    first = s[..., :4] | s[..., 4:] >> high[0] << high[1]
    second = m[..., :4] | m[..., 4:] >> high[0] << high[1]
    third = s[..., 4:] & np.uint8(15) | (m[..., 4:] & np.uint8(15)) << np.uint8(4)
    out["scales"] = np.concatenate([first, second, third], axis=-1)
    out["q"] = (q[..., ::2, :] | q[..., 1::2, :] << np.uint8(4)).reshape(*q.shape[:-2], 128)


def _affine(x: F32Array) -> tuple[F32Array, F32Array]:
    """(scale, minimum) [..., groups] of 0 <= q <= 15 and x ~ scale q - minimum, both at least 0."""
    w = np.sqrt(np.square(x).mean(axis=-1, keepdims=True)) + np.abs(x)
    low = np.minimum(x.min(axis=-1, keepdims=True), 0)
    reach = x.max(axis=-1, keepdims=True) - low
    best, least = (np.zeros_like(reach), np.zeros_like(reach)), np.full_like(reach, np.inf)
    total, first = w.sum(axis=-1, keepdims=True), (w * x).sum(axis=-1, keepdims=True)
    for guess in _GUESSES:
        q = np.rint((x - low) * _inverse(reach * guess / np.float32(15))).clip(0, 15)
        sq, sqq = (w * q).sum(axis=-1, keepdims=True), (w * q * q).sum(axis=-1, keepdims=True)
        sqx = (w * q * x).sum(axis=-1, keepdims=True)
        determinant = total * sqq - sq * sq
        many = determinant > 1e-5 * total * sqq  # more than one number
        determinant = _inverse(determinant)
        scale, offset = (total * sqx - sq * first) * determinant, (sqq * first - sq * sqx) * determinant
        plain = sqx * _inverse(sqq)  # where the offset must not be above 0
        offset = np.where(many, offset, low)
        scale = np.where(many, scale, (sqx - low * sq) * _inverse(sqq))
        scale, offset = np.where(offset > 0, plain, scale), np.minimum(offset, 0)
        error = (w * np.square(scale * q + offset - x)).sum(axis=-1, keepdims=True)
        better = (error < least) & (scale >= 0)
        best = np.where(better, scale, best[0]), np.where(better, -offset, best[1])
        least = np.where(better, error, least)
    return best[0][..., 0], best[1][..., 0]


def q6_k(x: F32Array, out: Blocks) -> None:
    """x [..., 256] to blocks [...]."""
    groups = x.reshape(*x.shape[:-1], 16, 16)
    scale = _linear(groups)
    d = (_largest(scale) / np.float32(-128)).astype(np.float16).astype(np.float32)
    s = np.rint(scale * _inverse(d)).clip(-128, 127).astype(np.int8)
    step = (d * s)[..., None]
    q = (np.rint(groups * _inverse(step)).clip(-32, 31) + 32).astype(np.uint8)
    halves = q.reshape(*x.shape[:-1], 2, 128)
    low = halves & np.uint8(15)
    quarters = (halves >> np.uint8(4)).reshape(*x.shape[:-1], 2, 4, 32)
    high = np.zeros((*x.shape[:-1], 2, 32), np.uint8)
    for i in range(4):
        high |= quarters[..., i, :] << np.uint8(2 * i)
    out["d"], out["scales"] = d[..., 0], s
    out["ql"] = (low[..., :64] | low[..., 64:] << np.uint8(4)).reshape(*x.shape[:-1], 128)
    out["qh"] = high.reshape(*x.shape[:-1], 64)


def _linear(x: F32Array) -> F32Array:
    """scale [..., groups] of -32 <= q <= 31 and x ~ scale q."""
    w = np.square(x)
    most = _largest(x)
    best, least = np.zeros_like(most), np.full_like(most, np.inf)
    for guess in _GUESSES:
        q = np.rint(x * _inverse(most * guess / np.float32(-32))).clip(-32, 31)
        scale = (w * q * x).sum(axis=-1, keepdims=True) * _inverse((w * q * q).sum(axis=-1, keepdims=True))
        error = (w * np.square(scale * q - x)).sum(axis=-1, keepdims=True)
        best, least = np.where(error < least, scale, best), np.minimum(error, least)
    return best[..., 0]
