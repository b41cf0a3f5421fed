"""Every kernel of the GPU backend once, in shapes of real models, as far as they matter to a compiler."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from octavo.kernels.ops import (
    Activation,
    AttentionSpec,
    Experts,
    HeadNorms,
    Inputs,
    KVSpec,
    Rotary,
    Routing,
    Rows,
    Scaling,
)
from support.kernels import batch_of, normal, random_weight

KINDS = ("bf16", "u4-min", "s8", "s8-min", "s8-by16", "f8", "f8-blocks", "nf4")


def exercise(backend: Any, rng: np.random.Generator, brief: bool = False) -> None:
    """Launch all kernels; their results are nobody's business here."""
    kinds = KINDS[1:3] if brief else KINDS
    for lengths in ([40, 30], [1] * 3, [1]):
        batch = batch_of(rng, [n + 40 for n in lengths], lengths)
        ops, inputs = backend.eager(batch), Inputs(batch)
        rows = batch.num_tokens
        for kind in kinds:
            matrices = [random_weight(rng, kind, 96, 128) for _ in range(2)]
            x = ops.tensor(normal(rng, rows, 128))
            bias = normal(rng, 96)
            y = ops.linear(x, backend.pack(matrices[:1]), bias, scaling=Scaling(0.5, 3.0))
            ops.linear(x, backend.pack(matrices, gated=True), activation=Activation.SILU)
            ops.linear(x, backend.pack(matrices), residual=ops.tensor(normal(rng, rows, 192)))
            ops.embed(inputs, backend.pack(matrices[:1]), 2.0)
            gate_up = [
                backend.pack([random_weight(rng, kind, 64, 128) for _ in range(2)], True) for _ in range(8)
            ]
            down = [backend.pack([random_weight(rng, kind, 128, 64)]) for _ in range(8)]
            router = ops.tensor(normal(rng, rows, 8))
            for routing in (None, Routing(True, normal(rng, 8), 4, 2, 2, 2.5)):
                ops.moe(x, router, Experts(gate_up, down, Activation.SILU), 2, True, routing)
            heads = [backend.pack([random_weight(rng, kind, 32, 64)]) for _ in range(2)]
            ops.head_linear(x, heads)
        wide = ops.tensor(normal(rng, rows, 192))
        ops.gate_rows(y, ops.tensor(normal(rng, rows, 1)))
        ops.rms_norm(ops.add(wide, wide), normal(rng, 192), 1e-5)
        ops.layer_norm(wide, normal(rng, 192), normal(rng, 192), 1e-5)
        ops.rms_norm(ops.gather_rows(inputs, wide), normal(rng, 192), 1e-5)
        attend(backend, ops, inputs, rng, rows, brief)


def draw(device: Any, rng: np.random.Generator) -> None:
    """The draws of a step, of every kind, with edits and log-probabilities."""
    import torch

    from octavo.kernels.cuda.sample import DeviceSampler, Kind, Slate, feed
    from octavo.sampling import SamplingBatch
    from octavo.sampling.device import DrawMaker
    from support.draws import lists, random_boost, random_mask, random_params

    rows, vocab = 3, 49_152
    params = random_params(rng, rows, vocab, True)
    several = [lists(rng, 8, vocab, np.ones) for _ in range(3)]
    batch = SamplingBatch(
        params, np.arange(rows), *several, mask=random_mask(rng, rows, vocab),
        boost=random_boost(rng, rows, vocab),
    )  # fmt: skip
    draws = DrawMaker().draws(batch)
    sampler, slate = DeviceSampler(vocab, rows, device), Slate(rows, device)
    slate.write(draws, range(rows))
    z = torch.zeros((rows, vocab), dtype=torch.float32, device=device)
    sampler.draw(z, draws, slate)
    for kind in Kind:
        tokens = sampler.tokens(z, slate, kind, z)
    sampler.logprobs(z, tokens, slate, 5)
    feed(tokens, tokens, sampler.latest)


def attend(backend: Any, ops: Any, inputs: Inputs, rng: np.random.Generator, rows: int, brief: bool) -> None:
    import torch

    from octavo.kernels.cuda.prompts import together

    angles = rng.uniform(0, 6, (256, 32)).astype(np.float32)
    plain, pairs = Rotary(np.cos(angles), np.sin(angles)), Rotary(np.cos(angles), np.sin(angles), True)
    slopes, sinks = np.ones(8, np.float32), np.zeros(8, np.float32)
    cases = [
        ((8, 2, 128, 128, 0.1), {}, "bf16", plain, 128),
        ((8, 8, 80, 80, 0.1), {"alibi_slopes": slopes}, "f16", None, None),
        ((8, 2, 64, 64, 0.1), {"window": 20, "softcap": 5.0, "sinks": sinks}, "int8", pairs, 512),
    ]
    for shape, more, dtype, rotary, gain in cases[:1] if brief else cases:
        spec = AttentionSpec(*shape, **more)  # type: ignore[arg-type]
        layer = backend.kv_cache([KVSpec(spec.num_kv_heads, spec.head_dim, spec.v_head_dim, dtype)], 12, 16)
        width = (spec.num_heads + 2 * spec.num_kv_heads) * spec.head_dim
        gains = (None, None)
        if gain is not None:
            heads = (1, 1) if gain == 128 else (spec.num_heads, spec.num_kv_heads)
            gains = tuple(normal(rng, h * spec.head_dim) for h in heads)  # type: ignore[assignment]
        layer.copy_pages([(0, 1)])
        q = ops.rotary_append(
            inputs, ops.tensor(normal(rng, rows, width)), layer.layer(0), spec, rotary, HeadNorms(*gains)
        )
        ops.attention(inputs, q, layer.layer(0), spec)
        together(layer.layer(0).k.pages, torch.zeros((rows, 3), dtype=torch.int32), 40, 256)
        tree = replace(inputs.batch, tree_masks=np.zeros((rows, 1), np.uint64))  # type: ignore[type-var]
        backend.eager(tree).attention(Inputs(tree), q, layer.layer(0), spec)
    spec = AttentionSpec(16, 1, 576, 512, 0.1, latent=True)
    layer = backend.kv_cache([KVSpec(1, 576, 512, "bf16", True)], 12, 16).layer(0)
    parts = [ops.tensor(normal(rng, rows, w), Rows.TOKENS) for w in (16 * 512, 16 * 64, 512, 64)]
    ops.attention(inputs, ops.latent_append(inputs, parts[:2], parts[2:], layer, spec, pairs), layer, spec)
