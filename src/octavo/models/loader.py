"""Loader: from a checkpoint's tensors to packed weights, checked by name and shape."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from fnmatch import fnmatchcase
from typing import NamedTuple

import ml_dtypes
import numpy as np
import numpy.typing as npt

from octavo.checkpoints.base import Checkpoint, StoredTensor
from octavo.errors import CapacityError, CheckpointError
from octavo.kernels.ops import F32, Backend, PackedWeight, Rotary
from octavo.kernels.weight import Array, Weight
from octavo.models.config import RopeConfig
from octavo.models.layers import HEAD, ROWS, LayerNorm, Linear, RMSNorm, Role, SourceRows, Use
from octavo.models.rotary import Scaling, rotary_tables
from octavo.quant import registry as formats
from octavo.quant.on_load import Method
from octavo.quant.schemes import scheme_of

_DENSE: dict[str, np.dtype[np.generic]] = {
    "float32": np.dtype(np.float32),
    "float16": np.dtype(np.float16),
    "bfloat16": np.dtype(ml_dtypes.bfloat16),
}
DTYPES = ("auto", *_DENSE)
Order = npt.NDArray[np.int64]
Stacked = tuple[str, int, Order | None]
"""A matrix among several: its module, how many rows it has, and in which order they are taken."""

_UNUSED = ("*rotary_emb.inv_freq", "*.attn.bias", "*.masked_bias", "*.attention.bias", "*.rotary_emb.*")
"""Buffers that older versions of transformers saved beside the weights."""


MAX_HEAD = 1 << 16
MAX_TABLES = 1 << 30
"""Bytes of rotary tables. A file may claim any context, and they are made before pages are counted."""


class WantedMatrix(NamedTuple):
    """A matrix that a model asks for.

    Attributes:
        shape: as the model has it, [N, K].
        order: rearranges its rows; None: they stand as they are.
        transposed: it is stored as [K, N] (GPT-2).
        use: what for; a config.json says by it what is quantized (PlannedLoader).
    """

    name: str
    shape: tuple[int, int]
    order: Order | None
    transposed: bool
    use: Use

    @property
    def stored(self) -> tuple[int, int]:
        """Its shape in the file."""
        return self.shape[::-1] if self.transposed else self.shape


class Piece(NamedTuple):
    """A projection cut out of a matrix: some of its rows, or these as columns where transposed."""

    rows: Order
    role: Role
    transposed: bool = False


class Loader:
    """What a family's build() asks for weights.

    Args:
        names: our names -> the file's names, with {i} for the layer; empty if they are the same. A
            name without its last part stands for all tensors of that module.
        dtype: "auto" keeps what is stored; otherwise everything is dequantized to it.
        context: the longest sequence that will be served; None: the model's own longest.
        method: what projections of floats become; None: they stay.
    """

    def __init__(
        self,
        checkpoint: Checkpoint,
        backend: Backend,
        names: Mapping[str, str],
        dtype: str = "auto",
        context: int | None = None,
        method: Method | None = None,
    ) -> None:
        self._checkpoint, self.backend, self._names = checkpoint, backend, names
        self._method = method
        self._dense = None if dtype == "auto" else _DENSE[dtype]
        self._taken = set[str]()
        self.context = context
        self._scheme = scheme_of(checkpoint.config) if checkpoint.kind == "hf" else None
        self._shared: dict[str, PackedWeight] = {}
        self._tables: dict[int, str] = {}  # a packed table's id -> its name
        self.nbytes = 0

    @property
    def kind(self) -> str:
        """The container, "hf" or "gguf"."""
        return self._checkpoint.kind

    def has(self, name: str) -> bool:
        return self._find(name)[0] in self._checkpoint.tensors

    # -- single tensors --------------------------------------------------------------------------

    def weight(
        self,
        name: str,
        shape: tuple[int, int],
        order: Order | None = None,
        transposed: bool = False,
        use: Use = Use.PROJECTION,
    ) -> Weight:
        """The matrix called name, which must have this shape. The arguments are WantedMatrix's."""
        return self._weight(WantedMatrix(name, shape, order, transposed, use))

    def _weight(self, wanted: WantedMatrix) -> Weight:
        name, stored = wanted.name, wanted.stored
        weight = None if self._scheme is None else self._scheme(self._find(name)[0], stored, self._part)
        if weight is None:
            weight = formats.weight(self._take(name, stored))
        if wanted.transposed:
            weight = Weight.dense(weight.dequantize().T, weight.release)
        if wanted.order is not None:
            weight = weight.rows(wanted.order)
        if self._dense is not None:
            dense: Array = weight.dequantize()
            weight = Weight.dense(dense.astype(self._dense, copy=False), weight.release)
        if self._method is not None and wanted.use is Use.PROJECTION:
            weight = self._method.weight(name, weight)
        return weight

    def vector(self, name: str, length: int) -> F32:
        """A small f32 vector: norm gains, biases."""
        return np.array(formats.vector(self._take(name, (length,))))  # no view of a file that may be cut

    def matrix(self, name: str, shape: tuple[int, int]) -> F32:
        """A small f32 matrix: tables of biases."""
        return self.weight(name, shape, use=Use.HEAD).dequantize()

    def pack(self, weights: Sequence[Weight], gated: bool = False, head: bool = False) -> PackedWeight:
        """Stack and pack; layouts may differ."""
        packed = self.backend.pack(weights, gated, head)
        self.nbytes += packed.nbytes
        return packed

    # -- layers ----------------------------------------------------------------------------------

    def linear(
        self,
        name: str,
        shape: tuple[int, int],
        role: Role,
        bias: bool = False,
        order: Order | None = None,
        transposed: bool = False,
    ) -> Linear:
        """The projection name.weight [N, K], with name.bias [N]; order rearranges the rows of both."""
        packed = self.pack([self.weight(f"{name}.weight", shape, order, transposed, role.use)])
        vector = self._bias(name, shape[0], order) if bias else None
        return Linear(packed, vector, sources_of([(name, shape[0], order)], role), role)

    def stacked(self, parts: Sequence[Stacked], width: int, role: Role, bias: bool = False) -> Linear:
        """Several projections of one input as one: each (name, rows, order), stacked in this order."""
        packed = self.pack([self.weight(f"{name}.weight", (rows, width), o) for name, rows, o in parts])
        biases = [self._bias(name, rows, o) for name, rows, o in parts] if bias else []
        return Linear(packed, np.concatenate(biases) if bias else None, sources_of(parts, role), role)

    def split(
        self, name: str, shape: tuple[int, int], pieces: Sequence[Piece], bias: bool = False
    ) -> list[Linear]:
        """The matrix name.weight as several projections, each of some of its rows (and of its bias)."""
        weight, found = self.weight(f"{name}.weight", shape), []
        vector = self._bias(name, shape[0], None) if bias else None
        for piece in pieces:
            rows = piece.rows.reshape(-1)
            cut = weight.rows(rows)
            packed = self.pack([cut.transpose() if piece.transposed else cut])
            part = SourceRows(name, range(packed.shape[0]), rows, piece.transposed)
            found.append(Linear(packed, None if vector is None else vector[rows], (part,), piece.role))
        return found

    def gated(self, gate: str, up: str, shape: tuple[int, int], bias: bool = False) -> Linear:
        """A gate and an up projection, each of this shape, as one gated weight."""
        packed = self.pack([self.weight(f"{name}.weight", shape) for name in (gate, up)], gated=True)
        biases = [self._bias(name, shape[0], None) for name in (gate, up)] if bias else []
        parts = sources_of([(name, shape[0], None) for name in (gate, up)], ROWS)
        return Linear(packed, np.concatenate(biases) if bias else None, parts, ROWS)

    def fused_gated(self, name: str, shape: tuple[int, int]) -> Linear:
        """The same from one matrix [2 N, K], gate rows first; shape is (N, K)."""
        rows = shape[0]
        both = self.weight(f"{name}.weight", (2 * rows, shape[1]))
        packed = self.pack([both.rows(slice(rows)), both.rows(slice(rows, 2 * rows))], gated=True)
        role = replace(ROWS, sections=(rows, rows))
        return Linear(packed, None, sources_of([(name, 2 * rows, None)], role), role)

    def rms_norm(self, name: str, length: int, eps: float, unit: bool = False) -> RMSNorm:
        """unit: stored as w of a gain 1 + w."""
        gain = self.vector(f"{name}.weight", length)
        return RMSNorm(gain + np.float32(1) if unit else gain, eps)

    def layer_norm(self, name: str, length: int, eps: float, bias: bool = True) -> LayerNorm:
        gain = self.vector(f"{name}.weight", length)
        return LayerNorm(gain, self.vector(f"{name}.bias", length) if bias else None, eps)

    def table(self, name: str, shape: tuple[int, int]) -> PackedWeight:
        """An embedding [vocab, K], which may be the head too."""
        packed = self.pack([self.weight(f"{name}.weight", shape, use=Use.HEAD)], head=True)
        self._tables[id(packed)] = name
        return packed

    def once(self, name: str, shape: tuple[int, int]) -> PackedWeight:
        """An embedding that several parts of a model share."""
        if name not in self._shared:
            self._shared[name] = self.table(name, shape)
        return self._shared[name]

    def head(self, name: str, table: PackedWeight, tied: bool) -> Linear:
        """The head, of the embedding's shape: the embedding itself where tied."""
        embedding = self._tables[id(table)]
        parts = sources_of([(embedding if tied else name, table.shape[0], None)], HEAD)
        if not tied:
            packed = self.pack([self.weight(f"{name}.weight", table.shape, use=Use.HEAD)], head=True)
            return Linear(packed, None, parts, HEAD)
        if self.has(f"{name}.weight"):
            copy = self._take(f"{name}.weight", table.shape)
            self._check_copy(copy, self._take(f"{embedding}.weight", table.shape))
        return Linear(table, None, parts, HEAD)

    def rotary(self, rope: RopeConfig | None, max_position: int) -> Rotary | None:
        """Tables as long as what will be served; factors from the file's own tensors (GGUF)."""
        if rope is None:
            return None
        if rope.dim > MAX_HEAD:  # asked before anything of that size is made, however short the context
            raise CheckpointError(f"rotary embedding of {rope.dim} elements: heads have at most {MAX_HEAD}")
        scaling, half = dict(rope.scaling), rope.dim // 2
        if self.kind == "gguf":
            for stored, key in (
                ("rope_freqs.weight", "factors"),
                ("rope_factors_long.weight", "long_factor"),
                ("rope_factors_short.weight", "short_factor"),
            ):
                if stored in self._checkpoint.tensors:
                    scaling[key] = self._factors(stored, half)
            if "long_factor" in scaling:
                scaling["rope_type"] = "longrope"  # converters leave it unsaid
        positions = min(max_position, self.context or max_position)
        if self.context is None and (size := 4 * rope.dim * positions) > MAX_TABLES:
            raise CapacityError(
                f"a context of {positions} tokens needs rotary tables of {size >> 20} MiB: "
                "say with max_model_len how long sequences get"
            )
        return checked_tables(rope.dim, rope.theta, positions, scaling, rope.interleaved)

    def finish(self, ignored: Sequence[str] = ()) -> None:
        """Raise if the file holds tensors that nobody took: its config says less than it holds.

        ignored: patterns of names that may stay behind.
        """
        for name in self._checkpoint.tensors:
            if name not in self._taken and not any(fnmatchcase(name, p) for p in (*_UNUSED, *ignored)):
                raise CheckpointError(
                    f"tensor {name!r} is in the file, but the model that its config describes has no such "
                    "tensor: config and tensors contradict each other"
                )

    def _check_copy(self, copy: StoredTensor, embedding: StoredTensor) -> None:
        """Raise if the copy of the embedding that stands where a head would is another matrix."""
        if not np.array_equal(copy.data, embedding.data):
            raise CheckpointError(
                f"tie_word_embeddings is true, but tensor {copy.name!r} differs from the embedding: "
                "set it to false if the head has its own weights, or remove the tensor"
            )

    def _factors(self, stored: str, length: int) -> F32:
        return formats.vector(self._take(stored, (length,), stored))

    # -- names -----------------------------------------------------------------------------------

    def _bias(self, name: str, length: int, order: Order | None) -> F32:
        bias = self.vector(f"{name}.bias", length)
        return bias if order is None else bias[order]

    def _find(self, name: str) -> tuple[str, int | None]:
        """The file's name of a tensor, and which slice of it ours is (None: all of it)."""
        if self._checkpoint.kind == "hf":
            bare = name.split(".", 1)[-1]  # a base model is saved without its head's prefix
            tensors = self._checkpoint.tensors
            return (bare if name not in tensors and bare in tensors else name), None
        numbers = re.findall(r"(?<=\.)\d+(?=\.)", name)
        key = re.sub(r"\.\d+\.", ".{i}.", name, count=1)
        key = re.sub(r"\.\d+\.", ".{e}.", key, count=1)
        stem, _, last = key.rpartition(".")
        stored = self._names.get(key)
        if stored is None and stem in self._names:
            stored = f"{self._names[stem]}.{last}"
        if stored is None:
            raise CheckpointError(f"the family has no {self._checkpoint.kind} name for tensor {name!r}")
        if numbers:
            stored = stored.replace("{i}", numbers[0])
        return stored, int(numbers[1]) if len(numbers) > 1 else None

    def _part(self, stored: str) -> StoredTensor | None:
        """A tensor by the file's name, if there is one; it counts as taken."""
        tensor = self._checkpoint.tensors.get(stored)
        if tensor is not None:
            self._taken.add(stored)
        return tensor

    def _take(self, name: str, shape: tuple[int, ...], stored: str | None = None) -> StoredTensor:
        stored, slice_ = (stored, None) if stored is not None else self._find(name)
        tensor = self._checkpoint.tensors.get(stored)
        if tensor is None:
            raise CheckpointError(f"tensor {stored!r} is missing (expected shape {list(shape)})")
        whole = tuple(tensor.shape)
        if slice_ is not None and len(whole) == len(shape) + 1 and slice_ < whole[0]:
            tensor = self._slice(tensor, slice_)
        if tuple(tensor.shape) != shape and [d for d in tensor.shape if d > 1] == [d for d in shape if d > 1]:
            tensor = replace(tensor, shape=shape)  # GGUF drops a dimension of 1, or keeps it
        if tuple(tensor.shape) != shape:
            raise CheckpointError(f"tensor {stored!r} has shape {list(tensor.shape)}, expected {list(shape)}")
        self._taken.add(stored)
        return tensor

    def _slice(self, tensor: StoredTensor, index: int) -> StoredTensor:
        """One of the matrices that are stacked in a tensor."""
        data = tensor.data.reshape(tensor.shape[0], -1)[index]
        return replace(tensor, shape=tuple(tensor.shape[1:]), data=data)


def checked_tables(
    dim: int, theta: float, positions: int, scaling: Scaling, interleaved: bool = False
) -> Rotary:
    """rotary_tables() of numbers that a file claims.

    Raises:
        CheckpointError: nothing finite can be computed of them.
    """
    try:
        with np.errstate(all="ignore"):  # what is not finite is refused below
            tables = rotary_tables(dim, theta, positions, scaling, interleaved)
    except (TypeError, ValueError, ArithmeticError) as error:
        raise CheckpointError(f"rope_scaling cannot be computed: {error}") from None
    if not (np.isfinite(tables.cos).all() and np.isfinite(tables.sin).all()):
        raise CheckpointError("rope_scaling gives angles that are not finite")
    return tables


def sources_of(matrices: Sequence[Stacked], role: Role) -> tuple[SourceRows, ...]:
    """Where the rows of a projection come from that stacks these matrices; a matrix of several sections gives
    as many parts."""
    parts: list[SourceRows] = []
    start = 0
    for name, count, order in matrices:
        begin = 0
        for size in role.sections or (count,):
            end = begin + size
            taken = range(begin, end) if order is None else order[begin:end]
            parts.append(SourceRows(name, range(start + begin, start + end), taken))
            begin = end
        start += count
    return tuple(parts)
