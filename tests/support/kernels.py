"""Random weights and batches for tests of kernels."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import ml_dtypes
import numpy as np

from octavo.kernels.forward_batch import ForwardBatch
from octavo.kernels.ops import F32, Limits, Rows
from octavo.kernels.program import Buffer
from octavo.kernels.reference_math import round_to_int8
from octavo.kernels.weight import Layout, Weight

if TYPE_CHECKING:  # GPUs are tested without the extension, too
    from octavo.kernels.cpu import CpuBackend

LAYOUTS = (
    "f32",
    "f16",
    "bf16",
    "s8",
    "s8-wide",
    "s8-min",
    "s8-by16",
    "s8-by16-wide",
    "u4",
    "u4-min",
    "u4-min-wide",
    "u5",
    "u5-min",
    "u5-min-wide",
    "s8-row",
    "s8-min-row-wide",
    "s8-order",
    "u4-row",
    "u4-zero",
    "u4-zero-row",
    "u4-zero-row-wide",
    "u4-zero-order",
)
"""row: one scale for all columns. order: columns in an order of their own."""
FEW_BITS = ("u2", "u3")
WHOLE_STEPS = ("k4", "k5", "k6", "c4", "c4-block")
"""block: a scale of 32 columns."""
STEPPED = (*FEW_BITS, *WHOLE_STEPS)
"""With scales in two levels: of a multiple of 256 columns."""
_STEPPED_BYTES = {"u2": 10, "u3": 14, "k4": 18, "k5": 22, "k6": 26, "c4": 17}
CODED = ("f8", "f8-blocks", "nf4", "fp4")
"""Of codes of floats; nf4 and fp4 need a multiple of 64 columns."""


def columns(kind: str, least: int) -> int:
    """So many columns that a weight of this kind can have, at least these: a multiple of its group."""
    return -(-least // 256) * 256 if kind in STEPPED else least


def normal(rng: np.random.Generator, *shape: int) -> F32:
    return rng.standard_normal(shape).astype(np.float32)


def random_weight(rng: np.random.Generator, kind: str, n: int, k: int) -> Weight:
    """A weight [n, k] of one of LAYOUTS or CODED, as strided views where a file would give such."""
    if kind in ("f32", "f16", "bf16"):
        dtype = {"f32": np.float32, "f16": np.float16, "bf16": ml_dtypes.bfloat16}[kind]
        return Weight.dense(normal(rng, n, k).astype(dtype))
    if kind in ("nf4", "fp4"):
        return Weight(Layout(kind), (n, k), rng.integers(0, 256, (n, k // 2)).astype(np.uint8),
                      rng.uniform(0.01, 0.1, (n, k // 64)).astype(np.float32))  # fmt: skip
    if kind.startswith("f8"):
        scale = rng.uniform(0.001, 0.01, (n, -(-k // 128) if "blocks" in kind else 1)).astype(np.float32)
        codes = rng.integers(0, 256, (n, k)).astype(np.uint8)
        codes[(codes & 127) == 127] = 5  # NaN
        return Weight(Layout.F8, (n, k), codes.view(ml_dtypes.float8_e4m3fn), scale)
    blocks = k // 32
    if kind in STEPPED:
        name, _, by = kind.partition("-")
        q = rng.integers(0, 256, (n, blocks, _STEPPED_BYTES[name])).astype(np.uint8)
        if name in ("u3", "k4", "k5"):
            q[:, :, -2:] &= 63
        if name == "c4":
            q[:, :, -1] = (q[:, :, -1] & 63) - np.uint8(32)
        groups, large = k // (32 if by else 256), 8 if name in ("k6", "c4") else 1
        d, m = (rng.uniform(0.0005 / large, 0.003 / large, (n, groups)).astype(np.float16) for _ in "dm")
        return Weight(Layout(name), (n, k), q, d, -m if name in ("u2", "k4", "k5") else None)
    wide = kind.endswith("wide")
    if "row" in kind or "zero" in kind or "order" in kind:
        return grouped_weight(rng, kind, n, k, k if "row" in kind else 32)
    scale_type = np.dtype(np.float32 if wide else np.float16)
    s8 = kind.startswith("s8")
    if "by16" in kind:
        scale = rng.uniform(0.01, 0.1, (n, 2 * blocks)).astype(scale_type)
        return Weight(Layout.S8, (n, k), rng.integers(-128, 128, (n, blocks, 32)).astype(np.int8), scale)
    size = 32 if s8 else 20 if kind.startswith("u5") else 16
    block = np.dtype([("d", scale_type), ("m", scale_type), ("q", "i1" if s8 else "u1", (size,))])
    stored = np.zeros((n, blocks), block)
    stored["d"] = rng.uniform(0.01, 0.1, (n, blocks))
    stored["m"] = rng.uniform(-0.8, 0.1, (n, blocks))
    if s8:
        stored["q"] = rng.integers(-128, 128, (n, blocks, 32))
        return Weight(Layout.S8, (n, k), stored["q"], stored["d"], stored["m"] if "min" in kind else None)
    stored["q"] = rng.integers(0, 256, (n, blocks, size))
    layout = Layout.U5 if kind.startswith("u5") else Layout.U4
    return Weight(layout, (n, k), stored["q"], stored["d"], stored["m"] if "min" in kind else None)


def grouped_weight(rng: np.random.Generator, kind: str, n: int, k: int, group: int) -> Weight:
    """Integers [n, k] with scales of groups of columns; in kind, perhaps: min, zero, order, wide."""
    layout = Layout(kind[:2])
    size = {Layout.S8: 32, Layout.U4: 16, Layout.U5: 20}[layout]
    values = rng.integers(0, 256, (n, k // 32, size)).astype(np.uint8).view(layout.dtype)

    def table(low: float, high: float) -> Any:
        numbers = rng.uniform(low, high, (n, k // group))
        if "zero" in kind and "wide" in kind:  # of 8 bits: zero points times scales are exact
            numbers = numbers.astype(ml_dtypes.bfloat16)
        return numbers.astype(np.float32 if "wide" in kind else np.float16)

    return Weight(
        layout,
        (n, k),
        values,
        table(0.01, 0.1),
        table(-0.8, 0.1) if "min" in kind else None,
        zero=rng.integers(0, 17, (n, k // group)).astype(np.uint8) if "zero" in kind else None,
        order=rng.permutation(k).astype(np.int32) if "order" in kind else None,
    )


def batch_of(
    rng: np.random.Generator,
    context_lens: Sequence[int],
    query_lens: Sequence[int],
    page_size: int = 16,
    num_pages: int | None = None,
    vocab: int = 50,
    ascending: bool = False,
) -> ForwardBatch:
    """Sequences whose last query_lens tokens are this batch's, on random distinct pages.

    Args:
        ascending: on pages that follow each other instead, as a pool with room gives them.
    """
    counts = [-(-length // page_size) for length in context_lens]
    total = sum(counts) if num_pages is None else num_pages
    pages = (np.arange(total) if ascending else rng.permutation(total)).astype(np.int32)
    tables = np.zeros((len(context_lens), max(counts, default=1)), np.int32)
    taken = 0
    for s, count in enumerate(counts):
        tables[s, :count] = pages[taken : taken + count]
        taken += count
    return batch_on(rng, tables, context_lens, query_lens, page_size, vocab)


def batch_on(
    rng: np.random.Generator,
    tables: np.ndarray[tuple[int, int], np.dtype[np.int32]],
    context_lens: Sequence[int],
    query_lens: Sequence[int],
    page_size: int,
    vocab: int = 50,
) -> ForwardBatch:
    """A batch on given page tables; every sequence's last token is sampled."""
    positions = [np.arange(c - q, c, dtype=np.int32) for c, q in zip(context_lens, query_lens, strict=True)]
    slots = [tables[s][p // page_size] * page_size + p % page_size for s, p in enumerate(positions)]
    start = np.zeros(len(context_lens) + 1, np.int32)
    start[1:] = np.cumsum(query_lens)
    none = [np.zeros(0, np.int32)]
    return ForwardBatch(
        token_ids=rng.integers(0, vocab, int(start[-1])).astype(np.int32),
        positions=np.concatenate(positions or none),
        slots=np.concatenate(slots or none).astype(np.int32),
        query_start=start,
        context_lens=np.array(context_lens, np.int32),
        page_tables=np.ascontiguousarray(tables, np.int32),
        sampled=(start[1:] - 1)[np.array(query_lens, int) > 0].astype(np.int32),
    )


def limits_of(batch: ForwardBatch) -> Limits:
    return Limits(
        max(batch.num_tokens, 1),
        max(batch.num_sequences, 1),
        max(batch.num_sampled, 1),
        batch.page_tables.shape[1],
    )


def tokens_batch(rows: int) -> ForwardBatch:
    """A batch whose only meaning is its number of tokens, all of one sequence."""
    return batch_of(np.random.default_rng(0), [rows] if rows else [], [rows] if rows else [], num_pages=rows)


def linear(backend: CpuBackend, x: F32, weights: list[Weight], gated: bool = False, **options: object) -> F32:
    """One eager linear; residual may be among the options, as an array."""
    batch = tokens_batch(len(x))
    ops = backend.eager(batch, limits_of(batch))
    packed = backend.pack(weights, gated)
    if isinstance(residual := options.pop("residual", None), np.ndarray):
        options["residual"] = ops.tensor(residual, Buffer(Rows.TOKENS, residual.shape[1]))
    y = ops.linear(ops.tensor(x, Buffer(Rows.TOKENS, x.shape[1])), packed, **options)  # type: ignore[arg-type]
    return ops.value(y)


def check_against_exact(got: F32, x: F32, w: Weight) -> None:
    """Rounding errors of a sum of K terms in f32, and of nothing else.

    Of scales in two levels products and minima are summed up apart, each with its own size.
    """
    seen = (round_to_int8(x, w.order) if w.layout.quantized else x).astype(np.float64)
    dense = w.dequantize().astype(np.float64)
    size = np.abs(dense)
    if w.layout.stepped and (minimum := w.widened().minimum) is not None:
        each = x.shape[1] // minimum.shape[1]
        size = size + 2 * np.repeat(np.abs(minimum.astype(np.float64)), each, axis=1)
    bound = 4e-7 * np.sqrt(x.shape[1]) * (np.abs(seen) @ size.T) + 1e-30
    assert (np.abs(got - seen @ dense.T) <= bound).all()
