"""A GGUF file of a folder, or of another GGUF file: one matrix in memory at a time."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from functools import partial

import numpy as np
import numpy.typing as npt

from octavo.checkpoints import open_checkpoint
from octavo.checkpoints.base import Checkpoint, StoredTensor
from octavo.checkpoints.gguf import metadata_bytes
from octavo.checkpoints.gguf_writing import FILE_TYPES, ToWrite, value_bytes, write_gguf
from octavo.errors import CheckpointError, InvalidRequestError, UnsupportedError
from octavo.kernels.ops import F32
from octavo.models.layers import Use
from octavo.quant import registry as formats
from octavo.quantize.asked import Asked, Progress, Report
from octavo.quantize.metadata import LONGEST, Target, target_of
from octavo.quantize.stored import NamingLoader, Placed, StoredModel, load_stored, numbers
from octavo.quantize.types import check_kind, type_of
from octavo.quantize.vocabulary import tokenizer_metadata

_ROWS = 512
"""Rows that are quantized at a time."""
_FLOATS = ("F32", "F16", "BF16")
Pieces = Iterator[npt.NDArray[np.generic]]


def quantize_file(asked: Asked, progress: Progress) -> Report:
    """Make it. Where it cannot be made whole, nothing is there.

    Raises:
        CheckpointError: the model is broken.
        UnsupportedError: GGUF has no place for it, or it is quantized already.
        OSError: the disk is full, or the like.
    """
    check_kind(asked.kind)
    if asked.method != "rtn" or asked.calibration is not None:
        raise InvalidRequestError("GGUF types are rounded to nearest: leave --method and --calibration out")
    checkpoint = open_checkpoint(asked.source)
    report = Report(str(asked.target), asked.kind)
    stored = load_stored(checkpoint, partial(numbers, checkpoint), LONGEST)
    counter = _Counter(progress)
    if checkpoint.kind == "gguf":
        metadata = metadata_bytes(asked.source)
        tensors = _of_file(checkpoint, stored, asked, counter)
    else:
        target = target_of(checkpoint, stored)
        words = tokenizer_metadata(asked.source, stored.model.vocab_size)
        said = {"general.name": asked.source.name, **target.metadata, **words}
        metadata = {key: value_bytes(value) for key, value in said.items()}
        tensors = _of_folder(checkpoint, stored, target, asked.kind, counter)
    metadata["general.file_type"] = value_bytes(FILE_TYPES[asked.kind])
    metadata["general.quantization_version"] = value_bytes(2)
    asked.target.parent.mkdir(parents=True, exist_ok=True)
    write_gguf(asked.target, metadata, tensors)
    projections = [t for t in tensors if t.name in counter.projections]
    report.matrices, report.bits = len(projections), 8 * sum(t.nbytes for t in projections)
    report.weights = sum(int(np.prod(t.shape)) for t in projections)
    report.bytes_before = sum(checkpoint.tensors[name].data.nbytes for name in checkpoint.tensors)
    report.bytes_after = sum(t.nbytes for t in tensors)
    return report


class _Counter:
    def __init__(self, progress: Progress) -> None:
        self._progress = progress
        self.projections: set[str] = set()
        self._done = 0

    def done(self, name: str) -> None:
        if name in self.projections:
            self._done += 1
            self._progress(self._done, len(self.projections))


def _blocks(matrix: F32, kind: str, name: str) -> Pieces:
    """A matrix in a type, some rows at a time."""
    for start in range(0, len(matrix), _ROWS):
        try:
            yield formats.get_format(kind).made(
                np.ascontiguousarray(matrix[start : start + _ROWS], np.float32)
            )
        except CheckpointError as error:
            raise CheckpointError(f"tensor {name!r}: {error}") from None


# -- of a GGUF file ------------------------------------------------------------------------------


def _of_file(checkpoint: Checkpoint, stored: StoredModel, asked: Asked, counter: _Counter) -> list[ToWrite]:
    found = []
    layers = _layers(stored.load)
    for name in checkpoint.tensors:
        tensor = checkpoint.tensors[name]
        use = stored.matrices[name][1] if name in stored.matrices else None
        kind = tensor.format
        if use is not None:
            kind = type_of(asked.kind, name, tensor.shape[-1], use, layers)
            if tensor.format not in _FLOATS and not asked.requantize and kind != tensor.format:
                raise UnsupportedError(
                    f"tensor {name!r} is {tensor.format}, quantized already: --allow-requantize takes it all "
                    "the same, at a loss",
                    "model",
                )
            if use is Use.PROJECTION:
                counter.projections.add(name)
        found.append(ToWrite(name, tensor.shape, kind, partial(_copied, tensor, kind, counter)))
    return found


def _copied(tensor: StoredTensor, kind: str, counter: _Counter) -> Pieces:
    if kind == tensor.format:
        yield tensor.data
    else:
        count = int(np.prod(tensor.shape[:-2]))
        for data in tensor.data.reshape(count, -1):
            one = StoredTensor(tensor.name, tensor.shape[-2:], tensor.format, data, lambda: None)
            matrix = formats.weight(one).dequantize()
            if not np.isfinite(matrix).all():
                raise CheckpointError(f"tensor {tensor.name!r} holds numbers that are not finite")
            yield from _blocks(matrix, kind, tensor.name)
    tensor.release()
    counter.done(tensor.name)


# -- of a folder ---------------------------------------------------------------------------------


def _of_folder(
    checkpoint: Checkpoint, stored: StoredModel, target: Target, kind: str, counter: _Counter
) -> list[ToWrite]:
    layers, was, now = _layers(stored.load), stored.load, target.load
    parts: dict[str, list[tuple[Placed, Placed]]] = defaultdict(list)
    for name, placed in now.placed.items():
        parts[placed.name].append((was.placed[name], placed))
    found: list[ToWrite] = []
    for name, pairs in parts.items():
        first = pairs[0][1]
        pairs.sort(key=lambda pair: pair[1].part or 0)
        shape, use = first.wanted.stored, first.wanted.use
        whole = shape if first.part is None else (len(pairs), *shape)
        chosen = type_of(kind, name, shape[1], use, layers)
        if use is Use.PROJECTION:
            counter.projections.add(name)
        found.append(ToWrite(name, whole, chosen, partial(_moved, checkpoint, name, pairs, chosen, counter)))
    for name, stored_as in now.vectors.items():
        vector = _vector(checkpoint, name, was, now)
        found.append(ToWrite(stored_as, vector.shape, "F32", partial(_one, vector)))
    if target.factors is not None:
        found.append(ToWrite("rope_freqs.weight", target.factors.shape, "F32", partial(_one, target.factors)))
    return found


def _one(array: F32) -> Pieces:
    yield np.asarray(array, np.float32)


def _moved(
    checkpoint: Checkpoint, name: str, pairs: list[tuple[Placed, Placed]], kind: str, counter: _Counter
) -> Pieces:
    """The matrices of a tensor, their rows where its reader looks for them."""
    for was, now in pairs:
        matrix = numbers(checkpoint, was.name)
        matrix = matrix.T if was.wanted.transposed else matrix
        matrix = _rows(matrix, was, now)
        yield from _blocks(matrix.T if now.wanted.transposed else matrix, kind, name)
    counter.done(name)


def _rows(array: F32, was: Placed, now: Placed) -> F32:
    taken = array if was.wanted.order is None else array[was.wanted.order]
    if now.wanted.order is None:
        return taken
    found = np.empty_like(taken)
    found[now.wanted.order] = taken
    return found


def _vector(checkpoint: Checkpoint, name: str, was: NamingLoader, now: NamingLoader) -> F32:
    vector = formats.vector(checkpoint.tensors[was.vectors[name]])
    if not np.isfinite(vector).all():
        raise CheckpointError(f"tensor {was.vectors[name]!r} holds numbers that are not finite")
    if name in was.units and name not in now.units:
        vector = vector + np.float32(1)
    matrix = f"{name.removesuffix('.bias')}.weight"
    if name.endswith(".bias") and matrix in was.placed:
        vector = _rows(vector, was.placed[matrix], now.placed[matrix])
    return vector


def _layers(load: NamingLoader) -> int:
    """How many the model has."""
    numbered = {word for name in load.placed for word in name.split(".") if word.isdigit()}
    return max((int(word) for word in numbered), default=0) + 1
