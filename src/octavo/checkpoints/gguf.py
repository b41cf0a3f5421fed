"""GGUF versions 2 and 3, memory-mapped. Strict: whatever does not add up is a CheckpointError.

    magic "GGUF" | version u32 | tensor count u64 | metadata count u64
    metadata:    key string, type u32, value                 (string: length u64, UTF-8 bytes)
    tensor list: name string, dims u32, dims x u64 (contiguous axis first), type u32, offset u64
    padding to general.alignment, then the data that the offsets count from

Source: the GGUF specification, ggml repository, docs/gguf.md. Only little-endian files are read.
"""

from __future__ import annotations

import functools
import itertools
import math
import struct
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from octavo.checkpoints.base import LazyTensors, MappedFile, StoredTensor, shorten
from octavo.checkpoints.content import hash_files
from octavo.errors import CheckpointError

MAGIC = b"GGUF"

GGML_TYPES: dict[int, tuple[str, int, int]] = {
    0: ("F32", 1, 4),
    1: ("F16", 1, 2),
    2: ("Q4_0", 32, 18),
    3: ("Q4_1", 32, 20),
    6: ("Q5_0", 32, 22),
    7: ("Q5_1", 32, 24),
    8: ("Q8_0", 32, 34),
    9: ("Q8_1", 32, 40),
    10: ("Q2_K", 256, 84),
    11: ("Q3_K", 256, 110),
    12: ("Q4_K", 256, 144),
    13: ("Q5_K", 256, 176),
    14: ("Q6_K", 256, 210),
    15: ("Q8_K", 256, 292),
    16: ("IQ2_XXS", 256, 66),
    17: ("IQ2_XS", 256, 74),
    18: ("IQ3_XXS", 256, 98),
    19: ("IQ1_S", 256, 50),
    20: ("IQ4_NL", 32, 18),
    21: ("IQ3_S", 256, 110),
    22: ("IQ2_S", 256, 82),
    23: ("IQ4_XS", 256, 136),
    24: ("I8", 1, 1),
    25: ("I16", 1, 2),
    26: ("I32", 1, 4),
    27: ("I64", 1, 8),
    28: ("F64", 1, 8),
    29: ("IQ1_M", 256, 56),
    30: ("BF16", 1, 2),
    34: ("TQ1_0", 256, 54),
    35: ("TQ2_0", 256, 66),
    39: ("MXFP4", 32, 17),
}
"""Type number -> (name, elements a block, bytes a block), to size tensors; quant/ gives the meaning."""

_SCALARS = {
    code: struct.Struct("<" + letter)
    for code, letter in {
        0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "B", 10: "Q", 11: "q", 12: "d",
    }.items()
}  # fmt: skip
_BOOL, _STRING, _ARRAY = 7, 8, 9
_U32, _U64 = _SCALARS[4], _SCALARS[10]
_HEADER_BYTES = 24
_MIN_ENTRY_BYTES = {"metadata entries": 13, "tensors": 32}
_MAX_NAME = 65535
_MAX_ARRAY = 1 << 24
_MAX_DIMS = 4


class _Cursor:
    """Reads forward through the mapping; every step is checked against the end of the file."""

    def __init__(self, file: MappedFile) -> None:
        self.raw, self.size, self.pos = file.raw, file.size, 0
        self.file_name = file.path.name
        self.where = "the header"

    def error(self, what: str) -> CheckpointError:
        return CheckpointError(f"{self.file_name}: {what} (in {self.where}, byte {self.pos})")

    def take(self, count: int) -> int:
        """Advance by count bytes and return where they start."""
        start = self.pos
        if count > self.size - start:
            raise self.error(f"the file ends at byte {self.size}, {count} bytes were to follow")
        self.pos = start + count
        return start

    def number(self, kind: struct.Struct) -> Any:
        return kind.unpack_from(self.raw, self.take(kind.size))[0]

    def string(self, limit: int | None = None) -> str:
        length = self.number(_U64)
        if limit is not None and length > limit:
            raise self.error(f"a name of {length} bytes; at most {limit} are allowed")
        start = self.take(length)
        try:
            return self.raw[start : self.pos].decode()
        except UnicodeDecodeError:
            raise self.error("text that is not UTF-8") from None

    def strings(self, count: int) -> list[str]:
        # A vocabulary is 50k to 260k of these, so this loop is written for speed.
        raw, size, pos, unpack = self.raw, self.size, self.pos, _U64.unpack_from
        found: list[str] = []
        try:
            for _ in range(count):
                start = pos + 8
                end = start + unpack(raw, pos)[0]
                if end > size:
                    raise self.error(f"element {len(found)} points past the end of the file")
                found.append(raw[start:end].decode())
                pos = end
        except struct.error:
            raise self.error(f"the file ends at element {len(found)} of {count}") from None
        except UnicodeDecodeError:
            raise self.error(f"element {len(found)} is not UTF-8") from None
        self.pos = pos
        return found

    def value(self, code: int) -> Any:
        if code == _STRING:
            return self.string()
        if code == _ARRAY:
            return self.array()
        if code not in _SCALARS:
            raise self.error(f"unknown metadata type {code}")
        value = self.number(_SCALARS[code])
        if code != _BOOL:
            return value
        if value > 1:
            raise self.error(f"a boolean that is {value}")
        return bool(value)

    def array(self) -> list[Any]:
        code, count = self.number(_U32), self.number(_U64)
        if code == _ARRAY:
            raise self.error("an array of arrays, which no known key uses")
        if code != _STRING and code not in _SCALARS:
            raise self.error(f"unknown array type {code}")
        width = 8 if code == _STRING else _SCALARS[code].size
        if count > _MAX_ARRAY or count * width > self.size - self.pos:
            raise self.error(f"an array of {count} elements, more than the file can hold")
        if code == _STRING:
            return self.strings(count)
        kind = np.dtype(_SCALARS[code].format)
        found: list[Any] = np.frombuffer(self.raw, kind, count, self.take(count * width)).tolist()
        if code != _BOOL:
            return found
        if max(found, default=0) > 1:
            raise self.error("a boolean that is neither 0 nor 1")
        return [bool(value) for value in found]


