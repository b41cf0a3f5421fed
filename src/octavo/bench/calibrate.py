"""This machine's limits, measured with the kernels themselves: a roofline's two slopes."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from octavo.errors import UnsupportedError
from octavo.kernels.forward_batch import ForwardBatch
from octavo.kernels.ops import AttentionSpec, Backend, Inputs, KVSpec, Limits, Ops, Tensor
from octavo.kernels.weight import BLOCK, Layout, Weight

TILE_K, TILE_ROWS = 2048, 128
TILE_BYTES = 1 << 20
"""Weights of each thread while a tile is measured: they stay in a cache, and there are enough of them for
the rounding of activations, once a product, to count as little as in a model."""
CACHED_TOKENS = 1024
"""Context while a decoding attention is measured: its KV stays in the threads' second-level caches."""
ATTENTION_REPEATS = 50
"""Attentions of a replay: waking the threads must not count."""


@dataclass(frozen=True, slots=True)
class Machine:
    """Measured limits of all threads together.

    Attributes:
        bandwidth: bytes read from memory a second.
        tile_rate: MAC/s of the linears' tile for the model's layout; attention_rate: in fp32.
        clock: cycles a second of one core.
    """

    isa: str
    threads: int
    bandwidth: float
    tile_rate: float
    attention_rate: float
    clock: float

    @property
    def tile_per_cycle(self) -> float:
        """MAC a cycle and core."""
        return self.tile_rate / self.clock / self.threads


def calibrate(backend: Backend, bits: float, seconds: float = 0.5) -> Machine:
    """Measure this machine with the kernels that a model of so many bits a weight runs on.

    Raises:
        UnsupportedError: the backend has no native kernels.
    """
    if backend.name != "cpu":
        raise UnsupportedError("the roofline needs the native kernels (--backend cpu)", "backend")
    from octavo.kernels.cpu import CpuBackend
    from octavo.kernels.cpu_calibrate import clock_rate, read_bandwidth

    assert isinstance(backend, CpuBackend)
    return Machine(
        backend.isa,
        backend.threads,
        read_bandwidth(backend),
        tile_rate(backend, layout_of(bits), seconds),
        tile_rate(backend, Layout.F32, seconds),
        clock_rate(),
    )


def bandwidth_of(backend: Backend, nbytes: float) -> float:
    """Bytes a second that reading nbytes over and over gets now, with all threads of a native backend."""
    from octavo.kernels.cpu import CpuBackend
    from octavo.kernels.cpu_calibrate import read_bandwidth

    assert isinstance(backend, CpuBackend)
    return read_bandwidth(backend, int(nbytes))


def with_rows(
    machine: Machine, backend: Backend, bits: float, attention: tuple[AttentionSpec, KVSpec], rows: int,
    seconds: float = 0.5,
) -> Machine:  # fmt: skip
    """The machine's limits for a step that decodes so many sequences, everything it reads in a cache.

    A tile of few rows takes weights apart for each of them, and a query alone shares its keys with nobody:
    both stay below what many rows get, however fast the memory is.
    """
    return replace(
        machine,
        tile_rate=tile_rate(backend, layout_of(bits), seconds, rows),
        attention_rate=decode_attention_rate(backend, *attention, seconds),
    )


def layout_of(bits: float) -> Layout:
    """How a model of so many bits a weight stores most of them."""
    return Layout.U4 if bits < 6.5 else Layout.S8 if bits < 12 else Layout.F32


