"""A Hugging Face folder: config.json beside safetensors, one file or several with an index.

    header length u64 | header: JSON {name: {dtype, shape, data_offsets}} | data that offsets count from

Source: the safetensors format description, huggingface/safetensors README, "Format".
"""

from __future__ import annotations

import functools
import itertools
import json
import math
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from octavo.checkpoints.base import PICKLES, LazyTensors, MappedFile, StoredTensor, shorten, why_no_pickle
from octavo.checkpoints.content import hash_files
from octavo.errors import CheckpointError

DTYPE_BYTES = {
    "F64": 8, "F32": 4, "F16": 2, "BF16": 2, "F8_E4M3": 1, "F8_E5M2": 1,
    "I64": 8, "I32": 4, "I16": 2, "I8": 1, "U64": 8, "U32": 4, "U16": 2, "U8": 1, "BOOL": 1,
}  # fmt: skip
"""Bytes an element, to check sizes; quant/ gives the meaning."""

_MAX_HEADER = 100 << 20
_MAX_JSON = 64 << 20
_SINGLE = "model.safetensors"
INDEX = "model.safetensors.index.json"

_Maker = Callable[[], StoredTensor]


class FolderCheckpoint:
    """An opened Hugging Face folder (see base.Checkpoint)."""

    kind = "hf"
    cut: tuple[int, int] | None = None

    def __init__(
        self, path: Path, config: dict[str, Any], makers: dict[str, _Maker], files: Sequence[MappedFile]
    ) -> None:
        self.path = path
        self.config = config
        self._files = files
        self.tensors = LazyTensors(makers)

    @property
    def architecture(self) -> str:
        return str(self.config["model_type"])

    def content_hash(self) -> str:
        if not self._files:
            raise CheckpointError(f"{self.path.name} is closed")
        return hash_files(json.dumps(self.config, sort_keys=True).encode(), self._files)

    def forget_tokenizer(self) -> None:
        pass  # config.json holds none

    def close(self) -> None:
        self.tensors, self._files = LazyTensors({}), ()


def open_folder(path: Path, headers: bool = False) -> FolderCheckpoint:
    """Map the safetensors of a folder and read their headers (no tensor data is touched).

    Args:
        headers: config.json alone is enough; the checkpoint then lists no tensors.

    Raises:
        CheckpointError: a file is missing, broken, or a pickle; says which.
    """
    config = read_json(path / "config.json")
    if not isinstance(config.get("model_type"), str):
        raise CheckpointError(f"{path / 'config.json'} has no model_type")
    makers: dict[str, _Maker] = {}
    files: list[MappedFile] = []
    shards = {} if headers and not _has_weights(path) else _shards(path)
    for name, wanted in sorted(shards.items()):
        files.append(file := MappedFile(path / name))
        found = _read_header(file)
        for tensor in wanted if wanted is not None else found:
            if tensor not in found:
                raise CheckpointError(f"{INDEX} puts tensor {shorten(tensor)} in {name}, which lacks it")
            makers[tensor] = found[tensor]
    return FolderCheckpoint(path, config, makers, files)


def open_tensors(path: Path) -> LazyTensors:
    """The tensors of one safetensors file.

    Raises:
        CheckpointError: it is missing or broken.
    """
    return LazyTensors(_read_header(MappedFile(path)))


def read_json(path: Path) -> dict[str, Any]:
    """A JSON object from a small file, or CheckpointError."""
    try:
        if path.stat().st_size > _MAX_JSON:
            raise CheckpointError(f"{path} is larger than {_MAX_JSON >> 20} MB")
        value = json.loads(path.read_bytes())
    except OSError as error:
        raise CheckpointError(f"cannot open {path}: {error.strerror or error}") from None
    except (ValueError, RecursionError):
        raise CheckpointError(f"{path} is not valid JSON") from None
    if not isinstance(value, dict):
        raise CheckpointError(f"{path} does not hold a JSON object")
    return value


def _has_weights(path: Path) -> bool:
    return (path / INDEX).exists() or any(p.suffix in (".safetensors", *PICKLES) for p in path.iterdir())


