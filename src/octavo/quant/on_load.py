"""EngineConfig.quantization beside a checkpoint: what its files are, made on load, or a contradiction.

A method of making/ takes weights of 16 or 32 bits, some rows at a time: what a projection becomes is held,
and the file's pages are given back. Heads, tables and routers stay as they are stored.
"""

from __future__ import annotations

import functools
import importlib
import pkgutil
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from octavo.checkpoints.base import Checkpoint
from octavo.errors import CheckpointError, UnsupportedError
from octavo.kernels.outline import Outline
from octavo.kernels.weight import Array, F32Array, Weight
from octavo.quant.scheme import also_called, method_of

_PACKAGE = "octavo.quant.making"
_ROWS = 256
"""Rows that are f32 at a time."""
_FLOATS = ("F32", "F16", "BF16")
_SPELLINGS = {"gptq_marlin": "gptq", "awq_marlin": "awq"}


@dataclass(frozen=True, slots=True)
class Method:
    """How a format is made.

    Attributes:
        names: as users spell it.
        columns: a row must be a multiple of; other matrices stay as they are.
        make: rows [n, K] -> their Weight.
        form: what all rows of a matrix [N, K] become.
    """

    names: tuple[str, ...]
    columns: int
    make: Callable[[F32Array], Weight]
    form: Callable[[tuple[int, int]], Outline]

    def weight(self, name: str, dense: Weight) -> Weight:
        """A dense weight in this format; one that it has no place for stays as it is.

        Raises:
            CheckpointError: it holds numbers that are not finite.
        """
        n, k = dense.shape
        if k % self.columns or dense.scale is not None:
            return dense
        if isinstance(dense, Outline):
            return self.form(dense.shape)
        parts = []
        for start in range(0, n, _ROWS):
            rows = dense.rows(slice(start, start + _ROWS)).dequantize()
            if not np.isfinite(rows).all():
                raise CheckpointError(f"tensor {name!r} holds numbers that are not finite")
            parts.append(self.make(rows))
        first = parts[0]
        tables = [[w.scale for w in parts], [w.minimum for w in parts], [w.zero for w in parts]]
        scale, minimum, zero = (_joined(table) for table in tables)
        values = np.concatenate([w.values for w in parts])
        if scale is not None and not np.isfinite(scale).all():
            raise CheckpointError(f"tensor {name!r} holds numbers too large for {self.names[0]}'s scales")
        if dense.release is not None:
            dense.release()
        return Weight(first.layout, (n, k), values, scale, minimum, zero=zero)


def _joined(parts: list[Array | None]) -> Array | None:
    found = [part for part in parts if part is not None]
    return np.concatenate(found) if found else None


@functools.cache
def methods() -> dict[str, Method]:
    """By every name that users may give them, from the files of the folder."""
    files = pkgutil.iter_modules(importlib.import_module(_PACKAGE).__path__)
    found = [importlib.import_module(f"{_PACKAGE}.{file.name}").METHOD for file in files]
    return {name: method for method in found for name in method.names}


def made_on_load(wanted: str | None, checkpoint: Checkpoint) -> Method | None:
    """What turns this checkpoint's weights into what was asked for; None: they are that, or nothing was.

    Raises:
        UnsupportedError: the files are in another format, or none makes this one of floats.
    """
    if wanted is None:
        return None
    stored = "gguf" if checkpoint.kind == "gguf" else method_of(checkpoint.config)
    if stored == "gguf" and wanted != stored:
        formats = {tensor.format for tensor in checkpoint.tensors.values()}
        stored = None if formats <= set(_FLOATS) else stored
    if stored is not None:
        own = _SPELLINGS.get(wanted, wanted).replace("-", "_")
        if own == stored or (stored != "gguf" and wanted in also_called(checkpoint.config)):
            return None
        raise UnsupportedError(
            f"quantization {wanted!r} contradicts {checkpoint.path.name}, which is stored as "
            f"{stored.replace('_', '-')}: leave it out, as files say how they are quantized",
            "quantization",
        )
    if wanted not in methods():
        raise UnsupportedError(
            f"quantization {wanted!r} asks for files of that kind, and {checkpoint.path.name} holds floats: "
            f"made while they are loaded are {', '.join(sorted(methods()))}",
            "quantization",
        )
    return methods()[wanted]
