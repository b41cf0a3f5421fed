"""The extension module built from csrc/ (bind.cpp). kernels/cpu_*.py is its only caller."""

from collections.abc import Callable, Sequence
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from octavo.kernels.draws import Asked, Edits, RowLogprobs, Scored
from octavo.kernels.forward_batch import ForwardBatch
from octavo.kernels.ops import DecodeRows, Routing

_F32: TypeAlias = npt.NDArray[np.float32]
_I32: TypeAlias = npt.NDArray[np.int32]
_I64: TypeAlias = npt.NDArray[np.int64]
_F64: TypeAlias = npt.NDArray[np.float64]

def isas() -> list[str]: ...
def choose_isa(isa: str) -> str: ...
def clock_rate() -> float: ...
def read_bandwidth(pool: Pool, nbytes: int, rounds: int, /) -> float: ...
def top_k(x: _F32, k: int) -> list[list[int]]: ...

class Pool:
    def __init__(self, size: int, /) -> None: ...
    @property
    def size(self) -> int: ...

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

def record_layout() -> tuple[list[tuple[str, int, int]], int]: ...

class WeightArena:
    def __init__(self, isa: str, planned: bool = False) -> None: ...

class Matrix:
    @property
    def shape(self) -> tuple[int, int]: ...
    @property
    def gated(self) -> bool: ...
    @property
    def quantized(self) -> bool: ...
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

def pack(
    *,
    pool: Pool,
    arena: WeightArena,
    layout: int,
    sources: Sequence[Source],
    k: int,
    gated: bool,
    wide: bool,
    minima: bool,
    after_slice: Callable[[], None],
) -> Matrix: ...
def activation_bytes(weight: Matrix, rows: int, /) -> int: ...
def moe_workspace(*, gate_up: Sequence[Matrix], down: Sequence[Matrix], top_k: int, tokens: int) -> int: ...
def head_linear_workspace(*, weights: Sequence[Matrix], rows: int) -> int: ...

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
    def pages(self) -> npt.NDArray[np.uint8]: ...  # [num_pages, bytes of a page], a view

class Limits:
    def __init__(
        self, *, tokens: int, sequences: int, sampled: int, table_width: int, given: int = 0
    ) -> None: ...

class Buffer:  # rows: of which kind; offset: bytes, in the arena
    def __init__(self, *, rows: int, width: int, offset: int) -> None: ...

class Norm:
    def __init__(self, *, kind: int, gain: _F32 | None, bias: _F32 | None, eps: float) -> None: ...

class Program:
    def __init__(self, *, pool: Pool, isa: str, limits: Limits, nbytes: int) -> None: ...
    def embed(self, *, y: Buffer, table: Matrix, scale: float) -> None: ...
    def embed_positions(self, *, x: Buffer, y: Buffer, table: Matrix, offset: int) -> None: ...
    def gather(self, *, x: Buffer, y: Buffer) -> None: ...
    def replace(self, *, x: Buffer, y: Buffer) -> None: ...
    def norm(self, *, x: Buffer, y: Buffer, norm: Norm) -> None: ...
    def add(self, *, x: Buffer, y: Buffer, z: Buffer) -> None: ...
    def gate_rows(self, *, x: Buffer, gate: Buffer, y: Buffer) -> None: ...
    def linear(
        self,
        *,
        x: Buffer,
        y: Buffer,
        column: int,
        weight: Matrix,
        norm: Norm | None,
        bias: _F32 | None,
        activation: int,
        residual: Buffer | None,
        scale: float,
        softcap: float,
        prepared: int,
    ) -> None: ...
    def moe(
        self,
        *,
        x: Buffer,
        router: Buffer,
        y: Buffer,
        gate_up: Sequence[Matrix],
        down: Sequence[Matrix],
        top_k: int,
        activation: int,
        renormalize: bool,
        routing: Routing,
        workspace: int,
    ) -> None: ...
    def rotary_append(
        self,
        *,
        qkv: Buffer,
        q: Buffer,
        cache: KVCache,
        layer: int,
        heads: int,
        cos: _F32 | None,
        sin: _F32 | None,
        interleaved: bool,
        q_norm: _F32 | None,
        k_norm: _F32 | None,
        eps: float,
    ) -> None: ...
    def head_linear(self, *, x: Buffer, y: Buffer, weights: Sequence[Matrix], workspace: int) -> None: ...
    def latent_append(
        self,
        *,
        q_latent: Buffer,
        q_rope: Buffer,
        latent: Buffer,
        k_rope: Buffer,
        q: Buffer,
        cache: KVCache,
        layer: int,
        heads: int,
        cos: _F32,
        sin: _F32,
        interleaved: bool,
    ) -> None: ...
    def attention(
        self,
        *,
        q: Buffer,
        y: Buffer,
        cache: KVCache,
        layer: int,
        heads: int,
        scale: float,
        softcap: float,
        window: int,
        slopes: _F32 | None,
        sinks: _F32 | None,
        sight: int,
        bias: _F32 | None,
    ) -> None: ...
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
    ) -> list[int]: ...
    def logits(self) -> _F32: ...
    def redraw(self, indices: Sequence[int], mask: npt.NDArray[np.uint32]) -> list[int]: ...
