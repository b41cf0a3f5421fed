"""Splits of attention folded into one (flash decoding, Dao et al. 2023). Scores are in powers of two."""

from __future__ import annotations

import triton
import triton.language as tl

from octavo.kernels.cuda.order import in_turn


@triton.jit
def fold(total, m_total, l_total, acc, m, l):
    """Two partial softmaxes as one, the earlier positions first."""
    top = tl.maximum(m_total, m)
    safe = tl.where(top == -float("inf"), 0.0, top)
    a, b = tl.exp2(m_total - safe), tl.exp2(m - safe)
    return total * a[:, None] + acc * b[:, None], top, l_total * a + l * b


@triton.jit
def sunk(total, m_total, l_total, sink, SINKS: tl.constexpr):
    """A softmax's result; SINKS: sink is one more score, whose value is 0."""
    if SINKS:
        sink = sink * 1.4426950408889634
        top = tl.maximum(m_total, sink)
        safe = tl.where(top == -float("inf"), 0.0, top)
        total = total * tl.exp2(m_total - safe)[:, None]
        l_total = l_total * tl.exp2(m_total - safe) + tl.exp2(sink - safe)
    return total / tl.where(l_total == 0.0, 1.0, l_total)[:, None]


@triton.jit(do_not_specialize=["tokens"])
def merge_kernel(
    part, part_m, part_l, positions, slots, sinks, y, tokens, q_heads, v_dim,
    SPLITS: tl.constexpr, FIXED: tl.constexpr, SINKS: tl.constexpr, BS: tl.constexpr, DV: tl.constexpr,
    CHAINED: tl.constexpr,
):  # fmt: skip
    """One token and head a program: its splits folded in ascending order, BS at a time (1 where FIXED, which
    is the order of a program that does them all)."""
    in_turn(CHAINED)
    token, head = tl.program_id(0).to(tl.int64), tl.program_id(1)
    dv = tl.arange(0, DV)
    row = token * q_heads + head
    one = tl.arange(0, 1)
    splits = SPLITS
    if FIXED > 0:  # a token's splits end where its position does; padding (slot < 0) has none
        splits = tl.where(tl.load(slots + token) < 0, 0, tl.load(positions + token) // FIXED + 1)
    total = tl.zeros([1, DV], tl.float32)
    m_total = tl.full([1], -float("inf"), tl.float32)
    l_total = tl.zeros([1], tl.float32)
    for first in range(0, splits, BS):
        split = first + tl.arange(0, BS)
        ok = split < splits
        at = split * tokens * q_heads + row
        inside = ok[:, None] & (dv < v_dim)[None, :]
        acc = tl.load(part + at[:, None] * v_dim + dv[None, :], mask=inside, other=0.0)
        m = tl.load(part_m + at, mask=ok, other=-float("inf"))
        l = tl.load(part_l + at, mask=ok, other=0.0)
        if BS > 1:  # a block's splits are first added up among themselves
            top = tl.max(m, axis=0)
            share = tl.exp2(m - tl.where(top == -float("inf"), 0.0, top))
            acc = tl.sum(acc * share[:, None], axis=0)[None, :]
            l = tl.sum(l * share, axis=0) + tl.zeros([1], tl.float32)
            m = top + tl.zeros([1], tl.float32)
        total, m_total, l_total = fold(total, m_total, l_total, acc, m, l)
    sink = tl.zeros([1], tl.float32)
    if SINKS:
        sink = tl.load(sinks + head + one)
    result = sunk(total, m_total, l_total, sink, SINKS)
    tl.store(y + row * v_dim + dv[None, :], result.to(y.dtype.element_ty), mask=(dv < v_dim)[None, :])
