"""Backends of kernels/cuda under Triton's interpreter, and single ops on them."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

from octavo.kernels.forward_batch import ForwardBatch
from octavo.kernels.ops import F32, Inputs, Ops, Rows, Tensor
from octavo.kernels.reference import ReferenceBackend

REFERENCE = ReferenceBackend()
Apply = Callable[[Ops, Inputs, list[Tensor]], Tensor]


@cache
def interpreted(**options: Any) -> Any:
    """A CudaBackend on device "cpu", of f32 unless told otherwise."""
    from octavo.kernels.cuda import make

    return make("cpu", **{"dtype": "float32", **options})


def run(backend: Any, batch: ForwardBatch, apply: Apply, *arrays: F32, rows: Rows = Rows.TOKENS) -> F32:
    """One op, or a few, on a CudaBackend."""
    ops = backend.eager(batch)
    result: F32 = ops.value(apply(ops, Inputs(batch), [ops.tensor(x, rows) for x in arrays]))
    return result


def by_reference(batch: ForwardBatch, apply: Apply, *arrays: F32, rows: Rows = Rows.TOKENS) -> F32:
    result: F32 = apply(REFERENCE.ops, Inputs(batch), [Tensor(rows, x.shape[1], x) for x in arrays]).ref
    return result
