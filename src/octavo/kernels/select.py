"""Which backend: a file of backends/ declares one as BACKEND, and nothing else lists it.

The configuration's check, --help, `octavo env` and what "auto" takes follow from these files.
"""

from __future__ import annotations

import importlib
import importlib.util
import pkgutil
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from octavo.errors import InvalidRequestError

if TYPE_CHECKING:
    from octavo.kernels.ops import Backend

_PACKAGE = "octavo.kernels.backends"


@dataclass(frozen=True, slots=True)
class WantedBackend:
    """What a backend is asked to be.

    Attributes:
        threads, isa, dtype, bit_exact, round_activations, enforce_eager: EngineConfig's; a backend that has
            no choice there ignores what is asked of it.
        device: "cpu", "cuda" or "cuda:N", one that can be used (kernels.cuda.device.choose).
        planned: it weighs what a model would take, and runs nothing.
    """

    threads: int = 1
    isa: str = "auto"
    dtype: str = "auto"
    device: str = "cpu"
    planned: bool = False
    bit_exact: bool = False
    round_activations: bool = False
    enforce_eager: bool = False

    @property
    def cpu_kv_dtype(self) -> str | None:
        """Integers where nobody chose: at least as exact as float16, and twice as many to an instruction."""
        return "int16" if self.dtype == "auto" else None


@dataclass(frozen=True, slots=True)
class BackendRegistration:
    """What a file of backends/ says of itself; the file's name is the backend's.

    Attributes:
        about: what it is in a word or two, for --help.
        make: raises OctavoError where it cannot be what is wanted.
        device: the kind of device that it is for. Of several for "cpu" a user names one, or "auto" takes the
            one of the highest rank that is there; other devices have one each.
        missing: why it is not there; None: it is. Asked often, so it loads nothing.
        build: of a backend without the C++ extension: names what its kernels are compiled from, and by what.
    """

    about: str
    make: Callable[[WantedBackend], Backend]
    device: str = "cpu"
    rank: int = 0
    missing: Callable[[], str | None] = lambda: None
    build: Callable[[], str] | None = None


def registered(device: str = "cpu") -> dict[str, BackendRegistration]:
    """The backends for a kind of device by their names, the best first."""
    path = importlib.import_module(_PACKAGE).__path__
    found = {
        m.name: importlib.import_module(f"{_PACKAGE}.{m.name}").BACKEND for m in pkgutil.iter_modules(path)
    }
    ranked = sorted(found, key=lambda name: (-found[name].rank, name))
    return {name: found[name] for name in ranked if found[name].device == device}


def backend_help() -> str:
    """What --backend may be."""
    names = [f"{name} ({one.about})" for name, one in registered().items()]
    return f"auto, {', '.join(names[:-1])} or {names[-1]}."


def make_backend(name: str, wanted: WantedBackend) -> Backend:
    """
    Args:
        name: "auto", or one of registered() for a CPU; the device's own is taken on another one.

    Raises:
        OctavoError: it is not there, or cannot be what is wanted.
    """
    kind = wanted.device.partition(":")[0]
    found = registered(kind)
    if kind == "cpu" and name != "auto":
        if (why := found[name].missing()) is not None:
            raise InvalidRequestError(f"backend {name} cannot be had: {why}", "backend")
        return found[name].make(wanted)
    best = next(iter(found.values()))
    taken = next(one for one in found.values() if one.missing() is None)
    backend = taken.make(wanted)
    if taken is not best:
        warnings.warn(f"{best.missing()}; running on {taken.about}, slowly", RuntimeWarning, stacklevel=2)
    return backend


def native_available() -> bool:
    """Whether the C++ extension was built."""
    return importlib.util.find_spec("octavo.kernels._native") is not None


@lru_cache(maxsize=8)
def native_class(name: str) -> Any:
    """A class of the C++ extension; None: that was not built."""
    return getattr(importlib.import_module("octavo.kernels._native"), name) if native_available() else None


def kernels_hash(name: str) -> str:
    """Of what computes on the backend of this name: another build may compute other bits. Empty: it is the
    C++ extension, which was not built."""
    import hashlib

    build: Callable[[], str] | None = importlib.import_module(f"{_PACKAGE}.{name}").BACKEND.build
    if build is not None:
        return build()
    found = importlib.util.find_spec("octavo.kernels._native")
    if found is None or found.origin is None:
        return ""
    return hashlib.sha256(Path(found.origin).read_bytes()).hexdigest()
