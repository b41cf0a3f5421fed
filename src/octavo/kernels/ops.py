"""The hardware boundary: what model code, the runtime and the backends have in common.

types.py          handles (Tensor, Inputs, PackedWeight) and specs (AttentionSpec, Routing, KVSpec)
operations.py     Ops: every operation that model code may use
forward_batch.py  ForwardBatch: the arrays of one forward pass, and Limits of them
backend.py        Backend: what makes weights, pages, programs and samplers

Model code is ordinary Python over the methods of Ops. It sees Tensors as opaque handles: a row kind and
a width, no shape arithmetic, no slicing, no operators, so that whatever a forward does can be
recorded once and replayed (kernels/program.py on the CPU, CUDA graphs on the GPU).

`reference.py` implements each method in NumPy: the executable form of operations.py. Every other
backend is tested against it, op by layout by shape. Activations are f32 unless stated.

Determinism: a row of an output depends on its own inputs only, in an order of additions that is
fixed by the row and by K or by KV positions, never by the number of rows or threads (the reference
keeps this to 1e-5, because BLAS chooses its order by shape).
"""

from octavo.kernels.backend import Backend, Forward, KVCache, LateCopies, PageBytes, Program
from octavo.kernels.draws import DecodeRows, RowDecoder, RowSampler
from octavo.kernels.forward_batch import Limits
from octavo.kernels.operations import Ops
from octavo.kernels.types import (
    F32,
    NO_NORMS,
    U8,
    UNSCALED,
    Activation,
    AttentionSpec,
    Experts,
    HeadNorms,
    Inputs,
    KVLayer,
    KVSpec,
    PackedWeight,
    Rotary,
    Routing,
    Rows,
    Scaling,
    Sight,
    Tensor,
)

__all__ = [
    "F32",
    "NO_NORMS",
    "U8",
    "UNSCALED",
    "Activation",
    "AttentionSpec",
    "Backend",
    "DecodeRows",
    "Experts",
    "Forward",
    "HeadNorms",
    "Inputs",
    "KVCache",
    "KVLayer",
    "KVSpec",
    "LateCopies",
    "Limits",
    "Ops",
    "PackedWeight",
    "PageBytes",
    "Program",
    "Rotary",
    "Routing",
    "RowDecoder",
    "RowSampler",
    "Rows",
    "Scaling",
    "Sight",
    "Tensor",
]
