"""Weights (kernels/weight.py) on a device, laid out for the kernels of gemm.py.

    layout   values                       scale, minimum
    dense    [N, K] of the compute type   -
    S8       int8 [K/32, N, 32]           f16 or f32 [K/G, N]
    U4       uint8 [K/32, N, 16]          f16 or f32 [K/G, N]
    F8       uint8 [N, K]                 f32 [1 or K/128, N]
    NF4, FP4 uint8 [K/64, N, 32]          f32 [K/64, N]

One block of 32 columns of all rows lies together, so the rows of a tile are read as one stretch.
K4 becomes U4; U2, U3, U5, K5, K6 and C4 become S8, and zero points minima. Byte j of a block of NF4 or FP4
holds element j in its low nibble and element j + 32 in its high one.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import groupby

import numpy as np
import torch

from octavo.errors import CheckpointError
from octavo.kernels.weight import BLOCK, Array, Layout, Weight, check_stack, release


@dataclass(frozen=True, slots=True, eq=False)
class PackedRows:
    """Rows of one layout. layout is F32 for every dense part, whatever its type.

    code: the numbers that NF4's or FP4's codes mean.
    order: Weight.order, by which x is taken before it meets them; None: as it is.

    Experts that were stacked have one more dimension, in front.
    """

    layout: Layout
    rows: int
    columns: int
    values: torch.Tensor
    scale: torch.Tensor | None = None
    minimum: torch.Tensor | None = None
    code: torch.Tensor | None = None
    order: torch.Tensor | None = None

    @property
    def quantized(self) -> bool:
        """Of integers, which x may meet rounded to int8."""
        return self.layout.quantized

    @property
    def dense(self) -> bool:
        return self.layout is Layout.F32

    @property
    def group(self) -> int:
        return 0 if self.scale is None else self.columns // self.scale.shape[-2]

    @property
    def tensors(self) -> list[torch.Tensor]:
        return [t for t in (self.values, self.scale, self.minimum) if t is not None]


class CudaWeight:
    """A packed matrix: parts of one layout each, stacked along the output rows."""

    def __init__(self, parts: Sequence[PackedRows], gated: bool) -> None:
        self.parts = tuple(parts)
        self._gated = gated

    @property
    def shape(self) -> tuple[int, int]:
        return sum(p.rows for p in self.parts), self.parts[0].columns

    @property
    def gated(self) -> bool:
        return self._gated

    @property
    def nbytes(self) -> int:
        return sum(t.nbytes for p in self.parts for t in p.tensors)


def pack(weights: Sequence[Weight], gated: bool, dtype: torch.dtype, device: torch.device) -> CudaWeight:
    """Move weights to the device, one source at a time, and release each.

    Raises:
        ValueError: gated, and not two weights of one shape.
        CheckpointError: the weights differ in width, or an F8 weight holds NaN.
    """
    check_stack(weights, gated)
    sources = [w.widened().with_minima() for w in weights]
    if gated and _form(sources[0]) != _form(sources[1]):
        sources = [Weight.dense(w.dequantize()) for w in sources]
    parts = []
    for _, group in groupby(sources, key=_form):
        parts.append(_stack_rows([_part(w, dtype, device) for w in group]))
    release(weights)
    return CudaWeight(parts, gated)


def stack(weights: Sequence[CudaWeight]) -> PackedRows:
    """Experts of one shape as one part [E, ...]. The experts become views of it: nothing is held twice.

    Raises:
        CheckpointError: the experts differ in layout, or have columns in an order of their own.
    """
    parts = [w.parts[0] for w in weights]
    first = parts[0]
    forms = {(p.layout, p.rows, p.columns, p.group, p.minimum is None) for p in parts}
    if len(forms) > 1 or any(len(w.parts) > 1 for w in weights):
        raise CheckpointError("the experts of a layer must share one weight format")
    if any(p.order is not None for p in parts):
        raise CheckpointError("experts with act-order (desc_act) are not supported on a GPU")

    def together(tensors: list[torch.Tensor | None]) -> torch.Tensor | None:
        return None if tensors[0] is None else torch.stack([t for t in tensors if t is not None])

    values = torch.stack([p.values for p in parts])
    scale, minimum = together([p.scale for p in parts]), together([p.minimum for p in parts])
    for e, w in enumerate(weights):
        w.parts = (
            replace(
                first,
                values=values[e],
                scale=None if scale is None else scale[e],
                minimum=None if minimum is None else minimum[e],
            ),
        )
    return replace(first, values=values, scale=scale, minimum=minimum)


def _form(w: Weight) -> tuple[Layout, int, bytes]:
    """What weights must share to lie in one part. Minima that some lack are filled in."""
    if not (w.layout.quantized or w.layout.coded):
        return Layout.F32, 1, b""
    return w.layout, w.group, b"" if w.order is None else w.order.tobytes()


def _part(w: Weight, dtype: torch.dtype, device: torch.device) -> PackedRows:
    n, k = w.shape
    if w.layout.coded:
        return _coded(w, device)
    if not w.layout.quantized:
        return PackedRows(Layout.F32, n, k, _tensor(w.values).to(device).to(dtype))
    values = _tensor(w.values).to(device).transpose(0, 1).contiguous()
    assert w.scale is not None  # checked by Weight
    order = None if w.order is None else torch.tensor(w.order, dtype=torch.int64, device=device)
    return PackedRows(w.layout, n, k, values, _table(w.scale, device), _minima(w, device), order=order)


def _coded(w: Weight, device: torch.device) -> PackedRows:
    n, k = w.shape
    assert w.scale is not None  # checked by Weight
    scale, codes = _table(w.scale, device), _tensor(w.values.view(np.uint8)).to(device)
    if w.layout is Layout.F8:
        if bool(((codes & 127) == 127).any()):
            raise CheckpointError("an FP8 weight holds NaN")
        return PackedRows(w.layout, n, k, codes, scale)
    numbers = torch.stack([codes >> 4, codes & 15], dim=2).view(n, k // 64, 2, 32).transpose(0, 1)
    packed = numbers[:, :, 0] | numbers[:, :, 1] << 4
    return PackedRows(w.layout, n, k, packed.contiguous(), scale, code=torch.tensor(w.code, device=device))


def _minima(w: Weight, device: torch.device) -> torch.Tensor | None:
    """U4 always has minima on the device: -8 * scale is exact in the scale's own type."""
    if w.minimum is not None:
        return _table(w.minimum, device)
    assert w.scale is not None
    return _table(w.scale, device) * -8 if w.layout is Layout.U4 else None


