"""The C++ kernels of csrc/, for the instruction set that the CPU runs best."""

from __future__ import annotations

from typing import TYPE_CHECKING

from octavo.kernels import select

if TYPE_CHECKING:
    from octavo.kernels.ops import Backend


def _make(wanted: select.WantedBackend) -> Backend:
    from octavo.kernels.cpu import CpuBackend

    backend = CpuBackend(threads=wanted.threads, isa=wanted.isa, planned=wanted.planned)
    backend.kv_dtype = wanted.cpu_kv_dtype
    return backend


def _missing() -> str | None:
    built = select.native_available()
    return None if built else "the native kernels are not built (reinstall octavo with a C++ compiler)"


BACKEND = select.BackendRegistration("native kernels", _make, rank=1, missing=_missing)
