"""The registry of writers: how a matrix of floats is stored by a method, one file of writers/ each."""

from __future__ import annotations

import functools
import importlib
import pkgutil
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol, runtime_checkable

import ml_dtypes
import numpy as np
import numpy.typing as npt

from octavo.checkpoints.base import StoredTensor
from octavo.errors import CheckpointError, UnsupportedError
from octavo.kernels.weight import BLOCK, Array, F32Array
from octavo.quant.scheme import scheme_of

_PACKAGE = "octavo.quant.writers"
F64Array = npt.NDArray[np.float64]
Tensors = dict[str, Array]
"""What a checkpoint stores, by name."""
_ROWS = 4096
"""Tokens whose moments are added up at a time."""
_SAMPLE = 512
"""Rows of x that errors are measured on."""

STORED_AS: dict[np.dtype[Any], str] = {
    np.dtype(np.float32): "F32",
    np.dtype(np.float16): "F16",
    np.dtype(ml_dtypes.bfloat16): "BF16",
    np.dtype(ml_dtypes.float8_e4m3fn): "F8_E4M3",
    np.dtype(np.int64): "I64",
    np.dtype(np.int32): "I32",
    np.dtype(np.int8): "I8",
    np.dtype(np.uint8): "U8",
}
"""safetensors' names."""


@dataclass(frozen=True, slots=True)
class Choice:
    """What a user asks of a method.

    Attributes:
        bits: of a number.
        group: columns that share a scale; -1: all of a row; 0: see settled().
        symmetric: without zero points.
        act_order: GPTQ takes columns by what they are multiplied with, largest first.
        damp: GPTQ adds this share of the mean of H's diagonal to it.
        nested: NF4's scales are quantized too (double quantization).
    """

    bits: int
    group: int
    symmetric: bool = True
    act_order: bool = True
    damp: float = 0.01
    nested: bool = True


