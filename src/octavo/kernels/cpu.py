"""The native CPU backend: packs for csrc/, captures forwards into its programs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from octavo.errors import CapacityError, InvalidRequestError
from octavo.kernels import _native
from octavo.kernels.batch import ForwardBatch
from octavo.kernels.cpu_lower import CpuKVLayer, build, rows_to_native
from octavo.kernels.cpu_weight import CpuWeight, pack
from octavo.kernels.ops import (
    F32,
    U8,
    Backend,
    Forward,
    Inputs,
    KVSpec,
    Limits,
    Program,
    RowDecoder,
    RowSampler,
    Tensor,
)
from octavo.kernels.program import Buffer, Call, Recorder, fuse
from octavo.kernels.weight import Weight

_KV_TYPES = {"f32": 0, "f16": 1, "bf16": 2, "int8": 3, "int16": 4}


def instruction_sets() -> list[str]:
    """Those that this CPU runs and this build holds, best first."""
    return _native.isas()


class CpuKVCache:
    """All layers' pages, one page of every layer side by side; touched lazily by the system."""

    def __init__(self, layers: Sequence[KVSpec], num_pages: int, page_size: int, local: bool = False) -> None:
        shapes = [(s.num_kv_heads, s.head_dim, s.v_head_dim, _KV_TYPES[s.dtype], s.latent) for s in layers]
        self._native = _native.KVCache(shapes, num_pages, page_size, local)
        self._bytes: U8 = self._native.pages()
        self._layers = [CpuKVLayer(self._native, i, spec) for i, spec in enumerate(layers)]

    @property
    def nbytes(self) -> int:
        return self._native.nbytes

    def layer(self, index: int) -> CpuKVLayer:
        return self._layers[index]

    def copy_pages(self, pairs: Sequence[tuple[int, int]]) -> None:
        if pairs:
            self._native.copy_pages(list(pairs))

    @property
    def page_bytes(self) -> int:
        return int(self._bytes.shape[1])

    def read_page(self, page: int) -> U8:
        return np.array(self._bytes[page])

    def write_page(self, page: int, data: U8) -> None:
        self._bytes[page] = data


class CpuProgram:
    """A captured forward. replay returns a view of its own memory.

    Attributes:
        native: the program itself.
        nbytes: of that memory, touched as far as batches reach.
    """

    def __init__(
        self, native: _native.Program, limits: Limits, keep_alive: Sequence[Any], nbytes: int
    ) -> None:
        self.native, self._limits, self._keep_alive = native, limits, keep_alive
        self.nbytes = nbytes

    def replay(self, batch: ForwardBatch) -> F32:
        check_limits(batch, self._limits)
        return run(self.native, batch)


def check_limits(batch: ForwardBatch, limits: Limits) -> None:
    if (
        batch.num_tokens > limits.max_tokens
        or batch.num_sequences > limits.max_sequences
        or batch.num_sampled > limits.max_sampled
        or batch.page_tables.shape[1] > limits.max_pages_per_sequence
        or (batch.cross_tables is not None and batch.cross_tables.shape[1] > limits.max_pages_per_sequence)
    ):
        raise CapacityError(
            f"a batch of {batch.num_tokens} tokens and {batch.num_sequences} sequences exceeds {limits}"
        )


def run(program: _native.Program, batch: ForwardBatch) -> F32:
    return program.replay(
        batch.token_ids,
        batch.positions,
        batch.slots,
        batch.query_start,
        batch.context_lens,
        batch.page_tables,
        batch.sampled,
        batch.cross_lens,
        batch.cross_tables,
        batch.tree_masks,
        batch.local_slots,
        batch.local_tables,
    )


class CpuDecoder:
    """A step of decoding in one call (csrc/decode.h). Keeps the arrays that it reads and writes alive.

    Attributes:
        native: forward_s and drawing_s are the seconds that it has spent so far.
    """

    def __init__(self, native: _native.Decoder, keep_alive: Sequence[Any]) -> None:
        self.native, self._keep_alive = native, keep_alive
        self.step, self.redraw = native.step, native.redraw  # with nothing in between


