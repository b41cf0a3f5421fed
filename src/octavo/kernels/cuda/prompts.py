"""Whole prompts by torch's attention, where that is the faster one.

The GPU's own library has attention for keys that lie together. A step that computes whole prompts of one
length has just stored all keys that it attends to, so gathering their pages costs one read and one write of
them, which a long prompt makes little of. That library plans anew for each length, so lengths are filled up
to a multiple of STEP; no token sees what fills. Which of the two is faster is measured once for each shape,
on the device, with the step's own arrays. Bit-exact mode and float32 have attention.py's kernel alone.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import triton
import triton.language as tl

from octavo.kernels.cuda.attention_shape import Queries
from octavo.kernels.cuda.gemm import TilePolicy
from octavo.kernels.cuda.kv import CudaKVLayer
from octavo.kernels.cuda.launch import cdiv, next_power_of_2
from octavo.kernels.ops import AttentionSpec, Sight

LEAST = 512
"""Tokens of a prompt from which on it is worth asking."""
STEP = 256
TIMES = 3
Key = tuple[Any, ...]
_is_faster: dict[Key, bool] = {}
"""By shape: whether torch's is."""


def whole_prompts(
    q: torch.Tensor, kv: CudaKVLayer, spec: AttentionSpec, queries: Queries, policy: TilePolicy
) -> bool:
    """Whether torch's attention means the same here: whole prompts of one length, of which causality alone
    hides a part. (Sequences whose tokens are as many as if each had the longest's all have as many.)"""
    length = queries.max_query
    alike = queries.sequences * length == q.shape[0] and queries.max_context == length >= LEAST
    plain = spec.window is None and spec.softcap is None and spec.alibi_slopes is None and spec.sinks is None
    plain = plain and spec.relative_bias is None and spec.sight is Sight.CAUSAL and not spec.latent
    stored = kv.k.scales is None and kv.k.pages.dtype == q.dtype != torch.float32
    return alike and plain and stored and queries.trees is None and not policy.exact


def key_of(q: torch.Tensor, spec: AttentionSpec, queries: Queries) -> Key:
    """Shapes that are measured together."""
    return (
        q.device, q.dtype, spec.num_heads, spec.num_kv_heads, spec.head_dim, spec.v_head_dim,
        next_power_of_2(queries.sequences), cdiv(queries.max_query, STEP),
    )  # fmt: skip


def torchs_is_faster(key: Key, ours: Callable[[], object], torchs: Callable[[], object]) -> bool:
    """Measured when a shape is first met; on a CPU, Triton's interpreter, never."""
    if key not in _is_faster:
        _is_faster[key] = key[0].type == "cuda" and seconds(torchs) < seconds(ours)
    return _is_faster[key]


def seconds(run: Callable[[], object]) -> float:
    """The quickest of a few, on the device; before, once to compile."""
    run()
    times = []
    for _ in range(TIMES):
        event: Any = torch.cuda.Event
        begin, end = event(enable_timing=True), event(enable_timing=True)
        begin.record()
        run()
        end.record()
        end.synchronize()
        times.append(float(begin.elapsed_time(end)))
    return min(times)


def by_torch(q: torch.Tensor, kv: CudaKVLayer, spec: AttentionSpec, queries: Queries) -> torch.Tensor:
    """ops.attention of whole_prompts: q [T, heads * head_dim] -> [T, heads * v_head_dim]."""
    count, length = queries.sequences, queries.max_query
    filled = cdiv(length, STEP) * STEP
    k, v = (together(side.pages, queries.page_tables, length, filled) for side in (kv.k, kv.v))
    rows = q.reshape(count, length, spec.num_heads, spec.head_dim)
    if filled > length:
        rows = torch.nn.functional.pad(rows, (0, 0, 0, 0, 0, filled - length))
    grouped = spec.num_heads != spec.num_kv_heads
    y = torch.nn.functional.scaled_dot_product_attention(
        rows.transpose(1, 2), k, v, is_causal=True, scale=spec.scale, enable_gqa=grouped
    )
    return y.transpose(1, 2)[:, :length].reshape(count * length, spec.num_heads * spec.v_head_dim)


def together(pages: torch.Tensor, tables: torch.Tensor, length: int, filled: int) -> torch.Tensor:
    """The first `length` tokens of each sequence, then zeros, of pages [pages, heads, PAGE, dim]:
    [sequences, heads, filled, dim]."""
    _, heads, page, dim = pages.shape
    count, chunks, chunk = tables.shape[0], cdiv(filled, page), page * dim
    out = torch.empty((count, heads, chunks * page, dim), dtype=pages.dtype, device=pages.device)
    gather_kernel[(chunks, heads, count)](
        pages, tables, out, tables.shape[1], length * dim, CHUNK=chunk, BLOCK=next_power_of_2(chunk)
    )
    return out[:, :, :filled]


@triton.jit
def gather_kernel(pages, tables, out, width, used, CHUNK: tl.constexpr, BLOCK: tl.constexpr):
    """A program takes one page of one head of one sequence to where it belongs, CHUNK elements that lie
    together there as here; from element `used` of a sequence on, zeros."""
    index, head, seq = tl.program_id(0), tl.program_id(1), tl.program_id(2)
    heads = tl.num_programs(1)
    i, first = tl.arange(0, BLOCK), index * CHUNK
    page = tl.load(tables + seq * width + index, mask=first < used, other=0).to(tl.int64)
    x = tl.load(pages + (page * heads + head) * CHUNK + i, mask=(i < CHUNK) & (first + i < used), other=0.0)
    target = (seq * heads + head).to(tl.int64) * tl.num_programs(0) * CHUNK + first
    tl.store(out + target + i, x, mask=i < CHUNK)
