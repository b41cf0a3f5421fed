"""Torch, cuBLAS and Triton on an NVIDIA GPU."""

from __future__ import annotations

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
    from octavo.kernels.cuda.launch import build

    return build()


BACKEND = select.BackendRegistration("Triton", _make, device="cuda", build=_build)
