"""Weights (kernels/weight.py) to the panels that the native kernels stream."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby

import numpy as np

from octavo.errors import CheckpointError
from octavo.kernels import _native
from octavo.kernels.outline import Outline, outline_of
from octavo.kernels.weight import BLOCK, Array, Layout, Weight, alike, check_stack, release

_LAYOUTS = {
    Layout.F32: 0, Layout.F16: 1, Layout.BF16: 2, Layout.S8: 3, Layout.U4: 4, Layout.U5: 6,
    Layout.F8: 8, Layout.NF4: 9, Layout.FP4: 10, Layout.U2: 11, Layout.U3: 12,
    Layout.K4: 13, Layout.K5: 14, Layout.K6: 15, Layout.C4: 16,
}  # fmt: skip
_S8_BY_16 = 5
_S8_CUT = 7


class CpuWeight:
    """A packed matrix: native parts of one layout each, stacked along the output rows.

    Most weights are one part; a checkpoint that stores q and v in different formats makes more.

    Attributes:
        layouts: each part's.
    """

    def __init__(self, parts: Sequence[_native.Matrix], layouts: Sequence[Layout], gated: bool) -> None:
        self.parts = tuple(parts)
        self.layouts = tuple(layouts)
        self._gated = gated

    @property
    def shape(self) -> tuple[int, int]:
        return sum(p.shape[0] for p in self.parts), int(self.parts[0].shape[1])

    @property
    def gated(self) -> bool:
        return self._gated

    @property
    def nbytes(self) -> int:
        return sum(int(p.nbytes) for p in self.parts)

    @property
    def spared_bytes(self) -> int:
        """Bytes that a step of greedy rows need not read: the three low bits of a head's numbers."""
        return sum(3 * p.shape[0] * p.shape[1] // 8 for p in self.parts if p.cut)


def _outlined(weights: Sequence[Weight], planned: bool) -> Sequence[Weight]:
    """What pack() is given: the weights, or where they are only planned their forms.

    Raises:
        ValueError: forms are to be packed.
    """
    if planned:
        return [outline_of(w) for w in weights]
    if any(isinstance(w, Outline) for w in weights):
        raise ValueError("an outline has no numbers to pack: it can only be planned")
    return weights


def pack(
    pool: _native.Pool,
    arena: _native.WeightArena,
    weights: Sequence[Weight],
    gated: bool = False,
    head: bool = False,
    planned: bool = False,
) -> CpuWeight:
    """Pack in parallel, releasing the sources as it goes.

    planned: the arena writes nothing: of the weights only the form counts.
    head: numbers of 8 bits that share scales by 32 are cut in two, so that bounds need the first part alone.

    Raises:
        ValueError: gated, and not two weights of one shape.
        CheckpointError: the weights differ in width, or an F8 weight holds NaN.
    """
    check_stack(weights, gated)
    sources = [_packable(w, head) for w in _outlined(weights, planned)]
    if gated and not alike(sources[0], sources[1]):
        sources = [w.dense_f32() for w in weights]  # must be interleaved: one form
    elif gated and _form(sources[0]) != _form(sources[1]):  # zero points beside none
        sources = [w.with_minima() for w in sources]
    parts, layouts = [], []
    for _, group in groupby(sources, key=_form):
        together = list(group)
        parts.append(_pack_part(pool, arena, together, gated, head))
        layouts.append(together[0].layout)
    release(weights)
    return CpuWeight(parts, layouts, gated)


def _packable(w: Weight, head: bool) -> Weight:
    """Zero points stand beside f16 scales only; rows of a table are looked up in W's order of columns.

    S8 by 16 has no minima.
    """
    if (head and w.order is not None) or (w.group == 16 and w.minimum is not None):
        return w.dense_f32()
    if w.layout is Layout.F8 and not isinstance(w, Outline) and (w.values.view(np.uint8) & 127 == 127).any():
        raise CheckpointError("an FP8 weight holds NaN")
    return w.with_minima() if w.scale is not None and w.scale.dtype == np.float32 else w


@dataclass(frozen=True, slots=True)
class _Form:
    """What weights must share to lie in one part.

    Attributes:
        layout: the native one's number.
        minima: of S8; U4 and U5 without them get some where others have them.
        group: blocks of 32 that share scales; of codes columns.
        order: the columns', as bytes.
    """

    layout: int
    minima: bool
    zeros: bool
    group: int
    order: bytes


def _form(w: Weight) -> _Form:
    number = _S8_BY_16 if w.layout is Layout.S8 and w.group == 16 else _LAYOUTS[w.layout]
    minima = w.layout is Layout.S8 and w.minimum is not None
    order = b"" if w.order is None else w.order.tobytes()
    group = w.group if w.layout.coded else max(w.group // BLOCK, 1)
    return _Form(number, minima, w.zero is not None, group, order)


def _pack_part(
    pool: _native.Pool, arena: _native.WeightArena, weights: list[Weight], gated: bool, head: bool
) -> _native.Matrix:
    form, first = _form(weights[0]), weights[0]
    minima = any(w.minimum is not None for w in weights)
    layout = form.layout
    if head and layout == _LAYOUTS[Layout.S8] and not minima and form.group == 1:
        layout = _S8_CUT
    tables = [t for w in weights for t in (w.scale, w.minimum) if t is not None]
    # Minima of -8 or -16 times the scale, which some need beside others' own, are exact in f32.
    wide = any(t.dtype == np.float32 for t in tables) or (minima and any(w.minimum is None for w in weights))
    native = _native.Form(
        layout=layout,
        k=first.shape[1],
        gated=gated,
        wide=wide,
        minima=minima or form.zeros,
        zeros=form.zeros,
        group=form.group,
    )
    held: list[Array] = []  # copies that must live until the packing is done
    sources = [_source(w, held) for w in weights]
    # Pages that are still to be read come back when they are: at no time is a whole table held twice.
    return _native.pack(
        pool=pool,
        arena=arena,
        form=native,
        sources=sources,
        order=None if first.order is None else np.ascontiguousarray(first.order, np.int32),
        after_slice=lambda: release(weights),
    )


def _source(w: Weight, held: list[Array]) -> _native.Source:
    if isinstance(w, Outline):
        return _native.Source(
            values=0, rows=w.shape[0], row_stride=0, block_stride=0, scale=None, minimum=None
        )
    values = _addressable(w.values.view(np.uint8) if w.layout is Layout.F8 else w.values, held)
    block_stride = values.strides[1] if w.layout.quantized else 0
    return _native.Source(
        values=values.ctypes.data,
        rows=w.shape[0],
        row_stride=values.strides[0],
        block_stride=block_stride,
        scale=_table(w.scale, held),
        minimum=_table(w.minimum if w.zero is None else w.zero, held),
    )


def _table(table: Array | None, held: list[Array]) -> _native.Table | None:
    if table is None:
        return None
    if table.dtype not in (np.float16, np.float32, np.uint8):
        raise CheckpointError(f"scales must be f16 or f32, not {table.dtype}")
    table = table.astype(table.dtype.newbyteorder("="), copy=False)
    held.append(table)
    return _native.Table(
        data=table.ctypes.data,
        row_stride=table.strides[0],
        column_stride=table.strides[1],
        wide=bool(table.dtype == np.float32),
    )


def _addressable(values: Array, held: list[Array]) -> Array:
    """Elements of the last axis must be adjacent, and in the machine's byte order."""
    values = values.astype(values.dtype.newbyteorder("="), copy=False)
    if values.shape[-1] > 1 and values.strides[-1] != values.dtype.itemsize:
        values = np.ascontiguousarray(values)
    held.append(values)
    return values
