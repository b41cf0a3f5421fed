"""Multi-head latent attention (DeepSeek-AI 2024, DeepSeek-V2): pages hold one latent a token."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from octavo.kernels.ops import AttentionSpec, Inputs, KVCache, Ops, Rotary, Tensor
from octavo.models.layers import Linear, Norm, wanted


@dataclass(frozen=True, slots=True, eq=False)
class LatentAttention:
    """Attention in the space of the latent: keys and values are never expanded.

    A head's score q . (W_k c) is (W_k^T q) . c, and its output W_v (sum of p c): so W_k is absorbed
    into q, W_v into the output, and all heads read one KV head, [latent c | rotated key].

    Attributes:
        q_down, q_norm: to the queries' own latent; None: q comes from x (DeepSeek-V2-Lite).
        q_nope, q_rope: the two parts of all heads' queries.
        latent, latent_norm: x to c. k_rope: x to the key part that rotates.
        absorb: each head's W_k^T [rank, nope]. expand: each head's W_v [v, rank].
        spec: num_kv_heads 1, head_dim rank + rope, v_head_dim rank, latent.
    """

    index: int
    q_down: Linear | None
    q_norm: Norm | None
    q_nope: Linear
    q_rope: Linear
    latent: Linear
    latent_norm: Norm
    k_rope: Linear
    absorb: Sequence[Linear]
    expand: Sequence[Linear]
    out: Linear
    spec: AttentionSpec
    rotary: Rotary

    def __call__(
        self, ops: Ops, inputs: Inputs, kv: KVCache, x: Tensor, residual: Tensor | None = None,
        ends: bool = False,
    ) -> Tensor:  # fmt: skip
        pages = kv.layer(self.index)
        base = x
        if self.q_down is not None and self.q_norm is not None:
            base = self.q_norm(ops, self.q_down(ops, x))
        q = ops.latent_append(
            inputs,
            (self._absorbed(ops, base), self.q_rope(ops, base)),
            (self.latent_norm(ops, self.latent(ops, x)), self.k_rope(ops, x)),
            pages,
            self.spec,
            self.rotary,
        )
        y = wanted(ops, inputs, ops.attention(inputs, q, pages, self.spec), ends)
        expanded = ops.head_linear(y, [head.weight for head in self.expand])
        return self.out(ops, expanded, residual=residual)

    def _absorbed(self, ops: Ops, base: Tensor) -> Tensor:
        """Each head's query in the space of the latent."""
        return ops.head_linear(self.q_nope(ops, base), [head.weight for head in self.absorb])
