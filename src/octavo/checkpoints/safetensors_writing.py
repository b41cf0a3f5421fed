"""Writing safetensors: the inverse of safetensors.py, one tensor in memory at a time."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import BinaryIO

from octavo.checkpoints.base import StoredTensor
from octavo.checkpoints.safetensors import INDEX

_ALIGNMENT = 8
_METADATA = {"format": "pt"}
"""What transformers looks for."""


def write_safetensors(path: Path, tensors: Sequence[StoredTensor]) -> None:
    """A file of these tensors; where it cannot be written whole there is none.

    Raises:
        OSError: as the system says.
    """
    header: dict[str, object] = {"__metadata__": _METADATA}
    at = 0
    for tensor in tensors:
        end = at + tensor.data.nbytes
        header[tensor.name] = {
            "dtype": tensor.format, "shape": list(tensor.shape), "data_offsets": [at, end]
        }  # fmt: skip
        at = end
    said = json.dumps(header, separators=(",", ":")).encode()
    said += b" " * (-len(said) % _ALIGNMENT)

    def write(file: BinaryIO) -> None:
        file.write(len(said).to_bytes(8, "little"))
        file.write(said)
        for tensor in tensors:
            file.write(tensor.data.data)
            tensor.release()

    write_whole(path, write)


def write_index(folder: Path, files: Mapping[str, str], nbytes: int) -> None:
    """The index of a folder.

    Args:
        files: tensor -> the file that holds it.
    """
    value = {"metadata": {"total_size": nbytes}, "weight_map": dict(sorted(files.items()))}
    text = json.dumps(value, indent=2).encode()
    write_whole(folder / INDEX, lambda file: file.write(text))


def write_whole(path: Path, write: Callable[[BinaryIO], object]) -> None:
    """A file that is there with all of its bytes on the disk, or not at all.

    Raises:
        OSError: as the system says.
    """
    half = path.with_name(f"{path.name}.part")
    try:
        with half.open("wb") as file:
            write(file)
            file.flush()
            os.fsync(file.fileno())
        half.replace(path)
    except BaseException:
        with suppress(OSError):
            half.unlink(missing_ok=True)
        raise