class Met:
    """What a matrix is multiplied with in a model that reads the calibration text.

    Attributes:
        x: [T, K], one row a token.
    """

    def __init__(self, x: F32Array) -> None:
        self.x = x

    @functools.cached_property
    def moments(self) -> F64Array:
        """2 / T times the sum of x x^T: [K, K], the Hessian of a row's squared error (GPTQ, section 3)."""
        total = np.zeros((self.x.shape[1], self.x.shape[1]))
        for start in range(0, len(self.x), _ROWS):
            rows = self.x[start : start + _ROWS]
            total += rows.T @ rows
        total *= 2 / max(len(self.x), 1)
        return total

    @property
    def sample(self) -> F32Array:
        """Some rows of x, from all over."""
        return np.ascontiguousarray(self.x[:: max(1, len(self.x) // _SAMPLE)][:_SAMPLE])


@dataclass(frozen=True, slots=True)
class Limits:
    """What a method takes. The first of each is its default.

    Attributes:
        bits: numbers of bits; groups: sizes of groups that are tried where none is named, see settled();
            (): the method has its own, and none is taken.
        columns: a row must be a multiple of. rows: likewise, by bits.
        calibrated: it looks at activations. folds: it scales channels, and folds that into what comes before.
        zeros: it can have zero points; without: it can do without them.
        obeys: members of Choice that say something of it beside bits, group and symmetric.
    """

    bits: tuple[int, ...]
    groups: tuple[int, ...] = ()
    columns: int = BLOCK
    rows: Mapping[int, int] | None = None
    calibrated: bool = False
    folds: bool = False
    zeros: bool = False
    without: bool = True
    obeys: tuple[str, ...] = ()


class Writer(Protocol):
    """One method."""

    limits: Limits

    def settings(self, choice: Choice, left_out: Sequence[str]) -> dict[str, Any]:
        """config.json's quantization_config.

        Args:
            left_out: modules whose matrices stay as they are.
        """
        ...

    def write(self, stem: str, w: F32Array, choice: Choice, met: Met | None) -> Tensors:
        """What is stored of the matrix stem.weight [N, K].

        Args:
            met: what it is multiplied with; None: nothing is known, and numbers are rounded to nearest.

        Raises:
            CheckpointError: its numbers do not fit the method's scales.
        """
        ...


@runtime_checkable
class Folding(Protocol):
    """A writer that scales the columns of matrices, which what comes before them is divided by."""

    def scales(
        self, ws: Sequence[F32Array], met: Met, choice: Choice, ties: npt.NDArray[np.int64]
    ) -> F32Array:
        """By what to multiply the columns of the matrices [N, K] that read the same x: [K].

        Args:
            ties: [K]: columns with the same number get the same scale.
        """
        ...


def writer_names() -> list[str]:
    """The methods, as --method spells them."""
    return sorted(m.name for m in pkgutil.iter_modules(importlib.import_module(_PACKAGE).__path__))


def writer_of(name: str) -> Writer:
    """The writer of that name.

    Raises:
        UnsupportedError: there is none.
    """
    if name not in writer_names():
        raise UnsupportedError(
            f"the method {name!r} is not supported; {', '.join(writer_names())} are", "method"
        )
    found: Writer = importlib.import_module(f"{_PACKAGE}.{name}").WRITER
    return found


def check_choice(name: str, limits: Limits, choice: Choice) -> None:
    """
    Raises:
        UnsupportedError: the method has no such bits or groups.
    """
    if choice.bits not in limits.bits:
        known = ", ".join(map(str, sorted(limits.bits)))
        raise UnsupportedError(f"{name} with {choice.bits} bits is not supported; it has {known}", "bits")
    if limits.groups and choice.group not in (-1, 0) and (choice.group < BLOCK or choice.group % BLOCK):
        raise UnsupportedError(
            f"groups of {choice.group} columns are not supported; multiples of {BLOCK}, and -1 for whole "
            "rows, are",
            "group_size",
        )
    if not choice.symmetric and not limits.zeros:
        raise UnsupportedError(f"{name} has no zero points: leave --asymmetric out", "symmetric")
    if choice.symmetric and not limits.without:
        raise UnsupportedError(f"{name} has zero points always: leave --symmetric out", "symmetric")
    if not 0 < choice.damp < 1:
        raise UnsupportedError(f"--damp must be between 0 and 1, not {choice.damp}", "damp")


def settled(choice: Choice, limits: Limits, shapes: Iterable[tuple[int, int]]) -> Choice:
    """The choice for these matrices [N, K], its group a number."""
    if choice.group or not limits.groups:
        return choice
    widths = {k for _, k in shapes}
    fit = (group for group in limits.groups if all(k % group == 0 for k in widths))
    return replace(choice, group=next(fit, limits.groups[0]))


def check_shape(name: str, shape: tuple[int, int], limits: Limits, choice: Choice) -> None:
    """
    Raises:
        UnsupportedError: groups do not divide the rows of this matrix, or its numbers do not fill words.
    """
    n, k = shape
    if k % limits.columns:
        raise UnsupportedError(
            f"tensor {name!r} [{n}, {k}]: rows of {k} are no multiple of {limits.columns}, which this method "
            "needs"
        )
    if limits.groups and choice.group != -1 and k % choice.group:
        raise UnsupportedError(
            f"tensor {name!r} [{n}, {k}]: groups of {choice.group} do not divide rows of {k}: give "
            "--group-size another number, or -1"
        )
    rows = (limits.rows or {}).get(choice.bits, 1)
    if n % rows:
        raise UnsupportedError(
            f"tensor {name!r} [{n}, {k}]: {n} zero points of {choice.bits} bits do not fill words, which "
            f"takes a multiple of {rows} rows"
        )


def as_stored(name: str, array: Array) -> StoredTensor:
    """An array as a checkpoint holds it."""
    data = np.ascontiguousarray(array).reshape(-1).view(np.uint8)
    return StoredTensor(name, tuple(array.shape), STORED_AS[array.dtype], data, lambda: None)


def read_back(
    name: str, shape: tuple[int, int], settings: Mapping[str, Any], tensors: Mapping[str, StoredTensor]
) -> F32Array:
    """What whoever loads these tensors finds in the matrix called name: f32 [N, K].

    Raises:
        CheckpointError: nothing, or a broken one.
    """
    scheme = scheme_of({"quantization_config": settings})
    weight = None if scheme is None else scheme(name, shape, tensors.get)
    if weight is None:
        raise CheckpointError(f"tensor {name!r} is not among what was written")
    return weight.dequantize()


def half(stem: str, scale: F32Array) -> npt.NDArray[np.float16]:
    """Scales as f16; of a group of zeros 1.

    Raises:
        CheckpointError: some are too large.
    """
    with np.errstate(over="ignore"):
        found = scale.astype(np.float16)
    if not np.isfinite(found).all():
        raise CheckpointError(f"tensor '{stem}.weight' holds numbers too large for scales of 16 bits")
    return np.where(found > 0, found, np.float16(1)).astype(np.float16)
