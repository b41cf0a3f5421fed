"""The native CPU backend: packs for csrc/, captures forwards into its programs."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from octavo.errors import InvalidRequestError
from octavo.kernels import _native
from octavo.kernels.cpu_lower import CpuKVLayer, RecordedCalls, build
from octavo.kernels.cpu_program import CpuDecoder, CpuProgram
from octavo.kernels.cpu_weight import CpuWeight, pack
from octavo.kernels.forward_batch import ForwardBatch
from octavo.kernels.ops import (
    F32,
    U8,
    Backend,
    DecodeRows,
    Forward,
    Inputs,
    KVSpec,
    Limits,
    Program,
    RowDecoder,
    Rows,
    RowSampler,
    Tensor,
)
from octavo.kernels.program import Buffer, Call, Recorder, fuse, record
from octavo.kernels.weight import Weight

_KV_TYPES = {"f32": 0, "f16": 1, "bf16": 2, "int8": 3, "int16": 4}


def instruction_sets() -> list[str]:
    """Those that this CPU runs and this build holds, best first."""
    return _native.isas()


class CpuKVCache:
    """All layers' pages, in runs of some that follow each other (csrc/kv.h); touched lazily by the system."""

    def __init__(
        self, pool: _native.Pool, layers: Sequence[KVSpec], num_pages: int, page_size: int,
        sliding: bool = False,
    ) -> None:  # fmt: skip
        self._pool = pool
        shapes = [
            _native.KVShape(
                heads=s.num_kv_heads,
                d=s.head_dim,
                dv=s.v_head_dim,
                type=_KV_TYPES[s.dtype],
                latent=s.latent,
            )
            for s in layers
        ]
        self._native = _native.KVCache(
            layers=shapes, num_pages=num_pages, page_size=page_size, sliding=sliding
        )
        self._layers = [CpuKVLayer(_native.KVLayer(self._native, i), spec) for i, spec in enumerate(layers)]

    @property
    def nbytes(self) -> int:
        return self._native.nbytes

    def layer(self, index: int) -> CpuKVLayer:
        return self._layers[index]

    def _at_rest(self) -> _native.KVCache:
        """The pages, once no worker of the pool writes to them: one may have changed hands meanwhile."""
        self._pool.leave()
        return self._native

    def copy_pages(self, pairs: Sequence[tuple[int, int]]) -> None:
        if pairs:
            self._at_rest().copy_pages(list(pairs))

    def move_slots(self, pairs: Sequence[tuple[int, int]]) -> None:
        self._at_rest().move_slots(list(pairs))

    @property
    def page_bytes(self) -> int:
        return self._native.page_bytes

    def read_page(self, page: int) -> U8:
        data = np.empty(self.page_bytes, np.uint8)
        self._at_rest().read_page(page, data)
        return data

    def write_page(self, page: int, data: U8) -> None:
        self._at_rest().write_page(page, np.ascontiguousarray(data))


class CpuEagerOps(Recorder):
    """Runs each call at once, as a program of its own: what a replay must equal, bit for bit."""

    def __init__(self, backend: CpuBackend, batch: ForwardBatch, limits: Limits) -> None:
        super().__init__()
        self._backend, self._batch, self._limits = backend, batch, limits
        self._values: dict[int, F32] = {}

    def emit(self, call: Call) -> None:
        super().emit(call)
        backend, limits = self._backend, self._limits
        built = build(RecordedCalls([call], self.buffers, call.output), limits, backend.pool, backend.isa)
        given = 0
        for number in call.inputs:
            value = self._values[number]
            built.program.memory(built.place(number), len(value))[:] = value
            given = len(value) if self.buffers[number].rows is Rows.GIVEN else given
        self._values[call.output] = built.program.replay(self._batch, given).copy()

    def given(self, inputs: Inputs, name: str, rows: Rows, width: int) -> Tensor:
        x = super().given(inputs, name, rows, width)
        self._values[x.ref] = np.ascontiguousarray(inputs.given[name], np.float32)
        return x

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
            self.isa = _native.choose_isa(str(isa))  # what is no name is none of an instruction set
        except ValueError as error:
            raise InvalidRequestError(str(error), "isa") from None
        self.threads = threads
        self.pool = _native.Pool(threads)
        self._arena, self._planned = _native.WeightArena(self.isa, planned), planned

    def pack(self, weights: Sequence[Weight], gated: bool = False, head: bool = False) -> CpuWeight:
        return pack(self.pool, self._arena, weights, gated, head, self._planned)

    def kv_cache(
        self, layers: Sequence[KVSpec], num_pages: int, page_size: int, swap_pages: int = 0,
        sliding: bool = False,
    ) -> CpuKVCache:  # fmt: skip
        return CpuKVCache(self.pool, layers, num_pages + swap_pages, page_size, sliding)

    def capture(self, forward: Forward, limits: Limits) -> CpuProgram:
        recorder, result = record(forward, limits)
        kept = tuple(recorder.kept_as.values())
        calls = fuse(recorder.calls, result.ref, kept)
        ends = RecordedCalls(calls, recorder.buffers, result.ref, tuple(recorder.given_as.values()), kept)
        return CpuProgram(build(ends, limits, self.pool, self.isa), limits, recorder)

    def eager(self, batch: ForwardBatch, limits: Limits) -> CpuEagerOps:
        """Ops that run at once, on one batch."""
        limits.check(batch)
        # Its ops are Recorder's, which are made of those of Ops when program.py is imported.
        return CpuEagerOps(self, batch, limits)  # type: ignore[abstract]  # mypy sees none of them

    def sampler(self, vocab_size: int) -> RowSampler:
        """Its memory, 12 bytes a token and thread, is touched as far as rows need it."""
        return _native.Sampler(pool=self.pool, isa=self.isa, vocab=vocab_size)

    def decoder(
        self, program: Program, sampler: RowSampler, rows: DecodeRows, ahead: bool = False
    ) -> RowDecoder | None:
        if not isinstance(program, CpuProgram) or not isinstance(sampler, _native.Sampler):
            return None
        return CpuDecoder(_native.Decoder(program.native, sampler, rows), ahead)
