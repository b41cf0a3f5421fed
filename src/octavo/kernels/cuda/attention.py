"""Triton paged attention: prefill, decode and verify are one kernel over query blocks and splits of KV.

    a program:  BM rows = BM // SUB tokens of one sequence x SUB query heads of one KV head
    its work:   the KV positions of a split, BN at a time, rescaling as it goes (flash attention)

A tree's token (kernels/trees.py) reads its step's keys through its mask, so that all tokens share them. In
bit-exact mode a program has one token, and gathers the token's ancestors in the order of their positions:
the arithmetic is then that of a plain sequence.

With one split the result is final. With more, each split leaves its sum, its maximum and its weight,
and merge_kernel folds them in ascending order (flash decoding, Dao et al. 2023). Bit-exact mode cuts
splits at fixed positions and folds them in the same order in both cases.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import triton
import triton.language as tl

from octavo.kernels.cuda.gemm import Policy
from octavo.kernels.cuda.kv import CudaKVLayer
from octavo.kernels.cuda.launch import cdiv, next_power_of_2
from octavo.kernels.cuda.rows import tanh
from octavo.kernels.ops import AttentionSpec, Sight


@triton.jit
def page_pointers(pages, table, at, ok, head, heads, page_size):
    """First element of (page, head, offset) of positions at, in rows of one element."""
    page = tl.load(table + at // page_size, mask=ok, other=0).to(tl.int64)
    return (page * heads + head) * page_size + at % page_size


@triton.jit
def gathered(trees, words, positions, token, start, first, plain, at, BN: tl.constexpr):
    """Where the keys of positions at [BN] lie on a token's path, counted as positions are stored.

    Of the step, whose tokens are stored from first on, that is the ancestor at this very position.
    """
    index, lane = tl.zeros([BN], tl.int32), tl.arange(0, 32)
    for word in range(words):
        mine = ((tl.load(trees + token * words + word) >> lane) & 1) != 0
        depth = tl.load(positions + start + word * 32 + lane, mask=mine, other=-1)
        index += tl.sum(tl.where(depth[None, :] == at[:, None], (word * 32 + lane)[None, :], 0), axis=1)
    return tl.where((at < first) | plain, at, first + index)


@triton.jit
def on_path(trees, words, token, i, ok, plain):
    """Whether tokens [BM] see their step's tokens i [BN]; what was stored before (i < 0) they all see."""
    inside = ok & (i >= 0)[None, :] & (i < 32 * words)[None, :]
    word = tl.load(trees + token[:, None] * words + (i // 32)[None, :], mask=inside, other=0)
    return plain | (i < 0)[None, :] | (((word >> (i % 32)[None, :]) & 1) != 0)


@triton.jit
def scores_of(
    q0, q1, k_pages, k_scales, place, at, ok, pos, dim, scale, softcap, slope,
    bias, bias_row, reach,
    D0: tl.constexpr, D1: tl.constexpr, INT8: tl.constexpr, SOFTCAP: tl.constexpr, ALIBI: tl.constexpr,
    BIAS: tl.constexpr, NARROW: tl.constexpr,
):  # fmt: skip
    """scale q.k, capped and biased, of a block of positions: [BM, BN]."""
    d0 = tl.arange(0, D0)
    there = ok[None, :] & (d0 < dim)[:, None] if NARROW else ok[None, :]
    k0 = tl.load(k_pages + place[None, :] * dim + d0[:, None], mask=there, other=0.0).to(q0.dtype)
    s = tl.dot(q0, k0, input_precision="ieee")
    if D1 > 0:
        d1 = D0 + tl.arange(0, D1)
        inside = ok[None, :] & (d1 < dim)[:, None]
        k1 = tl.load(k_pages + place[None, :] * dim + d1[:, None], mask=inside, other=0.0).to(q0.dtype)
        s = tl.dot(q1, k1, s, input_precision="ieee")
    if INT8:
        s = s * tl.load(k_scales + place, mask=ok, other=0.0)[None, :]
    s = s * scale
    if SOFTCAP:
        s = softcap * tanh(s / softcap)
    if ALIBI:
        s += slope[:, None] * (at[None, :] - pos[:, None]).to(tl.float32)
    if BIAS:
        column = tl.minimum(tl.maximum(at[None, :] - pos[:, None], -reach), reach) + reach
        s += tl.load(bias + bias_row[:, None] + column)
    return s


@triton.jit
def fold(total, m_total, l_total, acc, m, l):
    """Two partial softmaxes as one, the earlier positions first."""
    top = tl.maximum(m_total, m)
    safe = tl.where(top == -float("inf"), 0.0, top)
    a, b = tl.exp(m_total - safe), tl.exp(m - safe)
    return total * a[:, None] + acc * b[:, None], top, l_total * a + l * b


@triton.jit
def attention_kernel(
    q, k_pages, v_pages, k_scales, v_scales, out, part_m, part_l,
    query_start, context_lens, positions, tables, trees, words, slopes, sinks, bias, reach,
    sequences, q_heads, kv_heads, dim, v_dim, stride_v, page_size, table_width, window, scale, softcap,
    SPLITS: tl.constexpr, FIXED: tl.constexpr, DIRECT: tl.constexpr, INT8: tl.constexpr,
    CAUSAL: tl.constexpr, WINDOW: tl.constexpr, SOFTCAP: tl.constexpr, ALIBI: tl.constexpr,
    BIAS: tl.constexpr, SINKS: tl.constexpr, GROUP: tl.constexpr, SUB: tl.constexpr, BQ: tl.constexpr,
    BM: tl.constexpr, BN: tl.constexpr, D0: tl.constexpr, D1: tl.constexpr, DV: tl.constexpr,
    NARROW: tl.constexpr, TREE: tl.constexpr,
):  # fmt: skip
    """See the module's text. TREE: 0 none, 1 by mask, 2 gathered (BQ is 1).

    out [T, q_heads, v_dim] (DIRECT) or [splits, T, q_heads, v_dim] in f32.

    Query blocks: sequence s has those from query_start[s] // BQ + s, enough for its tokens; some
    blocks are nobody's.
    """
    block, heads_block, lane = tl.program_id(0), tl.program_id(1), tl.program_id(2)
    kv_head = heads_block // (GROUP // SUB)
    low, high = 0, sequences
    while high - low > 1:  # the last sequence whose first block is not after ours
        middle = (low + high) // 2
        if tl.load(query_start + middle) // BQ + middle <= block:
            low = middle
        else:
            high = middle
    seq = low
    start, end = tl.load(query_start + seq), tl.load(query_start + seq + 1)
    first_token = start + (block - start // BQ - seq) * BQ
    if first_token < end:
        m_row = tl.arange(0, BM)
        token = first_token + m_row // SUB
        head = heads_block * SUB + m_row % SUB
        row_ok = (m_row // SUB < BQ) & (token < end)
        context = tl.load(context_lens + seq)
        pos = tl.load(positions + token, mask=row_ok, other=-1)
        highest = context
        if CAUSAL:
            highest = tl.minimum(tl.max(pos, axis=0) + 1, context)
        first = context - (end - start)  # this step's tokens are stored from here on
        plain = True
        if TREE > 0:  # a tree's first token sees itself
            plain = tl.load(trees + start * words) == 0
        if TREE == 1:
            highest = tl.minimum(first + first_token + BQ - start, context)
        lowest = 0
        if WINDOW:
            lowest = tl.maximum(tl.min(tl.where(row_ok, pos, context), axis=0) - window + 1, 0)
        d0 = tl.arange(0, D0)
        row = token.to(tl.int64) * q_heads + head
        q_ok = row_ok[:, None] & (d0 < dim)[None, :] if NARROW else row_ok[:, None]
        q0 = tl.load(q + row[:, None] * dim + d0[None, :], mask=q_ok, other=0.0)
        q1 = q0
        if D1 > 0:
            d1 = D0 + tl.arange(0, D1)
            q1 = tl.load(
                q + row[:, None] * dim + d1[None, :], mask=row_ok[:, None] & (d1 < dim)[None, :], other=0.0
            )
        slope = tl.zeros([BM], tl.float32)
        if ALIBI:
            slope = tl.load(slopes + head, mask=row_ok, other=0.0)
        bias_row = tl.where(row_ok, head, 0) * (2 * reach + 1)
        dv = tl.arange(0, DV)
        table = tables + seq * table_width
        tokens = tl.load(query_start + sequences).to(tl.int64)

        if FIXED > 0:
            length = FIXED
            splits = (highest + FIXED - 1) // FIXED
            step = 1 if DIRECT else SPLITS
            first_split = (lowest // FIXED) if DIRECT else lane
        else:
            length = ((highest - lowest + SPLITS - 1) // SPLITS + BN - 1) // BN * BN
            splits = SPLITS
            step = SPLITS
            first_split = lane
        total = tl.zeros([BM, DV], tl.float32)
        m_total = tl.full([BM], -float("inf"), tl.float32)
        l_total = tl.zeros([BM], tl.float32)
        for split in range(first_split, splits, step):
            begin = split * length
            if FIXED == 0:
                begin += lowest
            stop = tl.minimum(begin + length, highest)
            if FIXED > 0:
                begin = begin + tl.maximum(lowest - begin, 0) // BN * BN
            acc = tl.zeros([BM, DV], tl.float32)
            m = tl.full([BM], -float("inf"), tl.float32)
            l = tl.zeros([BM], tl.float32)
            for n0 in range(begin, stop, BN):
                at = n0 + tl.arange(0, BN)
                ok = (at < stop) & (at >= lowest)
                stored = at
                if TREE == 2:
                    stored = gathered(trees, words, positions, first_token, start, first, plain, at, BN)
                place = page_pointers(k_pages, table, stored, ok, kv_head, kv_heads, page_size)
                if TREE == 1:  # from here on, at is each key's position
                    at = tl.load(positions + start + stored - first, mask=ok & (stored >= first), other=0)
                    at = tl.where(stored >= first, at, stored)
                s = scores_of(
                    q0, q1, k_pages, k_scales, place, at, ok, pos, dim, scale, softcap, slope,
                    bias, bias_row, reach, D0, D1, INT8, SOFTCAP, ALIBI, BIAS, NARROW,
                )  # fmt: skip
                seen = ok[None, :] & row_ok[:, None]
                if CAUSAL:
                    seen = seen & (at[None, :] <= pos[:, None])
                if WINDOW:
                    seen = seen & (at[None, :] > pos[:, None] - window)
                if TREE == 1:
                    seen = seen & on_path(trees, words, token, stored - first, seen, plain)
                s = tl.where(seen, s, -float("inf"))
                top = tl.maximum(m, tl.max(s, axis=1))
                safe = tl.where(top == -float("inf"), 0.0, top)
                p = tl.exp(s - safe[:, None])
                shrink = tl.exp(m - safe)
                # max passes over NaN, exp does not: a row that meets NaN ends as NaN
                l = l * shrink + tl.sum(p, axis=1)
                m = top
                if INT8:
                    p = p * tl.load(v_scales + place, mask=ok, other=0.0)[None, :]
                v = tl.load(
                    v_pages + place[:, None] * stride_v + dv[None, :],
                    mask=ok[:, None] & (dv < v_dim)[None, :],
                    other=0.0,
                )
                acc = tl.dot(p.to(q0.dtype), v.to(q0.dtype), acc * shrink[:, None], input_precision="ieee")
            if DIRECT:
                if FIXED > 0:
                    total, m_total, l_total = fold(total, m_total, l_total, acc, m, l)
                else:
                    total, m_total, l_total = acc, m, l
            else:
                at_row = split * tokens * q_heads + row
                tl.store(part_m + at_row, m, mask=row_ok)
                tl.store(part_l + at_row, l, mask=row_ok)
                tl.store(
                    out + at_row[:, None] * v_dim + dv[None, :],
                    acc,
                    mask=row_ok[:, None] & (dv < v_dim)[None, :],
                )
        if DIRECT:
            if SINKS:
                sink = tl.load(sinks + head, mask=row_ok, other=-float("inf"))
                top = tl.maximum(m_total, sink)
                safe = tl.where(top == -float("inf"), 0.0, top)
                total = total * tl.exp(m_total - safe)[:, None]
                l_total = l_total * tl.exp(m_total - safe) + tl.exp(sink - safe)
            y = total / tl.where(l_total == 0.0, 1.0, l_total)[:, None]
            tl.store(
                out + row[:, None] * v_dim + dv[None, :],
                y.to(out.dtype.element_ty),
                mask=row_ok[:, None] & (dv < v_dim)[None, :],
            )


@triton.jit
def merge_kernel(
    part, part_m, part_l, positions, slots, sinks, y, tokens, q_heads, v_dim,
    SPLITS: tl.constexpr, FIXED: tl.constexpr, SINKS: tl.constexpr, DV: tl.constexpr,
):  # fmt: skip
    """One token and head a program: its splits folded in ascending order."""
    token, head = tl.program_id(0).to(tl.int64), tl.program_id(1)
    dv = tl.arange(0, DV)
    row = token * q_heads + head
    one = tl.arange(0, 1)
    splits = SPLITS
    if FIXED > 0:
        splits = tl.where(tl.load(slots + token) < 0, 0, tl.load(positions + token) // FIXED + 1)
    total = tl.zeros([1, DV], tl.float32)
    m_total = tl.full([1], -float("inf"), tl.float32)
    l_total = tl.zeros([1], tl.float32)
    for split in range(splits):
        at = split * tokens * q_heads + row
        acc = tl.load(part + at * v_dim + dv, mask=dv < v_dim, other=0.0)[None, :]
        total, m_total, l_total = fold(
            total, m_total, l_total, acc, tl.load(part_m + at + one), tl.load(part_l + at + one)
        )
    if SINKS:
        sink = tl.load(sinks + head + one)
        top = tl.maximum(m_total, sink)
        safe = tl.where(top == -float("inf"), 0.0, top)
        total = total * tl.exp(m_total - safe)[:, None]
        l_total = l_total * tl.exp(m_total - safe) + tl.exp(sink - safe)
    result = total / tl.where(l_total == 0.0, 1.0, l_total)[:, None]
    tl.store(y + row * v_dim + dv[None, :], result.to(y.dtype.element_ty), mask=(dv < v_dim)[None, :])


@dataclass(frozen=True, slots=True, eq=False)
class Queries:
    """What attention reads of a batch: device arrays, and bounds known on the host.

    Attributes:
        max_query, max_context: upper bounds of a sequence's tokens in this batch, and of its length.
        trees [T, 2 W]: tree masks in words of 32 bits.
    """

    query_start: torch.Tensor
    context_lens: torch.Tensor
    positions: torch.Tensor
    slots: torch.Tensor
    page_tables: torch.Tensor
    max_query: int
    max_context: int
    trees: torch.Tensor | None = None

    @property
    def sequences(self) -> int:
        return self.context_lens.shape[0]


@dataclass(frozen=True, slots=True)
class Shape:
    """How the work is cut: BM rows of BQ tokens by SUB heads, BN positions, splits (1: nothing to fold)."""

    sub: int
    bm: int
    bq: int
    bn: int
    splits: int
    fixed: int


def shape_of(queries: Queries, tokens: int, spec: AttentionSpec, policy: Policy, wide: bool) -> Shape:
    """Blocks by how many tokens a sequence has; splits until every multiprocessor has two programs.

    Bit-exact mode has one block shape, and splits that are cut at fixed positions.

    Args:
        wide: q is f32, which takes twice the shared memory.
    """
    group, exact = spec.num_heads // spec.num_kv_heads, policy.exact
    most_rows = 16 if spec.head_dim > 256 else 64 if spec.head_dim > 128 else 128
    sub = next(s for s in range(min(group, most_rows), 0, -1) if group % s == 0)
    decode = queries.max_query * group <= 64
    bm = next_power_of_2(max(16, sub if exact else sub * min(queries.max_query, 64)))
    bm = max(min(bm, most_rows), next_power_of_2(sub))
    bq = 1 if exact and queries.trees is not None else bm // sub
    bn = 32 if exact or spec.head_dim > (128 if wide else 256) else 64
    if not decode or (exact and spec.sight is not Sight.CAUSAL):
        return Shape(sub, bm, bq, bn, 1, policy.fixed_split if exact else 0)
    programs = (tokens // bq + queries.sequences) * (spec.num_heads // sub)
    most = cdiv(queries.max_context, policy.fixed_split if exact else 2 * bn)
    if exact:
        return Shape(sub, bm, bq, bn, max(most, 1), policy.fixed_split)
    return Shape(sub, bm, bq, bn, max(min(2 * policy.sms // programs, 64, most), 1), 0)


def attend(
    q: torch.Tensor,
    kv: CudaKVLayer,
    spec: AttentionSpec,
    queries: Queries,
    slopes: torch.Tensor | None,
    sinks: torch.Tensor | None,
    bias: torch.Tensor | None,
    policy: Policy,
) -> torch.Tensor:
    """ops.attention: q [T, heads * head_dim] -> [T, heads * v_head_dim], of q's dtype."""
    tokens, heads = q.shape[0], spec.num_heads
    y = torch.empty((tokens, heads * spec.v_head_dim), dtype=q.dtype, device=q.device)
    if not tokens:
        return y
    shape = shape_of(queries, tokens, spec, policy, q.dtype == torch.float32)
    direct = shape.splits == 1
    d0 = max(next_power_of_2(spec.head_dim + 1) // 2, 16)
    d1 = 0 if d0 >= spec.head_dim else max(next_power_of_2(spec.head_dim - d0), 16)
    dv = max(next_power_of_2(spec.v_head_dim), 16)
    int8 = kv.k.scales is not None
    trees = queries.trees
    tree = 0 if trees is None else 2 if policy.exact else 1
    out, part_m, part_l = y, y, y
    if not direct:
        out = torch.empty((shape.splits, tokens, heads, spec.v_head_dim), device=q.device)
        part_m, part_l = (torch.empty((shape.splits, tokens, heads), device=q.device) for _ in range(2))
    lanes = 1 if direct else min(shape.splits, max(2 * policy.sms, 1))
    attention_kernel[(tokens // shape.bq + queries.sequences, heads // shape.sub, lanes)](
        q, kv.k.pages, kv.v.pages, kv.k.scales if int8 else q, kv.v.scales if int8 else q,
        out, part_m, part_l, queries.query_start, queries.context_lens, queries.positions,
        queries.page_tables, queries.positions if trees is None else trees,
        0 if trees is None else trees.shape[1], q if slopes is None else slopes,
        q if sinks is None else sinks, q if bias is None else bias, 0 if bias is None else bias.shape[1] // 2,
        queries.sequences, heads, spec.num_kv_heads, spec.head_dim, spec.v_head_dim,
        kv.v.pages.shape[3], kv.page_size, queries.page_tables.shape[1], spec.window or 0, spec.scale,
        spec.softcap or 1.0,
        SPLITS=lanes, FIXED=shape.fixed, DIRECT=direct, INT8=int8, CAUSAL=spec.sight is Sight.CAUSAL,
        BIAS=bias is not None, WINDOW=spec.window is not None,
        SOFTCAP=spec.softcap is not None, ALIBI=slopes is not None, SINKS=sinks is not None and direct,
        GROUP=heads // spec.num_kv_heads, SUB=shape.sub, BQ=shape.bq, BM=shape.bm, BN=shape.bn,
        D0=d0, D1=d1, DV=dv, NARROW=spec.head_dim < d0, TREE=tree,
        num_warps=4 if shape.bm <= 64 else 8, num_stages=2,
    )  # fmt: skip
    if not direct:
        merge_kernel[(tokens, heads)](
            out, part_m, part_l, queries.positions, queries.slots, q if sinks is None else sinks, y,
            tokens, heads, spec.v_head_dim,
            SPLITS=shape.splits, FIXED=shape.fixed, SINKS=sinks is not None, DV=dv, num_warps=1,
        )  # fmt: skip
    return y