@dataclass(frozen=True, slots=True)
class _TensorInfo:
    """A line of the tensor list. start is absolute; nbytes is None for a type we cannot size."""

    name: str
    shape: tuple[int, ...]
    code: int
    start: int
    nbytes: int | None


class GGUFCheckpoint:
    """An opened GGUF file (see base.Checkpoint)."""

    kind = "gguf"

    def __init__(self, file: MappedFile, config: dict[str, Any], infos: list[_TensorInfo]) -> None:
        self._file: MappedFile | None = file
        self.path = file.path
        self.config = config
        self.tensors = LazyTensors({e.name: functools.partial(self._tensor, e) for e in infos})
        size = max((e.start + (e.nbytes or 1) for e in infos), default=0)
        self.cut = (file.size, size) if file.size < size else None

    @property
    def architecture(self) -> str:
        return str(self.config["general.architecture"])

    def _tensor(self, info: _TensorInfo) -> StoredTensor:
        if self._file is None:
            raise CheckpointError(f"{self.path.name} is closed")
        if info.nbytes is None:
            raise CheckpointError(
                f"{self.path.name}: tensor {shorten(info.name)} has the unknown type {info.code}"
            )
        name, stop = GGML_TYPES[info.code][0], info.start + info.nbytes
        return self._file.tensor(info.name, info.shape, name, info.start, stop)

    def content_hash(self) -> str:
        if self._file is None:
            raise CheckpointError(f"{self.path.name} is closed")
        return hash_files(b"gguf ", [self._file])

    def forget_tokenizer(self) -> None:
        """See base.Checkpoint: of 262k words these lists are 40 MB."""
        for name in ("tokens", "scores", "token_type", "merges"):
            key = f"tokenizer.ggml.{name}"
            if key in self.config:
                self.config[key] = range(len(self.config[key]))

    def close(self) -> None:
        self._file = None