def _shards(path: Path) -> dict[str, list[str] | None]:
    """File name -> the tensors that the index expects in it (None: all that it holds)."""
    if (path / INDEX).exists():
        return dict(indexed(path / INDEX))
    if (path / _SINGLE).exists():
        return {_SINGLE: None}
    found = sorted(p.name for p in path.glob("*.safetensors"))
    if len(found) == 1:
        return {found[0]: None}
    if found:
        raise CheckpointError(f"{path} holds {len(found)} safetensors files but no {INDEX}")
    pickles = sorted(p.name for p in path.iterdir() if p.suffix in PICKLES)
    if pickles:
        raise CheckpointError(f"{path / pickles[0]} is {why_no_pickle(str(path))}")
    raise CheckpointError(f"{path} holds no safetensors file")


def indexed(index: Path) -> dict[str, list[str]]:
    """File name -> the tensors that an index puts in it.

    Raises:
        CheckpointError: it is no index, or names something else than safetensors files beside it.
    """
    weight_map = read_json(index).get("weight_map")
    if not isinstance(weight_map, dict) or not weight_map:
        raise CheckpointError(f"{index} has no weight_map")
    shards: dict[str, list[str]] = {}
    for tensor, name in weight_map.items():
        plain = isinstance(name, str) and name.isprintable() and Path(name).name == name
        if not plain or len(name) > 255 or not name.endswith(".safetensors"):
            raise CheckpointError(f"{index} names {shorten(str(name))}, not a safetensors file beside it")
        shards.setdefault(name, []).append(tensor)
    return shards


def _read_header(file: MappedFile) -> dict[str, _Maker]:
    where = file.path.name
    if file.size < 8:
        raise CheckpointError(f"{where} is not a safetensors file: it has {file.size} bytes")
    length = int.from_bytes(file.raw[:8], "little")
    if length > min(_MAX_HEADER, file.size - 8):
        raise CheckpointError(
            f"{where} is truncated or not a safetensors file: its header claims {length} bytes"
        )
    try:
        header = json.loads(file.raw[8 : 8 + length])
    except (ValueError, RecursionError):
        raise CheckpointError(f"{where} is not a safetensors file: its header is not JSON") from None
    if not isinstance(header, dict):
        raise CheckpointError(f"{where}: the header is not a JSON object")
    header.pop("__metadata__", None)
    makers: dict[str, _Maker] = {}
    spans: list[tuple[int, int, str]] = []
    for name, line in header.items():
        start, stop, maker = _tensor(file, name, line, 8 + length)
        makers[name] = maker
        spans.append((start, stop, name))
    for one, other in itertools.pairwise(sorted(spans)):
        if one[1] > other[0]:
            raise CheckpointError(f"{where}: tensors {shorten(one[2])} and {shorten(other[2])} overlap")
    return makers


def _tensor(file: MappedFile, name: str, line: Any, base: int) -> tuple[int, int, _Maker]:
    what = f"{file.path.name}: tensor {shorten(name)}"
    line = line if isinstance(line, dict) else {}
    dtype, shape, offsets = line.get("dtype"), line.get("shape"), line.get("data_offsets")
    if not isinstance(dtype, str) or not _naturals(shape) or not _naturals(offsets) or len(offsets) != 2:
        raise CheckpointError(f"{what} lacks its dtype, shape or data_offsets")
    start, stop = base + offsets[0], base + offsets[1]
    if stop < start or stop > file.size:
        raise CheckpointError(f"{what} lies at bytes {start} to {stop} of a file of {file.size}")
    if dtype not in DTYPE_BYTES:
        return start, stop, functools.partial(_refuse, f"{what} has the unknown dtype {shorten(dtype)}")
    if math.prod(shape) * DTYPE_BYTES[dtype] != stop - start:
        raise CheckpointError(f"{what}: {dtype} {shape} does not fill its {stop - start} bytes")
    return start, stop, functools.partial(file.tensor, name, tuple(shape), dtype, start, stop)


def _naturals(value: Any) -> bool:
    return isinstance(value, list) and all(type(item) is int and item >= 0 for item in value)


def _refuse(message: str) -> StoredTensor:
    raise CheckpointError(message)
