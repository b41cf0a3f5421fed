"""Choosing a backend: the native kernels where they were built, else the NumPy reference."""

from __future__ import annotations

import hashlib
import importlib.util
import warnings
from dataclasses import asdict, dataclass
from pathlib import Path

from octavo.errors import InvalidRequestError, UnsupportedError
from octavo.kernels.cuda.device import choose_device
from octavo.kernels.ops import Backend


def native_available() -> bool:
    """Whether the C++ extension was built."""
    return importlib.util.find_spec("octavo.kernels._native") is not None


def kernels_hash() -> str:
    """Of the C++ extension's file: another build may compute other bits. Empty: it was not built."""
    found = importlib.util.find_spec("octavo.kernels._native")
    if found is None or found.origin is None:
        return ""
    return hashlib.sha256(Path(found.origin).read_bytes()).hexdigest()


@dataclass(frozen=True, slots=True)
class GpuOptions:
    """What only a GPU can do otherwise: EngineConfig.bit_exact, round_activations and enforce_eager."""

    exact: bool = False
    rounds: bool = False
    graphs: bool = True


def make_backend(
    name: str, isa: str, threads: int, device: str = "cpu", dtype: str = "auto", gpu: GpuOptions | None = None
) -> Backend:
    """The backend called name: "auto", "cpu" or "reference".

    Args:
        device: "auto", "cpu", "cuda" or "cuda:N" (cuda.device.choose_device). On a GPU dtype "auto"
            is bfloat16.

    Raises:
        InvalidRequestError: it was not built, or does not know the instruction set.
    """
    if (chosen := choose_device(device, name)) != "cpu":
        from octavo.kernels.cuda import make

        options = asdict(gpu or GpuOptions())
        return make(chosen, dtype="bfloat16" if dtype == "auto" else dtype, **options)
    if name == "reference" or (name == "auto" and not native_available()):
        from octavo.kernels.reference import ReferenceBackend

        if isa != "auto":
            raise InvalidRequestError(f"isa {isa!r} needs the native kernels", "isa")
        if name == "auto":
            warnings.warn(
                "the native kernels are not built; running the slow NumPy reference "
                "(reinstall octavo with a C++ compiler)",
                RuntimeWarning,
                stacklevel=2,
            )
        return _with_pages(ReferenceBackend(threads), dtype)
    if not native_available():
        raise InvalidRequestError("backend cpu needs the native kernels, which are not built", "backend")
    from octavo.kernels.cpu import CpuBackend

    return _with_pages(CpuBackend(threads=threads, isa=isa), dtype)


def make_planner(name: str, isa: str, threads: int, dtype: str = "auto") -> Backend:
    """The backend that weighs what the native kernels would take, and runs nothing (CpuBackend.planned).

    Raises:
        UnsupportedError: another backend is asked for, or they are not built.
    """
    if name == "reference" or not native_available():
        raise UnsupportedError("planning memory needs the native kernels (--backend cpu)", "backend")
    from octavo.kernels.cpu import CpuBackend

    return _with_pages(CpuBackend(threads=threads, isa=isa, planned=True), dtype)


def _with_pages(backend: Backend, dtype: str) -> Backend:
    """Integers where nobody chose: at least as exact as float16, and twice as many to an instruction."""
    backend.kv_dtype = "int16" if dtype == "auto" else None
    return backend
