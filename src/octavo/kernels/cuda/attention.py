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
from functools import partial

import torch
import triton
import triton.language as tl

from octavo.kernels.cuda.attention_merge import fold, merge_kernel, sunk
from octavo.kernels.cuda.attention_shape import Queries, shape_of
from octavo.kernels.cuda.gemm import TilePolicy
from octavo.kernels.cuda.kv import CudaKVLayer
from octavo.kernels.cuda.launch import next_power_of_2
from octavo.kernels.cuda.norms import tanh
from octavo.kernels.cuda.order import chained, in_turn
from octavo.kernels.cuda.prompts import by_torch, key_of, torchs_is_faster, whole_prompts
from octavo.kernels.ops import AttentionSpec, Sight


@triton.jit
def page_pointers(table, at, ok, head, heads, PAGE: tl.constexpr):
    """First element of (page, head, offset) of positions at, in rows of one element."""
    page = tl.load(table + at // PAGE, mask=ok, other=0).to(tl.int64)
    return (page * heads + head) * PAGE + at % PAGE


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
def key_block(k_pages, place, ok, d, dim, NARROW: tl.constexpr, MASKED: tl.constexpr):
    """Elements d of the keys at place, [D, BN]."""
    at = k_pages + place[None, :] * dim + d[:, None]
    if NARROW:
        return tl.load(at, mask=ok[None, :] & (d < dim)[:, None], other=0.0)
    elif MASKED:
        return tl.load(at, mask=ok[None, :], other=0.0)
    else:
        return tl.load(at)


@triton.jit
def scores_of(
    q0, q1, k_pages, k_scales, place, at, ok, pos, dim, scale, softcap, slope, bias, bias_row, reach,
    D0: tl.constexpr, D1: tl.constexpr, INT8: tl.constexpr, SOFTCAP: tl.constexpr, ALIBI: tl.constexpr,
    BIAS: tl.constexpr, NARROW: tl.constexpr, MASKED: tl.constexpr,
):  # fmt: skip
    """scale q.k, capped and biased, of a block of positions, in powers of two: [BM, BN]."""
    k0 = key_block(k_pages, place, ok, tl.arange(0, D0), dim, NARROW, MASKED).to(q0.dtype)
    s = tl.dot(q0, k0, input_precision="ieee")
    if D1 > 0:
        k1 = key_block(k_pages, place, ok, D0 + tl.arange(0, D1), dim, True, MASKED).to(q0.dtype)
        s = tl.dot(q1, k1, s, input_precision="ieee")
    if INT8:
        s = s * tl.load(k_scales + place, mask=ok, other=0.0)[None, :]
    if SOFTCAP or ALIBI or BIAS:
        s = s * scale
        if SOFTCAP:
            s = softcap * tanh(s / softcap)
        if ALIBI:
            s += slope[:, None] * (at[None, :] - pos[:, None]).to(tl.float32)
        if BIAS:
            column = tl.minimum(tl.maximum(at[None, :] - pos[:, None], -reach), reach) + reach
            s += tl.load(bias + bias_row[:, None] + column)
        s = s * 1.4426950408889634
    else:
        s = s * (scale * 1.4426950408889634)
    return s


@triton.jit
def attend_block(
    acc, m, l, q0, q1, k_pages, v_pages, k_scales, v_scales, positions, table, trees, words, bias, bias_row,
    n0, stop, lowest, start, first, first_token, token, pos, row_ok, plain, slope, kv_head, kv_heads, dim,
    v_dim, stride_v, window, scale, softcap, reach,
    INT8: tl.constexpr, CAUSAL: tl.constexpr, WINDOW: tl.constexpr, SOFTCAP: tl.constexpr,
    ALIBI: tl.constexpr, BIAS: tl.constexpr, BN: tl.constexpr, D0: tl.constexpr, D1: tl.constexpr,
    DV: tl.constexpr, NARROW: tl.constexpr, TREE: tl.constexpr, PAGE: tl.constexpr, MASKED: tl.constexpr,
):  # fmt: skip
    """Positions n0 .. n0 + BN - 1 of a split, folded into acc, m and l; not MASKED: all rows see them all."""
    dv = tl.arange(0, DV)
    at = n0 + tl.arange(0, BN)
    ok = (at < stop) & (at >= lowest)
    stored = at
    if TREE == 2:  # bit-exact: keys are read in the order in which a plain sequence would have stored them
        stored = gathered(trees, words, positions, first_token, start, first, plain, at, BN)
    if MASKED:  # beyond the split's end the table may have no page
        place = page_pointers(table, stored, ok, kv_head, kv_heads, PAGE)
    else:
        place = page_pointers(table, stored, at >= 0, kv_head, kv_heads, PAGE)
    if TREE == 1:  # from here on, at is each key's position
        at = tl.load(positions + start + stored - first, mask=ok & (stored >= first), other=0)
        at = tl.where(stored >= first, at, stored)
    s = scores_of(
        q0, q1, k_pages, k_scales, place, at, ok, pos, dim, scale, softcap, slope, bias, bias_row, reach,
        D0, D1, INT8, SOFTCAP, ALIBI, BIAS, NARROW, MASKED,
    )  # fmt: skip
    if MASKED:
        seen = ok[None, :] & row_ok[:, None]
        if CAUSAL:
            seen = seen & (at[None, :] <= pos[:, None])
        if WINDOW:
            seen = seen & (at[None, :] > pos[:, None] - window)
        if TREE == 1:  # positions alone do not say it: siblings share theirs
            seen = seen & on_path(trees, words, token, stored - first, seen, plain)
        s = tl.where(seen, s, -float("inf"))
    top = tl.maximum(m, tl.max(s, axis=1))
    safe = top
    if MASKED:  # a row that has seen nothing yet: -inf less -inf would be NaN
        safe = tl.where(top == -float("inf"), 0.0, top)
    p = tl.exp2(s - safe[:, None])
    shrink = tl.exp2(m - safe)
    # max passes over NaN, exp2 does not: a row that meets NaN ends as NaN
    l = l * shrink + tl.sum(p, axis=1)
    if INT8:
        p = p * tl.load(v_scales + place, mask=ok, other=0.0)[None, :]
    at_v = v_pages + place[:, None] * stride_v + dv[None, :]
    if MASKED or DV != D0:
        v = tl.load(at_v, mask=ok[:, None] & (dv < v_dim)[None, :], other=0.0)
    else:
        v = tl.load(at_v, mask=(dv < v_dim)[None, :], other=0.0)
    acc = tl.dot(p.to(q0.dtype), v.to(q0.dtype), acc * shrink[:, None], input_precision="ieee")
    return acc, top, l


@triton.jit(do_not_specialize=["words", "sequences"])
def attention_kernel(
    q, k_pages, v_pages, k_scales, v_scales, out, part_m, part_l,
    query_start, context_lens, positions, tables, trees, words, slopes, sinks, bias, reach,
    sequences, q_heads, kv_heads, dim, v_dim, stride_v, table_width, window, scale, softcap,
    SPLITS: tl.constexpr, FIXED: tl.constexpr, DIRECT: tl.constexpr, INT8: tl.constexpr,
    CAUSAL: tl.constexpr, WINDOW: tl.constexpr, SOFTCAP: tl.constexpr, ALIBI: tl.constexpr,
    BIAS: tl.constexpr, SINKS: tl.constexpr, GROUP: tl.constexpr, SUB: tl.constexpr, BQ: tl.constexpr,
    BM: tl.constexpr, BN: tl.constexpr, D0: tl.constexpr, D1: tl.constexpr, DV: tl.constexpr,
    NARROW: tl.constexpr, TREE: tl.constexpr, PAGE: tl.constexpr, SINGLE: tl.constexpr,
    CHAINED: tl.constexpr,
):  # fmt: skip
    """See the module's text. TREE: 0 none, 1 by mask, 2 gathered (BQ is 1). SINGLE: each sequence has one
    token, so nobody has to look for where it begins.

    out [T, q_heads, v_dim] (DIRECT) or [splits, T, q_heads, v_dim] in f32.

    Query blocks: sequence s has those from query_start[s] // BQ + s, enough for its tokens; some
    blocks are nobody's.

    Longer than a function should be: what its loops share, some forty values, would be arguments of
    every part of it.
    """
    in_turn(CHAINED)
    block, heads_block, lane = tl.program_id(0), tl.program_id(1), tl.program_id(2)
    kv_head = heads_block // (GROUP // SUB)
    if SINGLE:
        seq, start, end = block, block, block + 1
    else:
        block = tl.num_programs(0) - 1 - block  # those that see the most begin first
        low, high = 0, sequences
        while high - low > 1:  # the last sequence whose first block is not after ours
            middle = (low + high) // 2
            if tl.load(query_start + middle) // BQ + middle <= block:
                low = middle
            else:
                high = middle
        seq = low
        start, end = tl.load(query_start + seq), tl.load(query_start + seq + 1)
    first_token = start
    if not SINGLE:
        first_token = start + (block - start // BQ - seq) * BQ
    if first_token < end:  # (else the block is nobody's)
        m_row = tl.arange(0, BM)
        token = first_token + m_row // SUB
        head = heads_block * SUB + m_row % SUB
        row_ok = (m_row // SUB < BQ) & (token < end)
        context = tl.load(context_lens + seq)
        pos = tl.load(positions + token, mask=row_ok, other=-1)
        highest = context
        if CAUSAL:  # nobody in the block sees beyond its last token
            highest = tl.minimum(tl.max(pos, axis=0) + 1, context)
        first = context - (end - start)  # this step's tokens are stored from here on
        plain = True
        if TREE > 0:  # a tree's first token sees itself
            plain = tl.load(trees + start * words) == 0
        if TREE == 1:  # keys are stored in the step's order, where ancestors come before their tokens
            highest = tl.minimum(first + first_token + BQ - start, context)
        lowest = 0
        if WINDOW:
            lowest = tl.maximum(tl.min(tl.where(row_ok, pos, context), axis=0) - window + 1, 0)
        d0 = tl.arange(0, D0)
        row = token.to(tl.int64) * q_heads + head
        q_ok = row_ok[:, None] & (d0 < dim)[None, :] if NARROW else row_ok[:, None]
        q0 = tl.load(q + row[:, None] * dim + d0[None, :], mask=q_ok, other=0.0)
        q1 = q0
        if D1 > 0:  # a width between powers of two, in two parts: one part would be nearly twice as wide
            d1 = D0 + tl.arange(0, D1)
            q1 = tl.load(
                q + row[:, None] * dim + d1[None, :], mask=row_ok[:, None] & (d1 < dim)[None, :], other=0.0
            )
        slope = tl.zeros([BM], tl.float32)
        if ALIBI:
            slope = tl.load(slopes + head, mask=row_ok, other=0.0)
        bias_row = tl.where(row_ok, head, 0) * (2 * reach + 1)
        dv = tl.arange(0, DV)
        least = tl.min(tl.where(row_ok, pos, context), axis=0)
        table = tables + seq * table_width
        tokens = tl.load(query_start + sequences).to(tl.int64)

        if FIXED > 0:  # cut where positions say, whatever else is in the batch
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
            if FIXED == 0:  # what is seen is divided evenly; fixed splits count from position 0
                begin += lowest
            stop = tl.minimum(begin + length, highest)
            if FIXED > 0:  # whole blocks before the window are skipped: the others stay where they are
                begin = begin + tl.maximum(lowest - begin, 0) // BN * BN
            acc = tl.zeros([BM, DV], tl.float32)
            m = tl.full([BM], -float("inf"), tl.float32)
            l = tl.zeros([BM], tl.float32)
            open_to = begin  # before it, every row sees everything
            if not WINDOW and TREE == 0 and FIXED == 0:  # (compiled apart, equal sums may round apart)
                edge = stop
                if CAUSAL:
                    edge = tl.minimum(stop, least + 1)
                open_to = begin + tl.maximum(edge - begin, 0) // BN * BN
            # Twice, as with masks and without are two pieces of code.
            for n0 in range(begin, open_to, BN):
                acc, m, l = attend_block(
                    acc, m, l, q0, q1, k_pages, v_pages, k_scales, v_scales, positions, table, trees, words,
                    bias, bias_row, n0, stop, lowest, start, first, first_token, token, pos, row_ok, plain,
                    slope, kv_head, kv_heads, dim, v_dim, stride_v, window, scale, softcap, reach, INT8,
                    CAUSAL, WINDOW, SOFTCAP, ALIBI, BIAS, BN, D0, D1, DV, NARROW, TREE, PAGE, False,
                )  # fmt: skip
            for n0 in range(open_to, stop, BN):
                acc, m, l = attend_block(
                    acc, m, l, q0, q1, k_pages, v_pages, k_scales, v_scales, positions, table, trees, words,
                    bias, bias_row, n0, stop, lowest, start, first, first_token, token, pos, row_ok, plain,
                    slope, kv_head, kv_heads, dim, v_dim, stride_v, window, scale, softcap, reach, INT8,
                    CAUSAL, WINDOW, SOFTCAP, ALIBI, BIAS, BN, D0, D1, DV, NARROW, TREE, PAGE, True,
                )  # fmt: skip
            if DIRECT:
                if FIXED > 0:  # as merge_kernel folds them: one program or many give the same bits
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
            sink = tl.zeros([BM], tl.float32)
            if SINKS:
                sink = tl.load(sinks + head, mask=row_ok, other=-float("inf"))
            y = sunk(total, m_total, l_total, sink, SINKS)
            tl.store(
                out + row[:, None] * v_dim + dv[None, :],
                y.to(out.dtype.element_ty),
                mask=row_ok[:, None] & (dv < v_dim)[None, :],
            )


@dataclass(frozen=True, slots=True, eq=False)
class AttentionTables:
    """An AttentionSpec's arrays on the device: alibi_slopes, sinks, relative_bias."""

    slopes: torch.Tensor | None
    sinks: torch.Tensor | None
    bias: torch.Tensor | None


def attend(
    q: torch.Tensor,
    kv: CudaKVLayer,
    spec: AttentionSpec,
    queries: Queries,
    tables: AttentionTables,
    policy: TilePolicy,
) -> torch.Tensor:
    """ops.attention: q [T, heads * head_dim] -> [T, heads * v_head_dim], of q's dtype."""
    if whole_prompts(q, kv, spec, queries, policy):
        ours = partial(attend_pages, q, kv, spec, queries, tables, policy)
        torchs = partial(by_torch, q, kv, spec, queries)
        return torchs() if torchs_is_faster(key_of(q, spec, queries), ours, torchs) else ours()
    return attend_pages(q, kv, spec, queries, tables, policy)


def attend_pages(
    q: torch.Tensor,
    kv: CudaKVLayer,
    spec: AttentionSpec,
    queries: Queries,
    tables: AttentionTables,
    policy: TilePolicy,
) -> torch.Tensor:
    """The same by this file's kernel."""
    tokens, heads = q.shape[0], spec.num_heads
    slopes, sinks, bias = tables.slopes, tables.sinks, tables.bias
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
    if not direct:  # splits leave their parts in f32, for merge_kernel
        out = torch.empty((shape.splits, tokens, heads, spec.v_head_dim), device=q.device)
        part_m, part_l = (torch.empty((shape.splits, tokens, heads), device=q.device) for _ in range(2))
    lanes = 1 if direct else min(shape.splits, max(2 * policy.sms, 1))
    blocks = queries.sequences if shape.single else tokens // shape.bq + queries.sequences
    attention_kernel[(blocks, heads // shape.sub, lanes)](
        q, kv.k.pages, kv.v.pages, kv.k.scales if int8 else q, kv.v.scales if int8 else q,
        out, part_m, part_l, queries.query_start, queries.context_lens, queries.positions,
        queries.page_tables, queries.positions if trees is None else trees,
        0 if trees is None else trees.shape[1], q if slopes is None else slopes,
        q if sinks is None else sinks, q if bias is None else bias, 0 if bias is None else bias.shape[1] // 2,
        queries.sequences, heads, spec.num_kv_heads, spec.head_dim, spec.v_head_dim,
        kv.v.pages.shape[3], queries.page_tables.shape[1], spec.window or 0, spec.scale,
        spec.softcap or 1.0,
        SPLITS=lanes, FIXED=shape.fixed, DIRECT=direct, INT8=int8, CAUSAL=spec.sight is Sight.CAUSAL,
        BIAS=bias is not None, WINDOW=spec.window is not None,
        SOFTCAP=spec.softcap is not None, ALIBI=slopes is not None, SINKS=sinks is not None and direct,
        GROUP=heads // spec.num_kv_heads, SUB=shape.sub, BQ=shape.bq, BM=shape.bm, BN=shape.bn,
        D0=d0, D1=d1, DV=dv, NARROW=spec.head_dim < d0, TREE=tree,
        PAGE=kv.page_size, SINGLE=shape.single, num_warps=shape.warps, num_stages=shape.stages,
        **chained(q),
    )  # fmt: skip
    if not direct:
        merge_kernel[(tokens, heads)](
            out, part_m, part_l, queries.positions, queries.slots, q if sinks is None else sinks, y,
            tokens, heads, spec.v_head_dim,
            SPLITS=shape.splits, FIXED=shape.fixed, SINKS=sinks is not None,
            BS=1 if shape.fixed else min(next_power_of_2(shape.splits), 16), DV=dv,
            num_warps=1 if shape.fixed else 4, **chained(q),
        )  # fmt: skip
    return y
