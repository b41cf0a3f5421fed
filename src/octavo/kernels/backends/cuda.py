"""Torch, cuBLAS and Triton on an NVIDIA GPU."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import TYPE_CHECKING

from octavo.kernels import select

if TYPE_CHECKING:
    from octavo.kernels.ops import Backend


def _make(wanted: select.WantedBackend) -> Backend:
    from octavo.kernels import cuda

    return cuda.make(
        wanted.device,
        dtype="bfloat16" if wanted.dtype == "auto" else wanted.dtype,
        exact=wanted.bit_exact,
        rounds=wanted.round_activations,
        graphs=not wanted.enforce_eager,
    )


def _build() -> str:
    """Of the kernels' sources, and of who compiles them or brings kernels of its own."""
    import torch
    import triton

    made = hashlib.sha256(f"{torch.__version__} {triton.__version__} {torch.version.cuda}".encode())
    for file in sorted((Path(__file__).parents[1] / "cuda").glob("*.py")):
        made.update(file.read_bytes())
    return made.hexdigest()


BACKEND = select.BackendRegistration("Triton", _make, device="cuda", build=_build)