class EagerOps(Recorder):
    """Runs each call at once, as a program of its own: what a replay must equal, bit for bit."""

    def __init__(self, backend: CpuBackend, batch: ForwardBatch, limits: Limits) -> None:
        super().__init__()
        self._backend, self._batch, self._limits = backend, batch, limits
        self._values: dict[int, F32] = {}

    def emit(self, call: Call) -> None:
        super().emit(call)
        backend, limits = self._backend, self._limits
        program, plan, _keep = build([call], self.buffers, call.output, limits, backend.pool, backend.isa)
        for number in call.inputs:
            value, buffer = self._values[number], self.buffers[number]
            place = (rows_to_native(buffer.rows), buffer.width, plan.offsets[number])
            program.memory(place, len(value))[:] = value
        self._values[call.output] = run(program, self._batch).copy()

    def tensor(self, value: F32, like: Buffer) -> Tensor:
        """A value to start from (tests of single ops)."""
        self.buffers.append(like)
        number = len(self.buffers) - 1
        self._values[number] = np.ascontiguousarray(value, np.float32)
        return Tensor(like.rows, like.width, number)

    def value(self, x: Tensor) -> F32:
        return self._values[x.ref]


class CpuBackend(Backend):
    """C++ kernels for one instruction set, on a pool of threads that lives as long as the backend.

    Args:
        threads: how many compute, the caller among them.
        isa: "auto", or one of instruction_sets().
        planned: weights get their place and size but are not written: everything can be captured and
            weighed, nothing may run, and next to no memory is touched.

    Raises:
        InvalidRequestError: threads < 1, or this CPU does not run isa.
    """

    name = "cpu"

    def __init__(self, threads: int = 1, isa: str = "auto", planned: bool = False) -> None:
        if threads < 1:
            raise InvalidRequestError(f"threads must be at least 1, not {threads}", "threads")
        try:
            self.isa = _native.choose_isa(isa)
        except ValueError as error:
            raise InvalidRequestError(str(error), "isa") from None
        self.threads = threads
        self.pool = _native.Pool(threads)
        self._arena = _native.WeightArena(self.isa, planned)

    def pack(self, weights: Sequence[Weight], gated: bool = False, head: bool = False) -> CpuWeight:
        return pack(self.pool, self._arena, weights, gated, head)

    def kv_cache(
        self,
        layers: Sequence[KVSpec],
        num_pages: int,
        page_size: int,
        swap_pages: int = 0,
        local: bool = False,
    ) -> CpuKVCache:
        return CpuKVCache(layers, num_pages + swap_pages, page_size, local)

    def capture(self, forward: Forward, limits: Limits) -> CpuProgram:
        recorder = Recorder()
        result = forward(recorder, Inputs())
        calls = fuse(recorder.calls, result.ref)
        program, plan, keep = build(calls, recorder.buffers, result.ref, limits, self.pool, self.isa)
        return CpuProgram(program, limits, keep, plan.nbytes)

    def eager(self, batch: ForwardBatch, limits: Limits) -> EagerOps:
        """Ops that run at once, on one batch."""
        check_limits(batch, limits)
        return EagerOps(self, batch, limits)

    def sampler(self, vocab_size: int) -> RowSampler:
        """Its memory, 12 bytes a token and thread, is touched as far as rows need it."""
        return _native.Sampler(self.pool, self.isa, vocab_size)

    def decoder(
        self,
        program: Program,
        sampler: RowSampler,
        tokens: npt.NDArray[np.int32],
        lengths: npt.NDArray[np.int64],
        pages: npt.NDArray[np.int32],
        page_size: int,
        params: npt.NDArray[Any],
        local_pages: npt.NDArray[np.int32] | None = None,
    ) -> RowDecoder | None:
        if not isinstance(program, CpuProgram) or not isinstance(sampler, _native.Sampler):
            return None
        keep = (tokens, lengths, pages, params, local_pages)
        records = params.view(np.uint8)
        native = _native.Decoder(
            program.native, sampler, tokens, lengths, pages, page_size, records, local_pages
        )
        return CpuDecoder(native, keep)
