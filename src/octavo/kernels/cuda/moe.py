"""Mixture of experts: routing and combination in Triton, experts as one grouped product.

route     the chosen experts of each token, ascending, and their shares
assign    pairs (token, place) sorted by expert, in blocks of bm rows with one expert each
product   gate and up, then down, each block with its expert's weights (gemm.py)
combine   y[t] = sum of share * row, experts ascending
"""

from __future__ import annotations

from dataclasses import replace

import torch
import triton
import triton.language as tl

from octavo.kernels.cuda.gemm import ExpertTiles, TilePolicy, product
from octavo.kernels.cuda.launch import cdiv, next_power_of_2
from octavo.kernels.cuda.norms import Epilogue
from octavo.kernels.cuda.weight import PackedRows
from octavo.kernels.ops import Activation, Routing


@triton.jit
def route_kernel(
    logits, bias, chosen, shares, experts, factor,
    TOP_K: tl.constexpr, SIGMOID: tl.constexpr, BIAS: tl.constexpr, RENORMALIZE: tl.constexpr,
    GROUPS: tl.constexpr, TOP_GROUPS: tl.constexpr, GROUP_TOP: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """One token a program. Ties go to the lower expert, and to the lower group."""
    token = tl.program_id(0).to(tl.int64)
    e = tl.arange(0, BLOCK)
    inside = e < experts
    z = tl.load(logits + token * experts + e, mask=inside, other=-float("inf")).to(tl.float32)
    if SIGMOID:
        p = tl.where(inside, tl.sigmoid(z), 0.0)
    else:
        p = tl.exp(z - tl.max(z, axis=0))
        p = p / tl.sum(p, axis=0)
    score = p
    if BIAS:
        score = p + tl.load(bias + e, mask=inside, other=0.0)
    score = tl.where(inside, score, -float("inf"))
    if TOP_GROUPS < GROUPS:  # (else no group is left out)
        g = tl.arange(0, BLOCK)  # lane g keeps group g's worth
        worth = tl.full([BLOCK], -float("inf"), tl.float32)
        of = e // (experts // GROUPS)
        for group in tl.static_range(GROUPS):
            left = tl.where(of == group, score, -float("inf"))
            best = 0.0
            for _ in tl.static_range(GROUP_TOP):
                top = tl.max(left, axis=0)
                best += top
                first = tl.min(tl.where(left == top, e, BLOCK), axis=0)
                left = tl.where(e == first, -float("inf"), left)
            worth = tl.where(g == group, best, worth)
        allowed = tl.zeros([BLOCK], tl.int32)
        for _ in tl.static_range(TOP_GROUPS):
            top = tl.max(worth, axis=0)
            first = tl.min(tl.where(worth == top, g, BLOCK), axis=0)
            allowed = tl.where(of == first, 1, allowed)
            worth = tl.where(g == first, -float("inf"), worth)
        score = tl.where(allowed == 1, score, -float("inf"))
    taken = tl.zeros([BLOCK], tl.int32)
    for _ in tl.static_range(TOP_K):
        free = tl.where(taken == 1, -float("inf"), score)
        top = tl.max(free, axis=0)
        first = tl.min(tl.where((free == top) & (taken == 0) & inside, e, BLOCK - 1), axis=0)
        taken = tl.where(e == first, 1, taken)
    share = tl.where(taken == 1, p, 0.0)
    if RENORMALIZE:  # only over the chosen ones: the others' p are no part of the mixture
        share = share / tl.sum(share, axis=0)
    place = token * TOP_K + tl.cumsum(taken, axis=0) - 1
    tl.store(chosen + place, e, mask=taken == 1)
    tl.store(shares + place, share * factor, mask=taken == 1)


def route(
    logits: torch.Tensor, top_k: int, renormalize: bool, routing: Routing, bias: torch.Tensor | None
) -> tuple[torch.Tensor, torch.Tensor]:
    """Chosen experts [T, top_k], ascending, int32, and their shares in f32."""
    tokens, experts = logits.shape
    # a row of NaN takes experts by its own luck, but some expert it must be
    chosen = torch.zeros((tokens, top_k), dtype=torch.int32, device=logits.device)
    shares = torch.zeros((tokens, top_k), device=logits.device)
    if tokens:
        route_kernel[(tokens,)](
            logits, logits if bias is None else bias, chosen, shares, experts, routing.scale,
            TOP_K=top_k, SIGMOID=routing.sigmoid, BIAS=bias is not None, RENORMALIZE=renormalize,
            GROUPS=routing.groups, TOP_GROUPS=routing.top_groups, GROUP_TOP=routing.group_top,
            BLOCK=next_power_of_2(experts), num_warps=1,
        )  # fmt: skip
    return chosen, shares


def assign(chosen: torch.Tensor, experts: int, bm: int) -> ExpertTiles:
    """Blocks of bm pairs of one expert; the number of blocks depends on shapes alone.

    chosen [T, top_k]: pair r is (token r // top_k, place r % top_k). Unused rows hold T * top_k.
    """
    flat = chosen.reshape(-1).long()
    pairs, device = flat.shape[0], flat.device
    blocks = cdiv(pairs + min(experts, pairs) * (bm - 1), bm)
    order = torch.argsort(flat, stable=True)
    counts = (flat[:, None] == torch.arange(experts, device=device)).sum(0)
    padded = (counts + bm - 1) // bm * bm
    ends, starts = torch.cumsum(padded, 0), torch.cumsum(counts, 0) - counts
    of = flat[order]
    place = (ends - padded)[of] + torch.arange(pairs, device=device) - starts[of]
    rows_of = torch.full((blocks * bm,), pairs, dtype=torch.int32, device=device)
    rows_of[place] = order.int()
    first = torch.arange(blocks, device=device) * bm
    expert_of = torch.searchsorted(ends, first, right=True)
    expert_of = torch.where(expert_of < experts, expert_of, -1).int()
    return ExpertTiles(rows_of, expert_of, bm)


@triton.jit
def combine_kernel(rows, shares, y, width, TOP_K: tl.constexpr, BLOCK: tl.constexpr):
    token = tl.program_id(0).to(tl.int64)
    i = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    total = tl.zeros([BLOCK], tl.float32)
    for place in tl.static_range(TOP_K):
        pair = token * TOP_K + place
        row = tl.load(rows + pair * width + i, mask=i < width, other=0.0).to(tl.float32)
        total += tl.load(shares + pair) * row
    tl.store(y + token * width + i, total.to(y.dtype.element_ty), mask=i < width)


def moe(
    x: torch.Tensor,
    chosen: torch.Tensor,
    shares: torch.Tensor,
    gate_up: PackedRows,
    down: PackedRows,
    activation: Activation,
    policy: TilePolicy,
) -> torch.Tensor:
    """ops.moe after its routing. gate_up [E, 2 I, H] and down [E, H, I] are stacked parts."""
    tokens, top_k = chosen.shape
    pairs, experts = tokens * top_k, gate_up.values.shape[0]
    y = torch.empty((tokens, down.rows), dtype=x.dtype, device=x.device)
    if not tokens:
        return y
    bm = policy.tiles(cdiv(pairs, experts), gate_up.rows, gate_up.columns, gate_up.layout).bm
    groups = assign(chosen, experts, bm)
    hidden = torch.empty((pairs, gate_up.rows // 2), dtype=x.dtype, device=x.device)
    end, shared = Epilogue(activation=activation, gated=True), replace(groups, shared=top_k)
    product(x, gate_up, hidden, end, policy, shared)
    rows = torch.empty((pairs, down.rows), device=x.device)
    product(hidden, down, rows, Epilogue(), policy, groups)
    block = min(next_power_of_2(down.rows), 1024)
    combine_kernel[(tokens, cdiv(down.rows, block))](rows, shares, y, down.rows, TOP_K=top_k, BLOCK=block)
    return y
