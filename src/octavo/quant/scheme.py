"""The registry of schemes, and what they share."""

from __future__ import annotations

import importlib
import pkgutil
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

import ml_dtypes
import numpy as np
import numpy.typing as npt

from octavo.checkpoints.base import StoredTensor
from octavo.errors import CheckpointError
from octavo.kernels.coded import F8_GROUP
from octavo.kernels.outline import Outline
from octavo.kernels.weight import F32Array, Layout, Weight
from octavo.quant.registry import get_format

_PACKAGE = "octavo.quant.schemes"

Take = Callable[[str], StoredTensor | None]
"""The tensor of that name, from then on counted as read; None: there is none."""
Settings = Mapping[str, Any]
"""config.json's quantization_config."""


class Scheme(Protocol):
    """Reads the matrices of one checkpoint."""

    def __call__(self, name: str, shape: tuple[int, int], take: Take) -> Weight | None:
        """The weight [N, K] of the tensor called name; None: this one is stored plainly.

        Raises:
            CheckpointError: its tensors do not make such a matrix.
        """
        ...


@runtime_checkable
class Outlining(Protocol):
    """A scheme that says what a matrix will be without a look at its numbers."""

    def outline(self, name: str, shape: tuple[int, int], take: Take) -> Outline | None:
        """The form of what the scheme makes of these tensors, which count as read; None: as the scheme's."""
        ...


def names() -> list[str]:
    """The methods that can be read, as quantization_config spells them (`-` and `_` are one)."""
    path = importlib.import_module(_PACKAGE).__path__
    return sorted(m.name for m in pkgutil.iter_modules(path))


def scheme_of(config: Mapping[str, Any]) -> Scheme | None:
    """The scheme of a checkpoint's config.json; None: it names none.

    Raises:
        CheckpointError: an unknown method, or settings of it that are not covered.
    """
    settings = config.get("quantization_config")
    if settings is None:
        return None
    scheme: Scheme = _module_of(settings).open_scheme(settings)
    return scheme


def method_of(config: Mapping[str, Any]) -> str | None:
    """The quant_method of a config.json, its `-` as `_`; None: it names none."""
    settings = config.get("quantization_config")
    if settings is None:
        return None
    method = settings.get("quant_method") if isinstance(settings, dict) else None
    return str(method).replace("-", "_")


def also_called(config: Mapping[str, Any]) -> tuple[str, ...]:
    """What else than its quant_method a config.json's format is called by who asks for one."""
    settings = config.get("quantization_config")
    called = getattr(_module_of(settings), "also_called", None)
    return called(settings) if callable(called) else ()


def _module_of(settings: Any) -> Any:
    """The file of schemes/ that reads this quantization_config."""
    method = settings.get("quant_method") if isinstance(settings, dict) else None
    module = str(method).replace("-", "_")
    if module not in names():
        raise CheckpointError(
            f"quantization_config has the quant_method {method!r}; supported: {', '.join(names())}"
        )
    return importlib.import_module(f"{_PACKAGE}.{module}")


@dataclass(frozen=True, slots=True)
class Outlines:
    """What a config.json says of matrices that are not there to be read.

    Attributes:
        form: of a projection [N, K].
        left_out: the projections without it: modules, parts of their names, or patterns after "re:".
    """

    form: Callable[[tuple[int, int]], Outline]
    left_out: Sequence[str]

    def __call__(self, module: str, shape: tuple[int, int]) -> Outline | None:
        """The form of a module's matrix [N, K]; None: it is left out."""
        if any(_names(pattern, module) for pattern in self.left_out):
            return None
        return self.form(shape)


def _names(pattern: str, module: str) -> bool:
    if pattern.startswith("re:"):
        return re.match(pattern.removeprefix("re:"), module) is not None
    return f".{pattern}." in f".{module}."


def outlines_of(config: Mapping[str, Any]) -> Outlines | None:
    """What a checkpoint's config.json alone says of its quantized matrices; None: it names no method.

    Raises:
        CheckpointError: as scheme_of.
    """
    if scheme_of(config) is None:
        return None
    settings = config["quantization_config"]
    outlines: Outlines = _module_of(settings).outlines(settings)
    return outlines


def required(name: str, take: Take) -> StoredTensor:
    """The tensor of that name.

    Raises:
        CheckpointError: there is none.
    """
    tensor = take(name)
    if tensor is None:
        raise CheckpointError(f"tensor {name!r} is missing")
    return tensor


def table(tensor: StoredTensor) -> F32Array:
    """A small tensor of floats as f32, of the stored shape."""
    try:
        numbers = tensor.data.view(get_format(tensor.format).dtype)
    except (CheckpointError, ValueError):
        raise CheckpointError(f"tensor {tensor.name!r} holds no floats, but {tensor.format}") from None
    return np.asarray(numbers.astype(np.float32)).reshape(tensor.shape)


def check_finite(name: str, scale: F32Array) -> None:
    """
    Raises:
        CheckpointError: some of a tensor's numbers are not.
    """
    if not np.isfinite(scale).all():
        raise CheckpointError(f"tensor {name!r} holds numbers that are not finite")


def matrix(tensor: StoredTensor, dtype: npt.DTypeLike, shape: tuple[int, int]) -> npt.NDArray[Any]:
    """A view of a stored matrix of this shape.

    Raises:
        CheckpointError: it has another one.
    """
    if tensor.shape != shape:
        raise CheckpointError(
            f"tensor {tensor.name!r} has shape {list(tensor.shape)}, expected {list(shape)}"
        )
    return tensor.data.view(dtype).reshape(shape)


def by_rows(name: str, scale: F32Array, shape: tuple[int, int], block: tuple[int, int] | None) -> F32Array:
    """Scales of a whole tensor, of its rows, or of its blocks, as one for each row: [N, 1] or [N, blocks].

    Args:
        block: rows and columns of a block; None: the first two.

    Raises:
        CheckpointError: there are others, or some that are not finite.
    """
    n, k = shape
    check_finite(name, scale)
    if scale.size == 1:
        return np.broadcast_to(scale.reshape(1, 1), (n, 1))
    if block is None and scale.size == n:
        return scale.reshape(n, 1)
    if block is not None and scale.shape == (-(-n // block[0]), -(-k // block[1])):
        return np.ascontiguousarray(np.repeat(scale, block[0], axis=0)[:n])
    raise CheckpointError(f"tensor {name!r} of shape {list(scale.shape)} holds no scales of {list(shape)}")


def f8(tensor: StoredTensor, scale: F32Array, shape: tuple[int, int]) -> Weight:
    """E4M3 with scales as by_rows makes them."""
    values = matrix(tensor, ml_dtypes.float8_e4m3fn, shape)
    return Weight(Layout.F8, shape, values, scale, release=tensor.release)


def check_block(block: Any) -> tuple[int, int] | None:
    """quantization_config's size of blocks, whose columns kernels must know.

    Raises:
        CheckpointError: they do not.
    """
    if block is None:
        return None
    if not (isinstance(block, list) and len(block) == 2 and block[0] > 0 and block[1] == F8_GROUP):
        raise CheckpointError(f"FP8 weights in blocks of {block} are not supported; [N, {F8_GROUP}] are")
    return block[0], block[1]
