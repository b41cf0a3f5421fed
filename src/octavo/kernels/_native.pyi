"""The extension module built from csrc/ (bind.cpp). kernels/cpu_*.py is its only caller."""

from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from octavo.kernels.draws import Asked, Edits, Lifted, RowLogprobs, Scored
from octavo.kernels.forward_batch import ForwardBatch
from octavo.kernels.ops import DecodeRows

_F32: TypeAlias = npt.NDArray[np.float32]
_I32: TypeAlias = npt.NDArray[np.int32]
_I64: TypeAlias = npt.NDArray[np.int64]
_F64: TypeAlias = npt.NDArray[np.float64]

def isas() -> list[str]: ...
def choose_isa(isa: str) -> str: ...
def clock_rate() -> float: ...
def read_bandwidth(pool: Pool, nbytes: int, rounds: int, /) -> float: ...

class Pool:
    def __init__(self, size: int, /) -> None: ...

class Sampler:
    def __init__(self, *, pool: Pool, isa: str, vocab: int) -> None: ...
    def sample(
        self,
        logits: _F32,
        records: npt.NDArray[np.uint8],
        positions: _I64,
        edits: Edits | None = None,
        scores: RowLogprobs | None = None,
        which: _I32 | None = None,
    ) -> list[int]: ...
    def score(self, logits: _F32, tokens: _I32, scores: RowLogprobs) -> list[int]: ...

def green_list(seed: int, vocab: int, count: int, bits: npt.NDArray[np.uint32]) -> None: ...
def record_layout() -> tuple[list[tuple[str, int, int]], int]: ...

class WeightArena:
    def __init__(self, isa: str, planned: bool = False) -> None: ...

class Matrix:
    @property
    def shape(self) -> tuple[int, int]: ...
    @property
    def cut(self) -> bool: ...
    @property
    def nbytes(self) -> int: ...

class Table:  # data: an address; strides in bytes; wide: f32
    def __init__(self, *, data: int, row_stride: int, column_stride: int, wide: bool) -> None: ...

class Source:  # values: an address; strides in bytes
    def __init__(
        self,
        *,
        values: int,
        rows: int,
        row_stride: int,
        block_stride: int,
        scale: Table | None,
        minimum: Table | None,
    ) -> None: ...

class Form:  # group: blocks that share tables; zeros: minima are zero points
    def __init__(
        self, *, layout: int, k: int, gated: bool, wide: bool, minima: bool, zeros: bool, group: int
    ) -> None: ...

def pack(
    *,
    pool: Pool,
    arena: WeightArena,
    form: Form,
    sources: Sequence[Source],
    order: npt.NDArray[np.int32] | None,
    after_slice: Callable[[], None],
) -> Matrix: ...

class KVShape:
    def __init__(self, *, heads: int, d: int, dv: int, type: int, latent: bool) -> None: ...

class KVCache:
    def __init__(
        self,
        *,
        layers: Sequence[KVShape],
        num_pages: int,
        page_size: int,
        sliding: bool = False,
    ) -> None: ...
    @property
    def nbytes(self) -> int: ...
    def copy_pages(self, pairs: Sequence[tuple[int, int]], /) -> None: ...
    def move_slots(self, pairs: Sequence[tuple[int, int]], /) -> None: ...
    def pages(self) -> npt.NDArray[np.uint8]: ...  # [num_pages, bytes of a page], a view

class KVLayer:
    def __init__(self, cache: KVCache, index: int) -> None: ...

class Limits:
    def __init__(
        self, *, tokens: int, sequences: int, sampled: int, table_width: int, given: int = 0
    ) -> None: ...

class Buffer:  # rows: of which kind; offset: bytes, in the arena
    def __init__(self, *, rows: int, width: int, offset: int) -> None: ...

class Op:  # args: as kernels/cpu_lower.py codes them
    def __init__(self, name: str, args: dict[str, Any]) -> None: ...
    def workspace(self, rows: int) -> int: ...

class Program:
    def __init__(self, *, pool: Pool, isa: str, limits: Limits, nbytes: int) -> None: ...
    def add(self, *, op: Op, inputs: Sequence[Buffer], output: Buffer, workspace: int) -> None: ...
    def set_result(self, result: Buffer, /) -> None: ...
    def replay(self, batch: ForwardBatch, given_rows: int = 0) -> _F32: ...
    @property
    def replays(self) -> int: ...
    def rows(self, buffer: Buffer, /) -> _F32: ...
    def memory(self, buffer: Buffer, rows: int, /) -> _F32: ...

class Decoder:
    def __init__(self, program: Program, sampler: Sampler, rows: DecodeRows) -> None: ...
    @property
    def forward_s(self) -> float: ...
    @property
    def drawing_s(self) -> float: ...
    @property
    def chosen(self) -> int: ...
    def step(
        self,
        rows: Sequence[int],
        starts: Sequence[int],
        left: Sequence[int] = (),
        asked: Asked | None = None,
        scored: Scored | None = None,
        lifted: Lifted | None = None,
    ) -> list[int]: ...
    def verify(
        self, rows: Sequence[int], starts: Sequence[int], drafts: Sequence[Sequence[int]]
    ) -> list[list[int]]: ...
    def logits(self) -> _F32: ...
    def redraw(self, indices: Sequence[int], mask: npt.NDArray[np.uint32]) -> list[int]: ...
