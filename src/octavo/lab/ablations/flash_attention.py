"""Attention in blocks that never writes its scores, beside attention that writes all of them."""

from __future__ import annotations

import tracemalloc

import numpy as np

from octavo.bench.calibrate import best_time, one_sequence
from octavo.kernels.cpu import CpuBackend
from octavo.kernels.ops import F32, AttentionSpec, Inputs, KVSpec, Limits, Ops, Tensor
from octavo.kernels.weight import BLOCK, Weight
from octavo.lab.ablations import Found, Setting, Technique
from octavo.lab.ablations._forward import need_cpu

HEADS, KV_HEADS, HEAD = 8, 8, 64
PAGE = 16


def naive(q: F32, k: F32, v: F32, mask: F32) -> F32:
    """Softmax(q k^T + mask) v of [heads, tokens, head]: the scores of all pairs are in memory at once."""
    scores = q @ k.transpose(0, 2, 1)
    scores *= np.float32(HEAD**-0.5)
    scores += mask
    scores -= scores.max(-1, keepdims=True)
    np.exp(scores, out=scores)
    scores /= scores.sum(-1, keepdims=True)
    return np.asarray(scores @ v, np.float32)


def measure(setting: Setting) -> Found:
    """One layer's attention of a prompt, in fp32 on both sides; the naive one is NumPy's BLAS."""
    tokens = setting.size(2048, 768)
    backend = setting.loaded.backend
    assert isinstance(backend, CpuBackend)
    width = HEADS * HEAD
    table = backend.pack([Weight.dense(np.random.default_rng(0).standard_normal((BLOCK, width), np.float32))])
    cache = backend.kv_cache([KVSpec(KV_HEADS, HEAD, HEAD, "f32")], tokens // PAGE, PAGE)
    spec = AttentionSpec(HEADS, KV_HEADS, HEAD, HEAD, HEAD**-0.5)

    def forward(ops: Ops, inputs: Inputs) -> Tensor:
        return ops.attention(inputs, ops.embed(inputs, table), cache.layer(0), spec)

    program = backend.capture(forward, Limits(tokens, 1, tokens, tokens // PAGE))
    batch = one_sequence([i % BLOCK for i in range(tokens)], PAGE, tokens - 1)
    draw = np.random.default_rng(1)
    q, k, v = (draw.standard_normal((HEADS, tokens, HEAD), np.float32) for _ in range(3))
    mask = np.triu(np.full((tokens, tokens), -np.inf, np.float32), 1)
    tracemalloc.start()
    naive(q, k, v, mask)
    written_mb = tracemalloc.get_traced_memory()[1] / 1e6
    tracemalloc.stop()
    most_s = setting.size(10, 3) / 10
    found = setting.medians(
        {
            "blocks": lambda _: 1e3 * best_time(lambda: program.replay(batch), most_s),
            "naive": lambda _: 1e3 * best_time(lambda: naive(q, k, v, mask), most_s),
        }
    )
    blocks_mb = program.nbytes / 1e6
    return Found(
        "ms a layer",
        (("in blocks", found["blocks"]), ("naive", found["naive"])),
        False,
        f"of {tokens} tokens the scores alone are {4e-6 * HEADS * tokens**2:.0f} MB: the naive way takes "
        f"{written_mb:.0f} MB, blocks with all their buffers {blocks_mb:.0f}",
        {"flash_attention": {"tokens": tokens, **found, "blocks_mb": blocks_mb, "naive_mb": written_mb}},
        {"blocks over naive": found["naive"] / found["blocks"], "memory": written_mb / blocks_mb},
    )


TECHNIQUE = Technique(
    "flash-attention",
    "attention in blocks takes memory for tokens, not for pairs of tokens, and is faster for it",
    "Dao et al. 2022, FlashAttention, section 3",
    measure,
    need_cpu,
)
