"""What every checkpoint container offers: a config and named tensors, as views of a mapped file."""

from __future__ import annotations

import mmap
import os
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from octavo.errors import CheckpointError

Progress = Callable[[int, int], None]
"""Called with (bytes so far, bytes in all)."""


@dataclass(frozen=True, slots=True, eq=False)
class StoredTensor:
    """One tensor as the file holds it.

    Attributes:
        shape: row-major, as NumPy says it: the last axis is contiguous (GGUF's dims reversed).
        format: name of the number format, "F32" or "Q4_1"; quant/ has one file for each.
        data: its bytes, read-only uint8 [nbytes], a view of the mapping.
    """

    name: str
    shape: tuple[int, ...]
    format: str
    data: npt.NDArray[np.uint8]
    on_release: Callable[[], None]

    def release(self) -> None:
        """Give the mapped pages back to the system; reading `data` again reads them anew."""
        self.on_release()


class Checkpoint(Protocol):
    """A model's files, opened.

    Attributes:
        kind: "gguf" or "hf".
        architecture: GGUF's general.architecture, or config.json's model_type.
        config: the GGUF metadata, or config.json.
        tensors: by the names the file uses; models/ maps names. Asking for a tensor whose type is
            unknown raises CheckpointError.
        cut: (bytes that are there, bytes that the headers name) of a file that was opened for its headers
            and ends before its data do; None: nothing is missing.
    """

    @property
    def kind(self) -> str: ...
    @property
    def path(self) -> Path: ...
    @property
    def architecture(self) -> str: ...
    @property
    def config(self) -> dict[str, Any]: ...
    @property
    def tensors(self) -> Mapping[str, StoredTensor]: ...
    @property
    def cut(self) -> tuple[int, int] | None: ...
    def content_hash(self) -> str:
        """Over config and all bytes of the weights: the same wherever the files lie. Reads all of them."""
        ...

    def forget_tokenizer(self) -> None:
        """Let go of the vocabulary, once a tokenizer was made of it; its length stays in config."""

    def close(self) -> None:
        """Let go of the files. Views that are still alive stay valid; the last one unmaps."""


class MappedFile:
    """A file mapped read-only.

    Attributes:
        raw: the mapping.
        size: bytes.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        try:
            with path.open("rb") as file:
                self.size = os.fstat(file.fileno()).st_size
                if self.size == 0:
                    raise CheckpointError(f"{path.name} is empty")
                self.raw = mmap.mmap(file.fileno(), self.size, access=mmap.ACCESS_READ)
        except OSError as error:
            raise CheckpointError(f"cannot open {path}: {error.strerror or error}") from None

    def view(self, start: int, stop: int) -> npt.NDArray[np.uint8]:
        """Bytes [start, stop) as a read-only view; the caller has checked the bounds."""
        return np.frombuffer(self.raw, np.uint8)[start:stop]

    def release(self, start: int, stop: int) -> None:
        """Drop the pages that hold [start, stop) from this process's memory.

        Border pages shared with a neighbour go too: the mapping is read-only, so whoever reads
        them again gets the same bytes from the page cache.
        """
        if stop <= start or not hasattr(mmap, "MADV_DONTNEED"):
            return
        first = start - start % mmap.PAGESIZE
        self.raw.madvise(mmap.MADV_DONTNEED, first, stop - first)

    def tensor(self, name: str, shape: tuple[int, ...], format_: str, start: int, stop: int) -> StoredTensor:
        def release() -> None:
            self.release(start, stop)

        return StoredTensor(name, shape, format_, self.view(start, stop), release)


class LazyTensors(Mapping[str, StoredTensor]):
    """Named tensors that are made when asked for."""

    def __init__(self, makers: Mapping[str, Callable[[], StoredTensor]]) -> None:
        self._makers = makers

    def __getitem__(self, name: str) -> StoredTensor:
        return self._makers[name]()

    def __contains__(self, name: object) -> bool:
        return name in self._makers

    def __iter__(self) -> Iterator[str]:
        return iter(self._makers)

    def __len__(self) -> int:
        return len(self._makers)


PICKLES = (".bin", ".pt", ".pth", ".ckpt")
"""Ends of names of files that are never opened."""


def why_no_pickle(source: str) -> str:
    """Why a pickle is not opened, and how to make safetensors of the model in it."""
    return (
        "a pickle, which can run code when opened; where you trust it, convert it: "
        f"python -c \"import transformers as t; a, b = '{source}', 'FOLDER'; "
        "m = getattr(t, t.AutoConfig.from_pretrained(a).architectures[0]); "
        '[c.from_pretrained(a).save_pretrained(b) for c in (m, t.AutoTokenizer)]"'
    )


def shorten(text: str, limit: int = 60) -> str:
    """A name out of a file, quoted and cut, fit for a one-line message."""
    return repr(text if len(text) <= limit else text[: limit - 1] + "…")