def _table(table: Array, device: torch.device) -> torch.Tensor:
    """[N, K/G] as [K/G, N]."""
    if table.dtype not in (np.float16, np.float32):
        raise CheckpointError(f"scales must be f16 or f32, not {table.dtype}")
    return _tensor(table).to(device).t().contiguous()


def _stack_rows(parts: list[PackedRows]) -> PackedRows:
    """Parts of one form along their rows."""
    if len(parts) == 1:
        return parts[0]
    minima = [p.minimum for p in parts]
    if any(m is None for m in minima) and any(m is not None for m in minima):
        parts = [
            replace(p, minimum=torch.zeros_like(p.scale)) if p.minimum is None and p.scale is not None else p
            for p in parts
        ]
    rows = sum(p.rows for p in parts)
    if parts[0].dense:
        return replace(parts[0], rows=rows, values=torch.cat([p.values for p in parts]))

    def joined(tensors: list[torch.Tensor | None]) -> torch.Tensor | None:
        found = [t for t in tensors if t is not None]
        if not found:
            return None
        wide = any(t.dtype == torch.float32 for t in found)
        return torch.cat([t.float() if wide else t for t in found], dim=1)

    return replace(
        parts[0],
        rows=rows,
        values=torch.cat([p.values for p in parts], dim=0 if parts[0].layout is Layout.F8 else 1),
        scale=joined([p.scale for p in parts]),
        minimum=joined([p.minimum for p in parts]),
    )


def _tensor(array: Array) -> torch.Tensor:
    """A torch tensor of a (strided, maybe read-only or foreign-endian) array; bf16 by its bits."""
    native = np.ascontiguousarray(array.astype(array.dtype.newbyteorder("="), copy=False))
    if native.dtype.name == "bfloat16":
        return torch.from_numpy(native.view(np.int16).copy()).view(torch.bfloat16)
    return torch.from_numpy(native if native.flags.writeable else native.copy())


__all__ = ["BLOCK", "CudaWeight", "PackedRows", "pack", "stack"]
