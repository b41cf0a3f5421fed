"""The extension module built from csrc/ (bind.cpp). kernels/cpu_*.py is its only caller."""

from collections.abc import Callable, Sequence
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from octavo.kernels.batch import ForwardBatch
from octavo.kernels.draws import Edits, Scores
from octavo.kernels.ops import DecodeRows

_Place: TypeAlias = tuple[int, int, int]  # kind of rows, width, byte offset in the arena
_Table: TypeAlias = tuple[int, int, int, bool]  # address, row stride, column stride, is f32
_Source: TypeAlias = tuple[int, int, int, int, _Table, _Table]  # address, rows, row and block stride, tables
_F32: TypeAlias = npt.NDArray[np.float32]
_I32: TypeAlias = npt.NDArray[np.int32]
_Routing: TypeAlias = tuple[bool, _F32 | None, int, int, int, float]  # as in ops.Routing
_I64: TypeAlias = npt.NDArray[np.int64]
_F64: TypeAlias = npt.NDArray[np.float64]
_Norm: TypeAlias = tuple[int, _F32 | None, _F32 | None, float]  # kind, gain, bias, eps

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
    def __init__(self, pool: Pool, isa: str, vocab: int, /) -> None: ...
    def sample(
        self,
        logits: _F32,
        records: npt.NDArray[np.uint8],
        positions: _I64,
        edits: Edits | None = None,
        scores: Scores | None = None,
        which: _I32 | None = None,
    ) -> list[int]: ...
    def score(self, logits: _F32, tokens: _I32, scores: Scores) -> list[int]: ...

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
    def nbytes(self) -> int: ...

def pack(
    pool: Pool,
    arena: WeightArena,
    layout: int,
    sources: Sequence[_Source],
    k: int,
    gated: bool,
    wide: bool,
    minima: bool,
    after_slice: Callable[[], None],
    /,
) -> Matrix: ...
def activation_bytes(weight: Matrix, rows: int, /) -> int: ...
def moe_workspace(gate_up: Sequence[Matrix], down: Sequence[Matrix], top_k: int, tokens: int, /) -> int: ...
def head_linear_workspace(weights: Sequence[Matrix], rows: int, /) -> int: ...

class KVCache:
    def __init__(
        self,
        layers: Sequence[tuple[int, int, int, int, bool]],
        num_pages: int,
        page_size: int,
        local: bool = False,
    ) -> None: ...
    @property
    def nbytes(self) -> int: ...
    def copy_pages(self, pairs: Sequence[tuple[int, int]], /) -> None: ...
    def pages(self) -> npt.NDArray[np.uint8]: ...  # [num_pages, bytes of a page], a view

class Limits:
    def __init__(
        self, *, tokens: int, sequences: int, sampled: int, table_width: int, given: int = 0
    ) -> None: ...

class Program:
    def __init__(self, pool: Pool, isa: str, limits: Limits, nbytes: int, /) -> None: ...
    def embed(self, y: _Place, table: Matrix, scale: float, /) -> None: ...
    def embed_positions(self, x: _Place, y: _Place, table: Matrix, offset: int, /) -> None: ...
    def gather(self, x: _Place, y: _Place, /) -> None: ...
    def replace(self, x: _Place, y: _Place, /) -> None: ...
    def norm(self, x: _Place, y: _Place, norm: _Norm, /) -> None: ...
    def add(self, x: _Place, y: _Place, z: _Place, /) -> None: ...
    def gate_rows(self, x: _Place, gate: _Place, y: _Place, /) -> None: ...
    def linear(
        self,
        x: _Place,
        y: _Place,
        column: int,
        weight: Matrix,
        norm: _Norm,
        bias: _F32 | None,
        activation: int,
        residual: _Place | None,
        scale: float,
        softcap: float,
        prepared: int,
    ) -> None: ...
    def moe(
        self,
        x: _Place,
        router: _Place,
        y: _Place,
        gate_up: Sequence[Matrix],
        down: Sequence[Matrix],
        top_k: int,
        activation: int,
        renormalize: bool,
        routing: _Routing,
        workspace: int,
        /,
    ) -> None: ...
    def rotary_append(
        self,
        qkv: _Place,
        q: _Place,
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
    def head_linear(self, x: _Place, y: _Place, weights: Sequence[Matrix], workspace: int, /) -> None: ...
    def latent_append(
        self,
        q_latent: _Place,
        q_rope: _Place,
        latent: _Place,
        k_rope: _Place,
        q: _Place,
        cache: KVCache,
        layer: int,
        heads: int,
        cos: _F32,
        sin: _F32,
        interleaved: bool,
        /,
    ) -> None: ...
    def attention(
        self,
        q: _Place,
        y: _Place,
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
    def set_result(self, result: _Place, /) -> None: ...
    def replay(self, batch: ForwardBatch, given_rows: int = 0) -> _F32: ...
    def rows(self, buffer: _Place, /) -> _F32: ...
    def memory(self, buffer: _Place, rows: int, /) -> _F32: ...

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
        asked: Sequence[int] = (),
        refuses: Callable[[int, int], bool] | None = None,
        room: npt.NDArray[np.uint32] | None = None,
    ) -> list[int]: ...
    def logits(self) -> _F32: ...
    def redraw(self, indices: Sequence[int], mask: npt.NDArray[np.uint32]) -> list[int]: ...
