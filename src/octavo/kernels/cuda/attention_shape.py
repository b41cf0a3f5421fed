"""How attention's work is cut into programs, and what it reads of a batch."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from octavo.kernels.cuda.gemm import TilePolicy
from octavo.kernels.cuda.launch import cdiv, next_power_of_2
from octavo.kernels.ops import AttentionSpec, Sight


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
class AttentionShape:
    """How the work is cut: BM rows of BQ tokens by SUB heads, BN positions, splits (1: nothing to fold).

    single: every sequence has one token."""

    sub: int
    bm: int
    bq: int
    bn: int
    splits: int
    fixed: int
    single: bool = False
    warps: int = 4
    stages: int = 2


def shape_of(
    queries: Queries, tokens: int, spec: AttentionSpec, policy: TilePolicy, wide: bool
) -> AttentionShape:
    """Blocks by how many tokens a sequence has; splits until every multiprocessor has four programs.

    Bit-exact mode has one block shape, and splits that are cut at fixed positions.

    Args:
        wide: q is f32, which takes twice the shared memory.
    """
    group, exact = spec.num_heads // spec.num_kv_heads, policy.exact
    most_rows = 16 if spec.head_dim > 256 else 64 if spec.head_dim > 128 else 128
    sub = next(s for s in range(min(group, most_rows), 0, -1) if group % s == 0)
    decode = queries.max_query * group <= 64
    single = queries.max_query == 1 and tokens == queries.sequences
    bm = next_power_of_2(max(16, sub if exact else sub * min(queries.max_query, 64)))
    bm = max(min(bm, most_rows), next_power_of_2(sub))
    bq = 1 if exact and queries.trees is not None else bm // sub
    bn = 32 if exact or spec.head_dim > (128 if wide else 256) else 64
    warps, stages = 4 if bm <= 64 else 8, 2
    roomy = policy.shared >= 160 << 10 and not exact and not wide and spec.head_dim <= 128
    if roomy:  # as measured on an H100
        if bm > 64 and (tokens // bq + queries.sequences) * (spec.num_heads // sub) < 3 * policy.sms:
            bm, bq = 64, 64 // sub
        bn, warps, stages = (128, 4, 2) if decode else (64, 4, 3 if bm > 64 else 2)
    fixed = policy.fixed_split if exact else 0
    if not decode or (exact and spec.sight is not Sight.CAUSAL):
        return AttentionShape(sub, bm, bq, bn, 1, fixed, single, warps, stages)
    programs = (tokens if single else tokens // bq + queries.sequences) * (spec.num_heads // sub)
    most = cdiv(queries.max_context, policy.fixed_split if exact else 2 * bn)
    splits = most if exact else min(4 * policy.sms // programs, 32, most)
    if roomy and programs < 2 * policy.sms:  # more programs to a multiprocessor, instead of a second stage
        stages = 1
    return AttentionShape(sub, bm, bq, bn, max(splits, 1), fixed, single, warps, stages)
