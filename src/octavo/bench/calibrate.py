"""This machine's limits, measured with the kernels themselves: a roofline's two slopes."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from octavo.errors import UnsupportedError
from octavo.kernels.coded import NF4_GROUP
from octavo.kernels.forward_batch import ForwardBatch
from octavo.kernels.ops import AttentionSpec, Backend, Inputs, KVSpec, Limits, Ops, Tensor
from octavo.kernels.weight import BLOCK, STEPPED_GROUP, Layout, Weight

TILE_K, TILE_ROWS = 2048, 128
TILE_BYTES = 1 << 20
"""Weights of each thread while a tile is measured: they stay in a cache, and there are enough of them for
the rounding of activations, once a product, to count as little as in a model."""
TILE_WORK = 2e9
"""Multiply-adds of one replay at least: waking the threads must not count."""
CACHED_TOKENS = 1024
"""Context while a decoding attention is measured: its KV stays in the threads' second-level caches."""
ATTENTION_REPEATS = 50
"""Attentions of a replay: waking the threads must not count."""


@dataclass(frozen=True, slots=True)
class Machine:
    """Measured limits of all threads together.

    Attributes:
        bandwidth: bytes read from memory a second.
        tile_rate: MAC/s of the linears' tile for the layout of most of the model's weights.
        attention_rate: in fp32.
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


def check_native(name: str) -> None:
    """
    Raises:
        UnsupportedError: the backend of this name has no native kernels.
    """
    if name != "cpu":
        raise UnsupportedError("the roofline needs the native kernels (--backend cpu)", "backend")


def calibrate(backend: Backend, layout: Layout, seconds: float = 0.5) -> Machine:
    """Measure this machine with the kernels that a model of such weights runs on.

    Raises:
        UnsupportedError: the backend has no native kernels.
    """
    check_native(backend.name)
    from octavo.kernels.cpu import CpuBackend
    from octavo.kernels.cpu_calibrate import clock_rate, read_bandwidth

    assert isinstance(backend, CpuBackend)
    return Machine(
        backend.isa,
        backend.threads,
        read_bandwidth(backend),
        tile(backend, layout).rate(seconds),
        tile(backend, Layout.F32).rate(seconds),
        clock_rate(),
    )


def bandwidth_of(backend: Backend, nbytes: float) -> float:
    """Bytes a second that reading nbytes gets now, with all threads of a native backend.

    A glance: each way to read is tried three times, and of the fastest the middle one counts. (Of ten ways
    tried once the luckiest would count: 1 to 3 % more than any of them reads.)
    """
    from octavo.kernels.cpu import CpuBackend
    from octavo.kernels.cpu_calibrate import read_bandwidth

    assert isinstance(backend, CpuBackend)
    return read_bandwidth(backend, int(nbytes), 3)


@dataclass(frozen=True, slots=True)
class Timed:
    """Work that can be timed again and again: others may slow a core down from one minute to the next.

    Attributes:
        macs: of one replay.
    """

    macs: float
    replay: Callable[[], object]

    def rate(self, seconds: float) -> float:
        """MAC/s of the fastest replay of those that fit into so many seconds."""
        return self.macs / best_time(self.replay, seconds)


@dataclass(frozen=True, slots=True)
class Rates:
    """What arithmetic allows just now: called with a machine, it gives that machine with these rates.

    Attributes:
        seconds: that each of both is timed for.
    """

    tile: Timed
    attention: Timed
    seconds: float = 0.03

    def __call__(self, machine: Machine) -> Machine:
        return replace(
            machine, tile_rate=self.tile.rate(self.seconds), attention_rate=self.attention.rate(self.seconds)
        )


def rates_of_prompts(backend: Backend, layout: Layout) -> Rates:
    """As calibrate() measures them: many rows, and attention at the rate of float32's tile."""
    return Rates(tile(backend, layout), tile(backend, Layout.F32))


def rates_of_rows(
    backend: Backend, layout: Layout, attention: tuple[AttentionSpec, KVSpec], rows: int
) -> Rates:
    """Of a step that decodes so many sequences, everything it reads in a cache.

    A tile of few rows takes weights apart for each of them, and a query alone shares its keys with nobody:
    both stay below what many rows get, however fast the memory is.
    """
    return Rates(tile(backend, layout, rows), decoding_attention(backend, *attention))


def decoding_attention(backend: Backend, spec: AttentionSpec, kv: KVSpec) -> Timed:
    """One sequence's attention over CACHED_TOKENS positions that stay in a cache."""
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
    return Timed(macs, lambda: program.replay(batch))


def tile(backend: Backend, layout: Layout, rows: int = TILE_ROWS) -> Timed:
    """The linear at so many rows, over weights of this layout that stay in a cache."""
    rng = np.random.default_rng(0)
    panel = random_weight(rng, layout, 16, TILE_K).nbytes
    n = backend.threads * max(TILE_BYTES // panel, 1) * 16
    table = backend.pack([Weight.dense(rng.standard_normal((BLOCK, TILE_K), np.float32))])
    weight = backend.pack([random_weight(rng, layout, n, TILE_K)])
    repeats = max(int(TILE_WORK / (n * TILE_K * rows)), 1)

    def forward(ops: Ops, inputs: Inputs) -> Tensor:
        x = ops.embed(inputs, table)
        y = x
        for _ in range(repeats):
            y = ops.linear(x, weight)
        return y

    program = backend.capture(forward, Limits(rows, 1, 1, rows))
    batch = one_sequence([i % BLOCK for i in range(rows)], 1, rows - 1)
    return Timed(repeats * n * TILE_K * rows, lambda: program.replay(batch))


def random_weight(rng: np.random.Generator, layout: Layout, n: int, k: int) -> Weight:
    """A matrix [n, k] of random numbers in a layout; k is a multiple of what shares a scale there."""
    if layout in (Layout.F32, Layout.F16, Layout.BF16):
        return Weight.dense(rng.standard_normal((n, k), np.float32).astype(layout.dtype))

    def scales(groups: int) -> npt.NDArray[np.float32]:
        return rng.uniform(0.5, 1.5, (n, groups)).astype(np.float32)

    if layout.nibbles:
        return Weight(layout, (n, k), rng.integers(0, 256, (n, k // 2), np.uint8), scales(k // NF4_GROUP))
    if layout is Layout.F8:
        codes = rng.integers(0, 127, (n, k), np.uint8) | rng.integers(0, 2, (n, k), np.uint8) << 7  # no NaN
        return Weight(layout, (n, k), codes.view(layout.dtype), scales(1))
    scale = scales(k // (STEPPED_GROUP if layout.stepped else BLOCK)).astype(np.float16)
    values = rng.integers(0, 256, (n, k // BLOCK, layout.block_bytes), np.uint8)
    if layout in (Layout.U3, Layout.K4, Layout.K5):
        values[:, :, -2:] &= 63  # steps of six bits
    minimum = -8 * scale if layout is Layout.U4 or layout.step_minima else None
    return Weight(layout, (n, k), values.view(layout.dtype), scale, minimum)


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
