"""Triton kernels that split, normalize and rotate q and k, and store k and v in their pages."""

from __future__ import annotations

from dataclasses import dataclass

import torch
import triton
import triton.language as tl

from octavo.kernels.cuda.integer import round_nearest
from octavo.kernels.cuda.kv import CudaKVLayer
from octavo.kernels.cuda.launch import cdiv, next_power_of_2
from octavo.kernels.cuda.order import chained, in_turn
from octavo.kernels.ops import AttentionSpec


@triton.jit
def rotated(
    x, at, i, own, ok, position, cos, sin, half, gain, gain_at, rms, NORM: tl.constexpr, PAIRS: tl.constexpr
):
    """Heads' elements i at x + at, rotated where i < 2 half; own: they themselves, normalized."""
    if PAIRS:
        shift = tl.where(i % 2 == 0, 1, -1)
        angle = i // 2
        sign = tl.where(i % 2 == 0, -1.0, 1.0)
    else:
        shift = tl.where(i < half, half, -half)
        angle = tl.where(i < half, i, i - half)
        sign = tl.where(i < half, -1.0, 1.0)
    turned = ok & (i >= 0) & (i < 2 * half)
    other = tl.load(x + at + shift, mask=turned, other=0.0).to(tl.float32)
    if NORM:
        other = other * rms * tl.load(gain + gain_at + shift, mask=turned, other=0.0)
    within = (i >= 0) & (i < 2 * half)
    c = tl.load(cos + position * half + angle, mask=within, other=1.0)
    s = tl.load(sin + position * half + angle, mask=within, other=0.0)
    return own * c + sign * other * s