def decode_attention_rate(backend: Backend, spec: AttentionSpec, kv: KVSpec, seconds: float = 0.5) -> float:
    """MAC/s of one sequence's attention over CACHED_TOKENS positions that stay in a cache."""
    page_size, width = 16, spec.num_heads * spec.head_dim
    pages = CACHED_TOKENS // page_size
    cache = backend.kv_cache([kv], pages, page_size)
    table = backend.pack([Weight.dense(np.random.default_rng(0).standard_normal((BLOCK, width), np.float32))])

    def forward(ops: Ops, inputs: Inputs) -> Tensor:
        y = q = ops.embed(inputs, table)
        for _ in range(ATTENTION_REPEATS):
            y = ops.attention(inputs, q, cache.layer(0), spec)
        return y

    program = backend.capture(forward, Limits(1, 1, 1, pages))
    last = np.array([CACHED_TOKENS - 1], np.int32)
    batch = ForwardBatch(
        token_ids=np.zeros(1, np.int32),
        positions=last,
        slots=last,
        query_start=np.array([0, 1], np.int32),
        context_lens=last + 1,
        page_tables=np.arange(pages, dtype=np.int32)[None],
        sampled=np.zeros(1, np.int32),
    )
    seen = min(CACHED_TOKENS, spec.window or CACHED_TOKENS)
    macs = ATTENTION_REPEATS * spec.num_heads * (spec.head_dim + spec.v_head_dim) * seen
    return macs / best_time(lambda: program.replay(batch), seconds)


def tile_rate(backend: Backend, layout: Layout, seconds: float = 0.5, rows: int = TILE_ROWS) -> float:
    """MAC/s of the linear at so many rows, over weights of this layout that stay in a cache."""
    per_weight = {Layout.U4: 0.6875, Layout.S8: 1.125, Layout.F32: 4.0}[layout]
    n = backend.threads * max(int(TILE_BYTES / per_weight / TILE_K) // 16, 1) * 16
    rng = np.random.default_rng(0)
    table = backend.pack([Weight.dense(rng.standard_normal((BLOCK, TILE_K), np.float32))])
    weight = backend.pack([random_weight(rng, layout, n, TILE_K)])
    repeats = max(int(2e9 / (n * TILE_K * rows)), 1)  # waking the threads must not count

    def forward(ops: Ops, inputs: Inputs) -> Tensor:
        x = ops.embed(inputs, table)
        y = x
        for _ in range(repeats):
            y = ops.linear(x, weight)
        return y

    program = backend.capture(forward, Limits(rows, 1, 1, rows))
    batch = one_sequence([i % BLOCK for i in range(rows)], 1, rows - 1)
    return repeats * n * TILE_K * rows / best_time(lambda: program.replay(batch), seconds)


def random_weight(rng: np.random.Generator, layout: Layout, n: int, k: int) -> Weight:
    """A matrix [n, k] of random numbers in a layout."""
    if layout is Layout.F32:
        return Weight.dense(rng.standard_normal((n, k), np.float32))
    scale = rng.uniform(0.5, 1.5, (n, k // BLOCK)).astype(np.float16)
    if layout is Layout.S8:
        return Weight(layout, (n, k), rng.integers(-127, 128, (n, k // BLOCK, BLOCK), np.int8), scale)
    values = rng.integers(0, 256, (n, k // BLOCK, BLOCK // 2), np.uint8)
    return Weight(layout, (n, k), values, scale, (-8 * scale).astype(np.float16))


def one_sequence(ids: Sequence[int], page_size: int, first: int) -> ForwardBatch:
    """A sequence from its beginning, in pages 0, 1, ..., sampled from position first on."""
    line = np.arange(len(ids), dtype=np.int32)
    return ForwardBatch(
        token_ids=np.array(ids, np.int32),
        positions=line,
        slots=line,
        query_start=np.array([0, len(ids)], np.int32),
        context_lens=np.array([len(ids)], np.int32),
        page_tables=np.arange(-(-len(ids) // page_size), dtype=np.int32)[None],
        sampled=line[first:],
    )


def best_time(run: Callable[[], object], seconds: float) -> float:
    """The shortest of as many runs as fit into so many seconds, at least two."""
    run()
    best, end = float("inf"), time.perf_counter() + seconds
    while True:
        start = time.perf_counter()
        run()
        now = time.perf_counter()
        best = min(best, now - start)
        if now >= end:
            return best
