"""The GPU backend: torch tensors and cuBLAS, Triton kernels for what torch lacks.

Rooms of this package: device (which GPU, and clear errors where there is none), weight and kv (what
is stored), pages, norms, rotary, attention, prompts, gemm, coded, integer, moe, draw, draw_math, edits,
logprobs (Triton), ops (kernels.ops over them), eager, buckets, program and steps (CUDA graphs), capture,
sample (the order of draw's kernels), lane (pinned memory), errors, backend. Torch and Triton are imported
only when a backend is made.

On device "cpu" Triton's interpreter runs the same kernels, slowly: for tests without a GPU.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from octavo.kernels.cuda.backend import CudaBackend


def make(device: str, **options: Any) -> CudaBackend:
    """A CudaBackend on device "cuda", "cuda:N" or "cpu" (interpreted); options are its own."""
    from octavo.kernels.cuda.launch import prepare

    prepare(interpret=device == "cpu")
    from octavo.kernels.cuda.backend import CudaBackend

    return CudaBackend(device, **options)
