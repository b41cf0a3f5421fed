"""Which matrices become what, one after the other: as a calibration text meets them, or as they stand."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from octavo.checkpoints.base import Checkpoint, StoredTensor
from octavo.errors import CheckpointError, UnsupportedError
from octavo.kernels.ops import F32
from octavo.models.layers import Use
from octavo.quant import registry as formats
from octavo.quant.writer import (
    Folding,
    Met,
    Tensors,
    Writer,
    as_stored,
    check_choice,
    check_shape,
    read_back,
    settled,
    writer_of,
)
from octavo.quantize.asked import Asked, Report
from octavo.quantize.folds import Fold
from octavo.quantize.stored import Named, StoredModel, StoredWeight, numbers


class Matrices:
    """A model's projections, as they are and as they become.

    Args:
        checkpoint: of floats.

    Attributes:
        targets: name -> shape of the matrices that are quantized.
        settings: config.json's quantization_config.
    """

    def __init__(self, checkpoint: Checkpoint, asked: Asked, report: Report) -> None:
        self._checkpoint, self._asked, self.report = checkpoint, asked, report
        self.writer: Writer = writer_of(asked.method)
        check_choice(asked.method, self.writer.limits, asked.choice)
        self._choice = asked.choice
        self.targets: dict[str, tuple[int, int]] = {}
        self.settings: dict[str, Any] = {}
        self._dense: dict[str, F32] = {}
        self._folds: dict[str, Fold] = {}
        self._scales: dict[str, F32] = {}
        self._divided: dict[str, F32] = {}
        self._samples: dict[str, Met] = {}
        self._units: set[str] = set()
        self._latest: tuple[F32, Met] | None = None

    def choose(self, stored: StoredModel) -> None:
        """Find the targets.

        Raises:
            UnsupportedError: the method cannot store one of them; says which.
        """
        projections = {n: shape for n, (shape, use) in stored.matrices.items() if use is Use.PROJECTION}
        self._choice = settled(self._choice, self.writer.limits, projections.values())
        self.report.group_size = self._choice.group if self.writer.limits.groups else 0
        for name, shape in projections.items():
            if name in stored.columns:
                raise UnsupportedError(
                    f"tensor {name!r} is stored as columns (Conv1D), of which no method here makes a "
                    "folder; a GGUF file can be made of it by llama.cpp's own converter",
                    "model",
                )
            check_shape(name, shape, self.writer.limits, self._choice)
        if not projections:
            raise UnsupportedError("this model has no projections to quantize", "model")
        self.targets = projections
        left = {
            n.removesuffix(".weight") for n, (_, use) in stored.matrices.items() if use is not Use.PROJECTION
        }
        self.settings = self.writer.settings(self._choice, sorted({"lm_head"} | left))

    @property
    def as_they_were(self) -> bool:
        """Whether activations are those of the model before it was quantized."""
        return self.writer.limits.folds

    # -- what is met -----------------------------------------------------------------------------

    def read(self, name: str) -> F32:
        """A matrix as the forward over the calibration text has it."""
        found = self._dense.get(name)
        return numbers(self._checkpoint, name) if found is None else found

    def replace(self, name: str, dense: F32) -> None:
        """What a matrix is from now on."""
        self._dense[name] = dense

    def forget(self) -> None:
        """Let go of what the layer that was written needed."""
        self._dense.clear()
        self._samples.clear()

    def met(self, x: F32) -> Met:
        if self._latest is None or self._latest[0] is not x:
            self._latest = (x, Met(x))
        return self._latest[1]

    def use_folds(self, folds: Sequence[Fold]) -> None:
        self._folds = {name: fold for fold in folds for name in fold.readers}

    def look(self, name: str, x: F32) -> None:
        """Of a method that folds: find the scale of all that read x, as name does.

        Some rows of x are kept until the layer is written.
        """
        fold = self._folds.get(name)
        if fold is not None and name not in self._scales and isinstance(self.writer, Folding):
            ws = [numbers(self._checkpoint, reader) for reader in fold.readers]
            scale = self.writer.scales(ws, self.met(x), self._choice, fold.ties)
            self._scales |= dict.fromkeys((*fold.readers, *fold.tables), scale)
            self._fold(fold, scale)
        if name not in self._samples:
            self._samples[name] = Met(self.met(x).sample / self._scales.get(name, np.float32(1)))

    def _fold(self, fold: Fold, scale: F32) -> None:
        if fold.norm is not None:
            self._divided[f"{fold.norm.module}.weight"] = scale
            self._divided[f"{fold.norm.module}.bias"] = scale
            if fold.norm.unit:
                self._units.add(f"{fold.norm.module}.weight")
            return
        assert fold.rows is not None, "rows of a matrix come before what no norm does"
        rows = self._checkpoint.tensors[fold.before].shape[0]
        by = np.ones(rows, np.float32)
        by[fold.rows[fold.ties]] = scale
        self._divided[fold.before] = by
        self._divided[f"{fold.before.removesuffix('.weight')}.bias"] = by

    # -- what is written -------------------------------------------------------------------------

    def make(self, name: str, met: Met | None) -> Tensors:
        """What is stored of a target."""
        w = numbers(self._checkpoint, name)
        if (by := self._divided.get(name)) is not None:
            w /= by[:, None]
        if (scale := self._scales.get(name)) is not None:
            w *= scale
        return self.writer.write(name.removesuffix(".weight"), w, self._choice, met)

    def make_sampled(self, name: str) -> Tensors:
        """The same by what look() has kept."""
        met = self._samples.get(name)
        if met is None and self.writer.limits.calibrated:
            self.report.unmet.append(name.removesuffix(".weight"))
        return self.make(name, met)

    def dense(self, name: str, tensors: Mapping[str, StoredTensor]) -> F32:
        """What whoever loads these tensors finds in a target."""
        return read_back(name, self.targets[name], self.settings, tensors)

    def untouched(self, name: str) -> StoredTensor:
        """Another tensor, as it is stored or divided.

        Raises:
            CheckpointError: some of its numbers are not finite.
        """
        tensor = self._checkpoint.tensors[name]
        if tensor.format not in formats.names():
            return tensor
        array = tensor.data.view(formats.get_format(tensor.format).dtype)
        for start in range(0, array.size, 1 << 20):
            if not np.isfinite(array[start : start + (1 << 20)].astype(np.float32)).all():
                raise CheckpointError(f"tensor {name!r} holds numbers that are not finite")
        by, scale = self._divided.get(name), self._scales.get(name)
        if by is None and scale is None:
            return tensor
        found = array.astype(np.float32).reshape(tensor.shape)
        if by is not None:
            one = np.float32(name in self._units)
            found = (found + one) / by - one
        if scale is not None:
            found = found * scale
        return as_stored(name, found.astype(array.dtype))


def projections_of(weight: StoredWeight, targets: Mapping[str, Any]) -> list[Named]:
    """The targets that a weight has rows of."""
    return [named for named in weight.named() if named.name in targets]
