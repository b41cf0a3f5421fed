"""Self-attention over the pages."""

from __future__ import annotations

from dataclasses import dataclass

from octavo.kernels.ops import F32, AttentionSpec, HeadNorms, Inputs, KVCache, Ops, Rotary, Tensor
from octavo.layers.linear import Linear


@dataclass(frozen=True, slots=True, eq=False)
class Attention:
    """out(attention(rotate(qkv x))) + residual.

    Attributes:
        index: which layer of the KV cache is ours.
        qkv: one stacked projection, rows in the order q, k, v.
        rotary: None for no positions here (NoPE layers, ALiBi, learned positions).
        q_norm, k_norm: RMS norms before rotation, [head_dim] per head (Qwen3, Gemma 3) or
            [heads * head_dim] over all heads (OLMo 2), or None.
    """

    index: int
    qkv: Linear
    out: Linear
    spec: AttentionSpec
    rotary: Rotary | None
    q_norm: F32 | None = None
    k_norm: F32 | None = None
    eps: float = 1e-6

    def __call__(
        self, ops: Ops, inputs: Inputs, kv: KVCache, x: Tensor, residual: Tensor | None = None
    ) -> Tensor:
        pages = kv.layer(self.index)
        qkv = self.qkv(ops, x)
        norms = HeadNorms(self.q_norm, self.k_norm, self.eps)
        q = ops.rotary_append(inputs, qkv, pages, self.spec, self.rotary, norms)
        return self.out(ops, ops.attention(inputs, q, pages, self.spec), residual=residual)
