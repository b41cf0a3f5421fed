"""The ops in NumPy: slow, and always there."""

from __future__ import annotations

from typing import TYPE_CHECKING

from octavo.errors import InvalidRequestError, UnsupportedError
from octavo.kernels import select

if TYPE_CHECKING:
    from octavo.kernels.ops import Backend


def _make(wanted: select.WantedBackend) -> Backend:
    from octavo.kernels.reference import ReferenceBackend

    if wanted.planned:
        raise UnsupportedError("planning memory needs the native kernels (--backend cpu)", "backend")
    if wanted.isa != "auto":
        raise InvalidRequestError(f"isa {wanted.isa!r} needs the native kernels", "isa")
    backend = ReferenceBackend(wanted.threads)
    backend.kv_dtype = wanted.cpu_kv_dtype
    return backend


BACKEND = select.BackendRegistration("NumPy", _make)
