"""Every operation that model code may use, declared once: signature, formula, order of rounding, shape.

A method's docstring says what the backends compute. Its body says no more than the rows and the width of
that, and refuses what does not meet: kernels/program.py records by it, with the method's own arguments.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import replace

from octavo.kernels.types import (
    F32,
    NO_NORMS,
    UNSCALED,
    Activation,
    AttentionSpec,
    Experts,
    HeadNorms,
    Inputs,
    KVLayer,
    PackedWeight,
    Rotary,
    Routing,
    Rows,
    Scaling,
    Tensor,
)


class Ops(ABC):
    """The operations. x, y: Tensors; T: rows of x; G: gain and B: bias are f32 vectors."""

    # -- tokens in, rows out ---------------------------------------------------------------------

    @abstractmethod
    def embed(self, inputs: Inputs, table: PackedWeight, scale: float = 1.0) -> Tensor:
        """y[t] = scale * table[token_ids[t]]: [T, K] of a table [vocab, K], dequantized exactly."""
        return Tensor(Rows.TOKENS, table.shape[1])

    @abstractmethod
    def embed_positions(self, inputs: Inputs, x: Tensor, table: PackedWeight, offset: int = 0) -> Tensor:
        """y[t] = x[t] + table[positions[t] + offset]: learned positions (GPT-2, OPT)."""
        return Tensor(x.rows, x.width)

    @abstractmethod
    def gather_rows(self, inputs: Inputs, x: Tensor) -> Tensor:
        """y[r] = x[sampled[r]]: [R, width], the rows whose logits are wanted."""
        return Tensor(Rows.SAMPLED, x.width)

    @abstractmethod
    def replace_rows(self, inputs: Inputs, x: Tensor) -> Tensor:
        """y[t] = x[t], but y[replaced[i]] = rows[i] where the batch brings such (forward_batch.Extras)."""
        return Tensor(x.rows, x.width)

    # -- between programs ------------------------------------------------------------------------

    @abstractmethod
    def keep(self, inputs: Inputs, x: Tensor, name: str) -> None:
        """Leave x for whoever replays this forward (Program.kept). It changes nothing else.

        A norm that is kept is computed by itself, not within the projection that reads it: keep what
        comes before norms.

        Raises:
            ValueError: something of that name is kept already.
        """

    @abstractmethod
    def given(self, inputs: Inputs, name: str, rows: Rows, width: int) -> Tensor:
        """[rows, width], f32: what the replay was given by that name; the same each time it is asked for.

        Raises:
            ValueError: it was asked for with another shape before.
        """
        return Tensor(rows, width)

    # -- rows to rows ----------------------------------------------------------------------------

    @abstractmethod
    def rms_norm(self, x: Tensor, gain: F32, eps: float) -> Tensor:
        """y = x / sqrt(mean(x^2) + eps) * G (Zhang and Sennrich 2019). Gemma's 1 + G comes folded."""
        return Tensor(x.rows, x.width)

    @abstractmethod
    def layer_norm(self, x: Tensor, gain: F32, bias: F32 | None, eps: float) -> Tensor:
        """y = (x - mean) / sqrt(var + eps) * G + B, var being the biased variance."""
        return Tensor(x.rows, x.width)

    @abstractmethod
    def linear(
        self, x: Tensor, weight: PackedWeight, bias: F32 | None = None,
        activation: Activation = Activation.NONE, residual: Tensor | None = None, scaling: Scaling = UNSCALED,
    ) -> Tensor:  # fmt: skip
        """y = epilogue(x W^T), in this order:

        1. z = x W^T + bias. For layouts of integers x is first rounded to int8 per block of 32 along
           K: d = max|x| / 127, q = round_half_even(x / d), x ~ d q (d = 0: q = 0). Layouts
           of floats, and of codes of floats (F8, NF4), use x as it is and accumulate in f32.
        2. gated weight: z = activation(z[:N/2]) * z[N/2:], width N/2; otherwise z = activation(z).
        3. z = factor * z; softcap: z = softcap * tanh(z / softcap) (Scaling).
        4. residual: y = residual + z.
        """
        n, k = weight.shape
        if k != x.width:
            raise ValueError(f"a weight of {k} columns cannot meet rows of width {x.width}")
        width = n // 2 if weight.gated else n
        if residual is not None and residual.width != width:
            raise ValueError(f"a residual of width {residual.width} cannot meet an output of width {width}")
        return Tensor(x.rows, width)

    def logits(
        self, x: Tensor, weight: PackedWeight, bias: F32 | None = None, scaling: Scaling = UNSCALED
    ) -> Tensor:
        """linear() whose result is read, not computed with: in f32 whatever else the backend computes in."""
        return self.linear(x, weight, bias, scaling=scaling)

    @abstractmethod
    def add(self, x: Tensor, y: Tensor) -> Tensor:
        """x + y."""
        return Tensor(x.rows, x.width)

    @abstractmethod
    def gate_rows(self, x: Tensor, gate: Tensor) -> Tensor:
        """y[t] = sigmoid(gate[t, 0]) * x[t], gate being of width 1: the gate of a shared expert."""
        if gate.width != 1:
            raise ValueError(f"a gate is of width 1, not {gate.width}")
        return Tensor(x.rows, x.width)

    @abstractmethod
    def moe(
        self, x: Tensor, router_logits: Tensor, experts: Experts, top_k: int, renormalize: bool,
        routing: Routing | None = None,
    ) -> Tensor:  # fmt: skip
        """Mixture of experts: y[t] = sum over the top_k experts e of p_e down_e(gated_e(x[t])).

        p = softmax(router_logits[t]), or as routing says; of experts with equal p the lower ones; renormalize
        divides by the sum of the chosen p, plus 1e-20. Experts are added in ascending order of e.
        """
        return Tensor(x.rows, experts.down[0].shape[0])

    @abstractmethod
    def head_linear(self, x: Tensor, weights: Sequence[PackedWeight]) -> Tensor:
        """Each head by its own matrix: y[:, h N : (h + 1) N] = x[:, h K : (h + 1) K] W_h^T.

        weights: one [N, K] for each of x's width / K heads. x is rounded as in linear, per head.
        """
        n, k = weights[0].shape
        if x.width != len(weights) * k:
            raise ValueError(f"{len(weights)} weights of {k} columns cannot meet rows of width {x.width}")
        return Tensor(x.rows, len(weights) * n)

    # -- attention -------------------------------------------------------------------------------

    @abstractmethod
    def rotary_append(
        self, inputs: Inputs, qkv: Tensor, kv: KVLayer, spec: AttentionSpec, rotary: Rotary | None,
        norms: HeadNorms = NO_NORMS,
    ) -> Tensor:  # fmt: skip
        """Split qkv, normalize and rotate q and k, store k and v at the tokens' slots, return q.

        qkv rows are [num_heads * head_dim | num_kv_heads * head_dim | num_kv_heads * v_head_dim].
        norms: RMS norms before rotation. rotary None: no rotation.
        Rotation of a pair: (a cos - b sin, b cos + a sin) at the token's position (Extras.rope_positions
        where the batch brings them), over the first rotary.dim elements of each head.
        Scales of a token and head: int8 pages max|x| / 127; int16 pages max(|k| / 46000, max|k| / 32767)
        with the Euclidean norm |k|, and max|v| / 16383: then sums of 32 bits hold every score, and every
        block of 32 weighted values (csrc/isa/round16.inl).
        """
        return Tensor(qkv.rows, spec.num_heads * spec.head_dim)

    def append(self, inputs: Inputs, x: Tensor, kv: KVLayer, spec: AttentionSpec) -> None:
        """Store k and v of x at the tokens' slots: what cross attention will read.

        x rows are [num_kv_heads * head_dim | num_kv_heads * v_head_dim]: those of rotary_append, with no
        query heads.
        """
        self.rotary_append(inputs, x, kv, replace(spec, num_heads=0), None)

    @abstractmethod
    def latent_append(
        self, inputs: Inputs, q: tuple[Tensor, Tensor], k: tuple[Tensor, Tensor], kv: KVLayer,
        spec: AttentionSpec, rotary: Rotary,
    ) -> Tensor:  # fmt: skip
        """Multi-head latent attention (DeepSeek-AI 2024, section 2.1): store one latent a token.

        q, k: each a latent part and one that rotates. Stores [latent | rotate(rope)] of k at the tokens'
        slots as the only KV head, and returns q [T, num_heads * head_dim], for each head [latent of it |
        rotate(rope of it)]. latent has spec.v_head_dim elements of a head, rope the other spec.head_dim -
        spec.v_head_dim, all of which rotate.
        """
        return Tensor(q[0].rows, spec.num_heads * spec.head_dim)

    @abstractmethod
    def attention(self, inputs: Inputs, q: Tensor, kv: KVLayer, spec: AttentionSpec) -> Tensor:
        """Paged attention over everything stored so far: prefill, decode and verify are this call.

        For token t of sequence s at position p, head h, over kv positions j <= p (and > p - window; all
        of them where spec.sight says so) read from the pages (its own too, so a quantized page gives
        the same bits in every split of the work): y[t, h] = sum_j softmax_j(softcap(scale q.k_j)
        + slope (j - p) + bias[h, j - p]) v_j.
        A token of a tree (ForwardBatch.tree_masks) sees of its own step its ancestors and itself, each at
        its own position: y is what it would be had the path from the root been the whole sequence. Trees
        are for causal attention; what an encoder wrote is seen by every token.
        Exponentials are rescaled per block of 32 positions, partial results are merged per 256, both
        counted from position 0 (flash attention, Dao et al. 2022; flash decoding).
        """
        return Tensor(q.rows, spec.num_heads * spec.v_head_dim)