def open_gguf(path: Path, headers: bool = False) -> GGUFCheckpoint:
    """Map a GGUF file and read its metadata and tensor list (no tensor data is touched).

    Args:
        headers: the file may end after its list of tensors, or anywhere among their data.

    Raises:
        CheckpointError: not GGUF, truncated, or contradicting itself; says what and where.
    """
    file = MappedFile(path)
    cursor = _Cursor(file)
    tensor_count, config_count = _header(cursor)
    config = _metadata(cursor, config_count)
    alignment = _alignment(cursor, config)
    listed = [_listed_tensor(cursor, i) for i in range(tensor_count)]
    data_start = -(-cursor.pos // alignment) * alignment
    infos = [_tensor_info(file, line, alignment, data_start, headers) for line in listed]
    _check_names(file, infos)
    _check_overlap(file, infos)
    checkpoint = GGUFCheckpoint(file, config, infos)
    file.release(0, cursor.pos)  # vocabularies are megabytes, and nobody reads them here again
    return checkpoint


def metadata_bytes(path: Path) -> dict[str, bytes]:
    """Each metadata key's type and value, as they stand in the file.

    Raises:
        CheckpointError: as open_gguf.
    """
    cursor = _Cursor(MappedFile(path))
    _, count = _header(cursor)
    found: dict[str, bytes] = {}
    for _ in range(count):
        key, start = cursor.string(_MAX_NAME), cursor.pos
        cursor.value(cursor.number(_U32))
        found[key] = bytes(cursor.raw[start : cursor.pos])
    return found


def begins_as_gguf(path: Path) -> bool:
    """Whether a file begins as GGUF files do, whatever its name is; False where it cannot be read."""
    try:
        with path.open("rb") as file:
            return file.read(len(MAGIC)) == MAGIC
    except OSError:
        return False


def _header(cursor: _Cursor) -> tuple[int, int]:
    magic = cursor.raw[:4]
    if magic != MAGIC:
        raise CheckpointError(f"{cursor.file_name} is not a GGUF file: it begins with {magic!r}, not b'GGUF'")
    cursor.take(4)
    version = cursor.number(_U32)
    if version in (1 << 24, 2 << 24, 3 << 24):
        raise CheckpointError(f"{cursor.file_name} is a big-endian GGUF file; convert it to little-endian")
    if version not in (2, 3):
        raise CheckpointError(f"{cursor.file_name} is GGUF version {version}; versions 2 and 3 are read")
    tensors, entries = cursor.number(_U64), cursor.number(_U64)
    for what, count in (("metadata entries", entries), ("tensors", tensors)):
        if count * _MIN_ENTRY_BYTES[what] > cursor.size - _HEADER_BYTES:
            raise cursor.error(f"{count} {what}, more than {cursor.size} bytes can hold")
    return tensors, entries


def _metadata(cursor: _Cursor, count: int) -> dict[str, Any]:
    config: dict[str, Any] = {}
    for index in range(count):
        cursor.where = f"metadata key {index}"
        key = cursor.string(_MAX_NAME)
        cursor.where = f"metadata {shorten(key)}"
        if key in config:
            raise cursor.error("the key appears twice")
        config[key] = cursor.value(cursor.number(_U32))
    cursor.where = "the metadata"
    architecture = config.get("general.architecture")
    if not isinstance(architecture, str) or not architecture:
        raise cursor.error("general.architecture is missing")
    if isinstance(config.get("split.count"), int) and config["split.count"] > 1:
        raise cursor.error("one part of a split model; merge the parts into one file first")
    return config


def _alignment(cursor: _Cursor, config: dict[str, Any]) -> int:
    alignment = config.get("general.alignment", 32)
    if not isinstance(alignment, int) or not 8 <= alignment <= 1 << 20 or alignment & (alignment - 1):
        raise cursor.error(f"general.alignment {alignment!r}: a power of two from 8 to 1048576 is needed")
    return alignment


def _listed_tensor(cursor: _Cursor, index: int) -> tuple[str, tuple[int, ...], int, int]:
    """(name, shape, type, offset from the data's start)."""
    cursor.where = f"tensor {index}"
    name = cursor.string(_MAX_NAME)
    cursor.where = f"tensor {shorten(name)}"
    dims = cursor.number(_U32)
    if not 1 <= dims <= _MAX_DIMS:
        raise cursor.error(f"{dims} dimensions; 1 to {_MAX_DIMS} are allowed")
    shape = tuple(reversed([int(cursor.number(_U64)) for _ in range(dims)]))
    if min(shape) < 1:
        raise cursor.error(f"the empty shape {list(shape)}")
    return name, shape, cursor.number(_U32), cursor.number(_U64)


def _tensor_info(
    file: MappedFile,
    line: tuple[str, tuple[int, ...], int, int],
    alignment: int,
    data_start: int,
    headers: bool,
) -> _TensorInfo:
    name, shape, code, offset = line
    what = f"{file.path.name}: tensor {shorten(name)}"
    if offset % alignment:
        raise CheckpointError(f"{what} starts at offset {offset}, not a multiple of {alignment}")
    start = data_start + offset
    if start >= file.size and not headers:
        raise CheckpointError(f"{what} starts at byte {start}, past the file's end at {file.size}")
    if code not in GGML_TYPES:
        return _TensorInfo(name, shape, code, start, None)
    format_, block, block_bytes = GGML_TYPES[code]
    if shape[-1] % block:
        raise CheckpointError(f"{what} has rows of {shape[-1]}; {format_} needs a multiple of {block}")
    nbytes = math.prod(shape) // block * block_bytes
    if start + nbytes > file.size and not headers:
        raise CheckpointError(f"{what} ends at byte {start + nbytes}, past the file's end at {file.size}")
    return _TensorInfo(name, shape, code, start, nbytes)


def _check_names(file: MappedFile, infos: list[_TensorInfo]) -> None:
    seen: set[str] = set()
    for info in infos:
        if info.name in seen:
            raise CheckpointError(f"{file.path.name}: tensor {shorten(info.name)} appears twice")
        seen.add(info.name)


def _check_overlap(file: MappedFile, infos: list[_TensorInfo]) -> None:
    ordered = sorted(infos, key=lambda e: e.start)
    for one, other in itertools.pairwise(ordered):
        if one.start + (one.nbytes or 1) > other.start:
            raise CheckpointError(
                f"{file.path.name}: tensors {shorten(one.name)} and {shorten(other.name)} overlap"
            )
