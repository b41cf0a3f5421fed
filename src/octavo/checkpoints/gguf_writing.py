"""Writing GGUF, version 3: the inverse of gguf.py, one tensor in memory at a time."""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import numpy.typing as npt

from octavo.checkpoints.gguf import GGML_TYPES
from octavo.checkpoints.safetensors_writing import write_whole

_ALIGNMENT = 32
_TYPES = {name: code for code, (name, _, _) in GGML_TYPES.items()}
_U32, _I32, _F32, _BOOL, _STRING, _ARRAY, _U64 = 4, 5, 6, 7, 8, 9, 10
FILE_TYPES = {"F32": 0, "F16": 1, "Q4_0": 2, "Q4_1": 3, "Q8_0": 7, "Q5_0": 8, "Q4_K_M": 15}
"""general.file_type of what most matrices are."""


@dataclass(frozen=True, slots=True)
class ToWrite:
    """A tensor to be.

    Attributes:
        shape: as NumPy says it.
        format: "Q4_0".
        data: makes its bytes, in pieces.
    """

    name: str
    shape: tuple[int, ...]
    format: str
    data: Callable[[], Iterator[npt.NDArray[Any]]]

    @property
    def nbytes(self) -> int:
        _, block, size = GGML_TYPES[_TYPES[self.format]]
        return int(np.prod(self.shape)) // block * size


def write_gguf(path: Path, metadata: Mapping[str, bytes], tensors: Sequence[ToWrite]) -> None:
    """The file; where it cannot be written whole there is none.

    Args:
        metadata: key -> type and value, as value_bytes() gives them.

    Raises:
        OSError: as the system says.
    """
    header = [b"GGUF", struct.pack("<IQQ", 3, len(tensors), len(metadata))]
    header += [_text(key) + value for key, value in metadata.items()]
    at = 0
    for each in tensors:
        dims = each.shape[::-1]
        header.append(_text(each.name) + struct.pack(f"<I{len(dims)}Q", len(dims), *dims))
        header.append(struct.pack("<IQ", _TYPES[each.format], at))
        at += _padded(each.nbytes)
    said = b"".join(header)

    def write(file: BinaryIO) -> None:
        file.write(said.ljust(_padded(len(said)), b"\0"))
        for each in tensors:
            count = 0
            for piece in each.data():
                file.write(np.ascontiguousarray(piece).reshape(-1).view(np.uint8).data)
                count += piece.nbytes
            if count != each.nbytes:
                raise ValueError(f"{each.name}: {count} bytes are not {each.format} {each.shape}")
            file.write(b"\0" * (_padded(count) - count))

    write_whole(path, write)


def value_bytes(value: Any) -> bytes:
    """A metadata value: an int as u32 (u64 where it is larger), a float as f32; lists of ints as i32."""
    if isinstance(value, bool):
        return struct.pack("<I?", _BOOL, value)
    if isinstance(value, int):
        return struct.pack("<II", _U32, value) if value < 1 << 32 else struct.pack("<IQ", _U64, value)
    if isinstance(value, float):
        return struct.pack("<If", _F32, value)
    if isinstance(value, str):
        return struct.pack("<I", _STRING) + _text(value)
    items = list(value)
    if all(isinstance(item, str) for item in items):
        return struct.pack("<IIQ", _ARRAY, _STRING, len(items)) + b"".join(map(_text, items))
    kind, letter = (_F32, "f") if any(isinstance(item, float) for item in items) else (_I32, "i")
    return struct.pack(f"<IIQ{len(items)}{letter}", _ARRAY, kind, len(items), *items)


def _text(text: str) -> bytes:
    data = text.encode()
    return struct.pack("<Q", len(data)) + data


def _padded(count: int) -> int:
    return -(-count // _ALIGNMENT) * _ALIGNMENT