@triton.jit
def store_heads(pages, scales, v, head, i, ok, slot, heads, page_size, dim, INT8: tl.constexpr):
    """The heads [H, D] of one token to its place; a slot < 0 is nobody's."""
    if slot >= 0:
        page = (slot // page_size).to(tl.int64)
        place = (page * heads + head) * page_size + slot % page_size
        if INT8:
            v = tl.where(ok, v, 0.0)
            # max passes over NaN, the sum does not: a head that holds NaN is read back as NaN
            d = tl.div_rn(tl.max(tl.abs(v), axis=1), 127.0) + 0.0 * tl.sum(v, axis=1)
            tl.store(scales + place, d, mask=head < heads)
            v = round_nearest(tl.div_rn(v, tl.where(d == 0.0, 1.0, d)[:, None] + tl.zeros_like(v)))
            v = tl.where(v == v, v, 0.0)
        tl.store(pages + place[:, None] * dim + i, v.to(pages.dtype.element_ty), mask=ok)


@triton.jit
def side(
    x, position, cos, sin, gain, heads, dim, half, eps, head, i,
    ROTATE: tl.constexpr, PAIRS: tl.constexpr, NORM: tl.constexpr, ALL_HEADS: tl.constexpr,
):  # fmt: skip
    """q or k of one token: its heads [H, D] normalized and rotated, and which elements exist."""
    ok = (head < heads)[:, None] & (i < dim)
    at = head[:, None] * dim + i
    v = tl.load(x + at, mask=ok, other=0.0).to(tl.float32)
    rms = 1.0
    gain_at = i
    if NORM:
        if ALL_HEADS:
            gain_at = at
            rms = 1.0 / tl.sqrt(tl.sum(tl.sum(v * v, axis=1), axis=0) / (heads * dim) + eps)
        else:
            gain_at = i + 0 * head[:, None]
            rms = (1.0 / tl.sqrt(tl.sum(v * v, axis=1) / dim + eps))[:, None]
        v = v * rms * tl.load(gain + gain_at, mask=ok, other=0.0)
    if ROTATE:
        v = rotated(x, at, i, v, ok, position, cos, sin, half, gain, gain_at, rms, NORM, PAIRS)
    return v, ok, at


@triton.jit
def append_kernel(
    qkv, q, k_pages, v_pages, k_scales, v_scales, slots, positions, cos, sin, q_gain, k_gain,
    q_heads, kv_heads, dim, v_dim, half, page_size, stride_qkv, eps,
    ROTATE: tl.constexpr, PAIRS: tl.constexpr, NORM: tl.constexpr, ALL_HEADS: tl.constexpr,
    FIRST: tl.constexpr, INT8: tl.constexpr, HQ: tl.constexpr, HK: tl.constexpr,
    D: tl.constexpr, DV: tl.constexpr, CHAINED: tl.constexpr,
):  # fmt: skip
    """A program is q, or k, or v of one token; FIRST is 1 where there is no q."""
    in_turn(CHAINED)
    token = tl.program_id(0).to(tl.int64)
    what = tl.program_id(1) + FIRST
    row = qkv + token * stride_qkv
    position = tl.maximum(tl.load(positions + token), 0).to(tl.int64)
    slot = tl.load(slots + token)
    i = tl.arange(0, D)[None, :]
    if what == 0:
        q_head = tl.arange(0, HQ)
        x, x_ok, at = side(
            row, position, cos, sin, q_gain, q_heads, dim, half, eps, q_head, i,
            ROTATE, PAIRS, NORM, ALL_HEADS,
        )  # fmt: skip
        tl.store(q + token * q_heads * dim + at, x.to(q.dtype.element_ty), mask=x_ok)
    elif what == 1:
        k_head = tl.arange(0, HK)
        k, k_ok, _ = side(
            row + q_heads * dim, position, cos, sin, k_gain, kv_heads, dim, half, eps, k_head, i,
            ROTATE, PAIRS, NORM, ALL_HEADS,
        )  # fmt: skip
        store_heads(k_pages, k_scales, k, k_head, i, k_ok, slot, kv_heads, page_size, dim, INT8)
    else:
        v_head, j = tl.arange(0, HK), tl.arange(0, DV)[None, :]
        v_ok = (v_head < kv_heads)[:, None] & (j < v_dim)
        start = row + (q_heads + kv_heads) * dim
        v = tl.load(start + v_head[:, None] * v_dim + j, mask=v_ok, other=0.0).to(tl.float32)
        store_heads(v_pages, v_scales, v, v_head, j, v_ok, slot, kv_heads, page_size, v_dim, INT8)


@dataclass(frozen=True, slots=True, eq=False)
class DeviceRotary:
    """How far tokens turn: positions [T] in cos, sin [positions, half]; kernels.types.Rotary on a device."""

    positions: torch.Tensor
    cos: torch.Tensor
    sin: torch.Tensor
    interleaved: bool


@dataclass(frozen=True, slots=True, eq=False)
class Gains:
    """kernels.types.HeadNorms on a device, both sides."""

    q: torch.Tensor
    k: torch.Tensor
    eps: float


def append(
    qkv: torch.Tensor,
    kv: CudaKVLayer,
    spec: AttentionSpec,
    slots: torch.Tensor,
    turns: DeviceRotary | None,
    gains: Gains | None,
) -> torch.Tensor:
    """ops.rotary_append."""
    q = torch.empty((qkv.shape[0], spec.num_heads * spec.head_dim), dtype=qkv.dtype, device=qkv.device)
    launch_append(qkv, q, kv, spec, slots, turns, gains)
    return q


def append_kv(x: torch.Tensor, kv: CudaKVLayer, spec: AttentionSpec, slots: torch.Tensor) -> None:
    """ops.append."""
    launch_append(x, None, kv, spec, slots, None, None)


def launch_append(
    x: torch.Tensor, q: torch.Tensor | None, kv: CudaKVLayer, spec: AttentionSpec, slots: torch.Tensor,
    turns: DeviceRotary | None, gains: Gains | None,
) -> None:  # fmt: skip
    """Rows x of q, k and v to q and to pages; q None: they are of k and v alone."""
    none = DeviceRotary(slots, slots, slots, False), Gains(slots, slots, 0.0)
    turn, gain = none[0] if turns is None else turns, none[1] if gains is None else gains
    q_heads, int8 = 0 if q is None else spec.num_heads, kv.k.scales is not None
    if x.shape[0]:
        append_kernel[(x.shape[0], 2 if q is None else 3)](
            x, x if q is None else q, kv.k.pages, kv.v.pages, kv.k.scales if int8 else slots,
            kv.v.scales if int8 else slots, slots, turn.positions, turn.cos, turn.sin, gain.q, gain.k,
            q_heads, spec.num_kv_heads, spec.head_dim, spec.v_head_dim,
            0 if turns is None else turns.cos.shape[1], kv.page_size, x.stride(0), gain.eps,
            ROTATE=turns is not None, PAIRS=turn.interleaved, NORM=gains is not None,
            ALL_HEADS=gains is not None and gains.q.shape[0] != spec.head_dim, INT8=int8,
            FIRST=int(q is None), HQ=next_power_of_2(q_heads), HK=next_power_of_2(spec.num_kv_heads),
            D=next_power_of_2(spec.head_dim), DV=next_power_of_2(spec.v_head_dim), num_warps=4,
            **chained(x),
        )  # fmt: skip


@triton.jit
def latent_side(front, back, position, cos, sin, heads, rank, half, head, i, PAIRS: tl.constexpr):
    """[latent part | rotated part] of the heads of one token: [H, D]."""
    here = (head < heads)[:, None]
    r = i - rank
    plain = tl.load(front + head[:, None] * rank + i, mask=here & (i < rank), other=0.0).to(tl.float32)
    at = head[:, None] * 2 * half + r
    turns = here & (r >= 0) & (r < 2 * half)
    v = tl.load(back + at, mask=turns, other=0.0).to(tl.float32)
    v = rotated(back, at, r, v, turns, position, cos, sin, half, cos, r, 1.0, False, PAIRS)
    return tl.where(i < rank, plain, v), here & (i < rank + 2 * half)


@triton.jit
def latent_kernel(
    q_latent, q_rope, latent, k_rope, q, pages, scales, slots, positions, cos, sin,
    heads, rank, half, page_size, PAIRS: tl.constexpr, INT8: tl.constexpr,
    BH: tl.constexpr, ONE: tl.constexpr, D: tl.constexpr,
):  # fmt: skip
    """Programs of BH heads of q each, and a last one for the key."""
    token = tl.program_id(0).to(tl.int64)
    block = tl.program_id(1)
    position = tl.maximum(tl.load(positions + token), 0).to(tl.int64)
    i = tl.arange(0, D)[None, :]
    if block < tl.num_programs(1) - 1:
        head = block * BH + tl.arange(0, BH)
        x, x_ok = latent_side(
            q_latent + token * heads * rank, q_rope + token * heads * 2 * half, position, cos, sin,
            heads, rank, half, head, i, PAIRS,
        )  # fmt: skip
        at = q + token * heads * (rank + 2 * half) + head[:, None] * (rank + 2 * half) + i
        tl.store(at, x.to(q.dtype.element_ty), mask=x_ok)
    else:
        one = tl.arange(0, ONE)
        k, k_ok = latent_side(
            latent + token * rank, k_rope + token * 2 * half, position, cos, sin, 1, rank, half, one, i, PAIRS
        )
        slot = tl.load(slots + token)
        store_heads(pages, scales, k, one, i, k_ok, slot, 1, page_size, rank + 2 * half, INT8)


def append_latent(
    queries: tuple[torch.Tensor, torch.Tensor],
    key: tuple[torch.Tensor, torch.Tensor],
    kv: CudaKVLayer,
    spec: AttentionSpec,
    slots: torch.Tensor,
    turns: DeviceRotary,
) -> torch.Tensor:
    """ops.latent_append; queries and key: each a latent part and one that turns."""
    tokens, latent = queries[0].shape[0], queries[0]
    q = torch.empty((tokens, spec.num_heads * spec.head_dim), dtype=latent.dtype, device=latent.device)
    int8 = kv.k.scales is not None
    block = min(next_power_of_2(spec.num_heads), 4)
    if tokens:
        latent_kernel[(tokens, cdiv(spec.num_heads, block) + 1)](
            *queries, *key, q, kv.k.pages, kv.k.scales if int8 else slots, slots, turns.positions,
            turns.cos, turns.sin, spec.num_heads, spec.v_head_dim, turns.cos.shape[1], kv.page_size,
            PAIRS=turns.interleaved, INT8=int8, BH=block, ONE=1, D=next_power_of_2(spec.head_dim),
            num_warps=4,
        )  # fmt: skip
    return q
