"""A place to compute, as the runtime sees it: weights packed, pages held, programs run, tokens drawn."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol, runtime_checkable

from octavo.kernels.draws import DecodeRows, DeviceSteps, RowDecoder, RowSampler
from octavo.kernels.forward_batch import ForwardBatch, Limits
from octavo.kernels.operations import Ops
from octavo.kernels.types import F32, U8, Inputs, KVLayer, KVSpec, PackedWeight, Tensor


class KVCache(Protocol):
    """All layers' pages on one backend."""

    @property
    def nbytes(self) -> int: ...

    def layer(self, index: int) -> KVLayer: ...

    def copy_pages(self, pairs: Sequence[tuple[int, int]]) -> None:
        """Copy page src to page dst in every layer for each (src, dst); all are read first."""
        ...

    def move_slots(self, pairs: Sequence[tuple[int, int]]) -> None:
        """Copy slot src to slot dst (page * page_size + offset) in every layer, as it is stored.

        Args:
            pairs: in an order in which no dst is the src of a later pair.
        """
        ...


@runtime_checkable
class LateCopies(Protocol):
    """A KVCache whose copies are still under way when copy_pages returns."""

    def wait(self) -> None: ...


@runtime_checkable
class PageBytes(Protocol):
    """A KVCache whose pages can be taken out and put back: what makes them up, scales included."""

    @property
    def page_bytes(self) -> int:
        """Bytes of a page, all layers together."""
        ...

    def read_page(self, page: int) -> U8:
        """A copy of a page's bytes, [page_bytes]."""
        ...

    def write_page(self, page: int, data: U8) -> None:
        """Make a page what read_page gave, of whichever page it was."""
        ...


class Forward(Protocol):
    """Model code: from a batch to logits [R, vocab]."""

    def __call__(self, ops: Ops, inputs: Inputs) -> Tensor: ...


class Program(Protocol):
    """A forward that can be run again and again over the same static buffers."""

    def replay(self, batch: ForwardBatch, given: Mapping[str, F32] | None = None) -> F32:
        """Run it. Returns the forward's result, [rows, width]; valid until the next replay.

        Args:
            given: the arrays that the forward takes (Ops.given), by name.

        Raises:
            ValueError: the batch brings a part, or given an array, that the forward does not know, or one
                that it takes is missing or of another shape; or tokens rotate by positions of their own that
                the rotary tables lack.
        """
        ...

    def kept(self, name: str) -> F32:
        """What the last replay left under that name (Ops.keep), [rows, width]; valid until the next one.

        Raises:
            ValueError: the forward keeps nothing of that name, or nothing was replayed yet.
        """
        ...


class Backend(ABC):
    """A place to compute: packs weights, holds pages, runs programs.

    Attributes:
        kv_dtype: the type of pages (KVSpec.dtype) where nobody chose one; None: the configuration's.
        step_tokens: tokens of a step that keep it busy; None: as many as a CPU's.
    """

    name: str
    isa: str
    threads: int
    kv_dtype: str | None = None
    step_tokens: int | None = None

    def page_budget(self, share: float | None, reserve: int) -> int | None:
        """Bytes of a memory of its own that pages may take; None: they lie in the system's memory.

        Args:
            share: of the whole memory, for everything; None: the backend's own.
            reserve: bytes to leave to activations.
        """
        return None

    @abstractmethod
    def pack(self, weights: Sequence[Any], gated: bool = False, head: bool = False) -> PackedWeight:
        """Stack Weights (kernels/weight.py) of one width along their rows, packed for ops.linear.

        Layouts may differ: each row keeps its weight's own, and meets x rounded or not as that
        layout says. gated: exactly two weights of equal shape, a gate and an up projection; two
        layouts meet in f32. head: of logits, of which the largest alone may be wanted.
        Each Weight's release() is called once its bytes were taken.
        """

    @abstractmethod
    def kv_cache(
        self, layers: Sequence[KVSpec], num_pages: int, page_size: int, swap_pages: int = 0,
        sliding: bool = False,
    ) -> KVCache:  # fmt: skip
        """Pages for all layers; memory is touched lazily where the system allows.

        Args:
            swap_pages: pages after the others that only copy_pages reaches, in the system's memory.
            sliding: the batch names these pages in sliding_tables, not in page_tables (ForwardBatch).
        """

    @abstractmethod
    def capture(self, forward: Forward, limits: Limits) -> Program:
        """Make a Program of model code.

        Raises:
            UnsupportedError: limits name an optional part of batches that no program takes yet, or that this
                model does not read.
        """

    def facts(self) -> dict[str, str]:
        """What the lines of a start should say of it, by name."""
        return {}

    def device_memory(self) -> dict[str, int]:
        """Bytes of a memory of its own: total, used and peak by this process; empty: it has none."""
        return {}

    def report(self, tell: Callable[[str, float], None]) -> None:
        """From now on tell of work that ended in the background: (what it was, seconds), on its thread."""
        return None

    def steps(self, forward: Forward, limits: Limits, vocab_size: int) -> DeviceSteps | None:
        """A program that draws where its logits are (kernels/draws.py); None: logits come to the host."""
        return None

    def sampler(self, vocab_size: int) -> RowSampler | None:
        """Draws tokens from logits [R, vocab_size]; None: this backend leaves that to NumPy."""
        return None

    def decoder(
        self, program: Program, sampler: RowSampler, rows: DecodeRows, ahead: bool = False
    ) -> RowDecoder | None:
        """Decodes rows whose draws need their records alone, or are left to others; None: it cannot.

        Args:
            program, sampler: of this backend.
            ahead: of a lone row it may begin with the next step before that is asked for.
        """
        return None
