"""Programs whose kernels only read: each line of what they would compute with, once."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from octavo.kernels.select import native_available

if not native_available():
    pytest.skip("the extension is not built", allow_module_level=True)

from octavo.kernels import _native
from octavo.kernels.cpu import CpuBackend, instruction_sets
from octavo.kernels.cpu_lower import parts
from octavo.kernels.ops import F32, AttentionSpec, DecodeRows, Inputs, KVSpec, Ops, PackedWeight, Tensor
from octavo.sampling.sampling_batch import ROW
from support.kernels import batch_of, limits_of, random_weight

HIDDEN, VOCAB, LAYERS, PAGE = 64, 512, 3, 16
HEAD = VOCAB * HIDDEN
"""Bytes of the head's integers, were they not cut in two."""
KV = KVSpec(2, 16, 16, "f16")
LEARNS = 60
"""Steps after which bounds are known, and what they are worth (csrc/head_op.cpp)."""


class Small:
    """A model with a head that is cut, and one sequence of so many tokens, the last of which is computed."""

    def __init__(self, backend: CpuBackend, context: int, window: int | None = None) -> None:
        rng = np.random.default_rng(0)
        self.window = window
        self.batch = batch_of(rng, [context], [1], PAGE, vocab=VOCAB)
        spec = AttentionSpec(4, 2, 16, 16, 0.25, window=window)
        cache = backend.kv_cache([KV] * LAYERS, self.batch.page_tables.shape[1], PAGE)

        def packed(*rows: int, head: bool = False) -> PackedWeight:
            kind = "s8" if head else "u4"
            weight = backend.pack([random_weight(rng, kind, n, HIDDEN) for n in rows], head=head)
            self.weights.append(weight)
            return weight

        table, gain = backend.pack([random_weight(rng, "f32", VOCAB, HIDDEN)]), np.ones(HIDDEN, np.float32)
        self.weights: list[PackedWeight] = []
        layers = [(packed(64, 32, 32), packed(HIDDEN)) for _ in range(LAYERS)]
        head = packed(VOCAB, head=True)

        def forward(ops: Ops, inputs: Inputs) -> Tensor:
            x = ops.embed(inputs, table)
            for i, (qkv, out) in enumerate(layers):
                projected = ops.linear(ops.rms_norm(x, gain, 1e-5), qkv)
                q = ops.rotary_append(inputs, projected, cache.layer(i), spec, None)
                x = ops.linear(ops.attention(inputs, q, cache.layer(i), spec), out)
            return ops.linear(ops.rms_norm(ops.gather_rows(inputs, x), gain, 1e-5), head)

        self.program = backend.capture(forward, limits_of(self.batch))

    def replay(self) -> F32:
        return np.array(self.program.replay(self.batch))

    def bytes_of(self, context: int) -> int:
        """Of all weights, and of the pages that the last of so many tokens sees."""
        first = max(0, context - self.window) // PAGE if self.window else 0
        tokens = (-(-context // PAGE) - first) * PAGE
        weights = sum(part.nbytes for packed in self.weights for part in parts(packed))
        return weights + LAYERS * tokens * KV.bytes_per_token


@pytest.mark.parametrize("isa", instruction_sets())
@pytest.mark.parametrize("threads", [1, 2, 3])
@pytest.mark.parametrize(("context", "window"), [(1, None), (17, None), (700, None), (700, 100)])
def test_each_byte_is_read_once(isa: str, threads: int, context: int, window: int | None) -> None:
    small = Small(CpuBackend(threads, isa), context, window)
    before = small.replay()
    for ahead in _native.reading_ahead():
        small.program.native.only_read(ahead)
        start = _native.bytes_read()
        small.replay()
        # (all but what only screening reads)
        assert _native.bytes_read() - start == small.bytes_of(context) - HEAD // 8
    small.program.native.only_read(None)
    start = _native.bytes_read()
    np.testing.assert_array_equal(small.replay(), before)
    assert _native.bytes_read() == start


def test_more_threads_than_a_phase_has_shares_read_each_byte_once() -> None:
    """Of a phase there are 16 shares at most (csrc/pool.h): some threads claim one's pieces in turn."""
    small, alone = Small(CpuBackend(19), 700), Small(CpuBackend(1), 700)
    np.testing.assert_array_equal(small.replay(), alone.replay())
    small.program.native.only_read(0)
    for _ in range(5):
        start = _native.bytes_read()
        small.replay()
        assert _native.bytes_read() - start == small.bytes_of(700) - HEAD // 8


def test_a_screened_head_reads_five_bits_and_chooses() -> None:
    """As where its bounds are narrow: no logits are asked for, and the low bits are left where they are."""
    backend = CpuBackend(2)
    small = Small(backend, 120)
    records = np.zeros(1, ROW)
    records["typical_p"] = records["top_p"] = records["repetition_penalty"] = 1
    records["num_logprobs"] = -1
    tokens, lengths = np.zeros((1, 120), np.int32), np.array([20], np.int64)
    rows = DecodeRows(tokens, lengths, small.batch.page_tables, PAGE, records)
    decoder: Any = backend.decoder(small.program, backend.sampler(VOCAB), rows)
    for _ in range(LEARNS):
        decoder.step([0], [int(lengths[0]) - 1])
    small.program.native.only_read(0)
    for _ in range(20):
        chosen, start, context = decoder.native.chosen, _native.bytes_read(), int(lengths[0])
        decoder.step([0], [context - 1])
        assert decoder.native.chosen == chosen + 1
        of_rows = 8 * VOCAB  # two numbers each, that bounds are made of
        assert _native.bytes_read() - start == small.bytes_of(context) - HEAD // 2 + of_rows


def test_unknown_ways_are_refused() -> None:
    small = Small(CpuBackend(1), 8)
    before = small.replay()
    for wrong in (-1, 1, 1 << 40):
        with pytest.raises(ValueError, match="bytes ahead"):
            small.program.native.only_read(wrong)
    np.testing.assert_array_equal(small.replay(), before)
