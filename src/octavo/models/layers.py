"""Compositions of ops. A layer is a frozen value: weights and numbers, called with (ops, inputs, x).

From a projection (Linear) over norms, feed-forward layers and attention to the stack that all decoder-only
families share (DecoderStack).
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Protocol

import numpy as np
import numpy.typing as npt

from octavo.kernels.ops import (
    F32,
    UNSCALED,
    Activation,
    AttentionSpec,
    HeadNorms,
    Inputs,
    KVCache,
    Ops,
    PackedWeight,
    Rotary,
    Scaling,
    Tensor,
)


class Split(Enum):
    """How several devices may share a projection.

    ROWS: each computes some of its outputs. COLUMNS: each reads some of its inputs, and what they compute is
    added. NONE: each has all of it.
    """

    ROWS = "rows"
    COLUMNS = "columns"
    NONE = "none"


class Use(Enum):
    """What a projection is for: quantizers and adapters take projections, and leave a head, which is as large
    as the vocabulary, and routers (of experts, or a gate of one row), whose choices are all or nothing."""

    PROJECTION = "projection"
    HEAD = "head"
    ROUTER = "router"


@dataclass(frozen=True, slots=True)
class Role:
    """How a projection is divided, and what for.

    Attributes:
        unit: rows, or columns where those are divided, that stay together: a head's.
        sections: sizes of what is divided each on its own, in a matrix that is several projections, such as
            q, k and v; (): it is one. Where a section has fewer units than there are devices, they share
            them.
    """

    split: Split
    unit: int = 1
    sections: tuple[int, ...] = ()
    use: Use = Use.PROJECTION


ROWS = Role(Split.ROWS)
COLUMNS = Role(Split.COLUMNS)
WHOLE = Role(Split.NONE)
ROUTER = Role(Split.NONE, use=Use.ROUTER)
HEAD = Role(Split.ROWS, use=Use.HEAD)


def heads_out(head_dim: int, *sections: int) -> Role:
    """Of a projection to heads; sections: Role.sections."""
    return Role(Split.ROWS, head_dim, sections)


def heads_in(head_dim: int) -> Role:
    """Of a projection that reads heads."""
    return Role(Split.COLUMNS, head_dim)


@dataclass(frozen=True, slots=True, eq=False)
class SourceRows:
    """Rows of a projection that come from one matrix of the checkpoint.

    Attributes:
        name: the matrix's module, as transformers calls it: "model.layers.0.self_attn.q_proj".
        rows: which rows of the projection these are.
        taken: which rows of the matrix they are, one for each; outputs count as rows also where the file
            keeps them as columns (GPT-2).
        transposed: the matrix's rows are the projection's columns (DeepSeek's absorbed keys); taken are then
            the columns.
    """

    name: str
    rows: range
    taken: range | npt.NDArray[np.int64]
    transposed: bool = False


@dataclass(frozen=True, slots=True, eq=False)
class Linear:
    """y = x W^T + b.

    Attributes:
        sources: where its rows come from, in order; (): nobody has said.
        role: how it may be divided, and what it is for.
    """

    weight: PackedWeight
    bias: F32 | None = None
    sources: tuple[SourceRows, ...] = ()
    role: Role = WHOLE

    def __call__(
        self,
        ops: Ops,
        x: Tensor,
        activation: Activation = Activation.NONE,
        residual: Tensor | None = None,
        scaling: Scaling = UNSCALED,
    ) -> Tensor:
        return ops.linear(x, self.weight, self.bias, activation, residual, scaling)


class Norm(Protocol):
    def __call__(self, ops: Ops, x: Tensor) -> Tensor: ...


@dataclass(frozen=True, slots=True, eq=False)
class RMSNorm:
    """gain [width]; Gemma's 1 + w is folded into gain at load."""

    gain: F32
    eps: float

    def __call__(self, ops: Ops, x: Tensor) -> Tensor:
        return ops.rms_norm(x, self.gain, self.eps)


@dataclass(frozen=True, slots=True, eq=False)
class LayerNorm:
    gain: F32
    bias: F32 | None
    eps: float

    def __call__(self, ops: Ops, x: Tensor) -> Tensor:
        return ops.layer_norm(x, self.gain, self.bias, self.eps)


def wanted(ops: Ops, inputs: Inputs, x: Tensor, ends: bool) -> Tensor:
    """x, or of a layer that ends a forward the batch's sampled rows of it: nobody reads the others."""
    return ops.gather_rows(inputs, x) if ends else x


class MLP(Protocol):
    """x [T, hidden] -> [T, hidden], added to the residual where there is one."""

    def __call__(self, ops: Ops, x: Tensor, residual: Tensor | None = None) -> Tensor: ...


@dataclass(frozen=True, slots=True)
class GatedMLP:
    """down(activation(gate x) * (up x)) + residual; gate_up is one gated weight (SwiGLU, GeGLU)."""

    gate_up: Linear
    down: Linear
    activation: Activation

    def __call__(self, ops: Ops, x: Tensor, residual: Tensor | None = None) -> Tensor:
        return self.down(ops, self.gate_up(ops, x, self.activation), residual=residual)


@dataclass(frozen=True, slots=True, eq=False)
class Attention:
    """out(attention(rotate(qkv x))) + residual.

    Attributes:
        index: which layer of the KV cache is ours.
        qkv: one stacked projection, rows in the order q, k, v.
        rotary: None for no positions here (NoPE layers, ALiBi, learned positions).
        q_norm, k_norm: RMS norms before rotation, [head_dim] per head (Qwen3, Gemma 3) or
            [heads * head_dim] over all heads (OLMo 2), or None.

    With ends, only the sampled rows leave attention: y and residual are [R, hidden].
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
        self, ops: Ops, inputs: Inputs, kv: KVCache, x: Tensor, residual: Tensor | None = None,
        ends: bool = False,
    ) -> Tensor:  # fmt: skip
        pages = kv.layer(self.index)
        qkv = self.qkv(ops, x)
        norms = HeadNorms(self.q_norm, self.k_norm, self.eps)
        q = ops.rotary_append(inputs, qkv, pages, self.spec, self.rotary, norms)
        y = wanted(ops, inputs, ops.attention(inputs, q, pages, self.spec), ends)
        return self.out(ops, y, residual=residual)


class SelfAttention(Protocol):
    """What a block needs of an attention layer; spec says what its pages hold, Attention what ends means."""

    @property
    def spec(self) -> AttentionSpec: ...

    def __call__(
        self, ops: Ops, inputs: Inputs, kv: KVCache, x: Tensor, residual: Tensor | None = None,
        ends: bool = False,
    ) -> Tensor: ...  # fmt: skip


class Block(Protocol):
    """x [T, hidden] -> [T, hidden]; of the layer that ends a forward, [R, hidden].

    All its tokens' keys and values are written then too, but what follows attention is computed for the
    sampled rows alone: of a prompt, for its last token.
    """

    @property
    def attention(self) -> SelfAttention: ...

    def __call__(self, ops: Ops, inputs: Inputs, kv: KVCache, x: Tensor, ends: bool = False) -> Tensor: ...


@dataclass(frozen=True, slots=True)
class DecoderLayer:
    """x + attention(norm x), then x + mlp(norm x).

    Attributes:
        attention_norm, mlp_norm: before the sublayer; None: none there (OLMo 2).
        attention_post_norm, mlp_post_norm: on a sublayer's output before it is added (Gemma 2, OLMo 2).
    """

    attention_norm: Norm | None
    attention: SelfAttention
    mlp_norm: Norm | None
    mlp: MLP
    attention_post_norm: Norm | None = None
    mlp_post_norm: Norm | None = None

    def __call__(self, ops: Ops, inputs: Inputs, kv: KVCache, x: Tensor, ends: bool = False) -> Tensor:
        h = x if self.attention_norm is None else self.attention_norm(ops, x)
        x = wanted(ops, inputs, x, ends)
        if self.attention_post_norm is None:
            x = self.attention(ops, inputs, kv, h, residual=x, ends=ends)
        else:
            x = ops.add(x, self.attention_post_norm(ops, self.attention(ops, inputs, kv, h, ends=ends)))
        h = x if self.mlp_norm is None else self.mlp_norm(ops, x)
        if self.mlp_post_norm is None:
            return self.mlp(ops, h, residual=x)
        return ops.add(x, self.mlp_post_norm(ops, self.mlp(ops, h)))


def tap_name(layer: int) -> str:
    """As what a layer's output is kept (Ops.keep); layers count from 0."""
    return f"layer {layer}"


def run_layers(
    layers: Sequence[Block],
    ops: Ops,
    inputs: Inputs,
    kv: KVCache,
    x: Tensor,
    taps: Collection[int],
    first: int = 0,
) -> Tensor:
    """One layer after another; first: the number of the first of them. taps are kept before any norm.

    Raises:
        ValueError: a tap is no layer of these.
    """
    if wrong := [tap for tap in taps if not first <= tap < first + len(layers)]:
        raise ValueError(f"taps {wrong} are not among layers {first} to {first + len(layers) - 1}")
    for number, layer in enumerate(layers, first):
        x = layer(ops, inputs, kv, x)
        if number in taps:
            ops.keep(inputs, x, tap_name(number))
    return x


def cut(count: int, layers: Sequence[Block]) -> int:
    """count.

    Raises:
        ValueError: there are not so many layers to cut after.
    """
    if not 0 <= count <= len(layers):
        raise ValueError(f"a forward of {len(layers)} layers cannot be cut after {count}")
    return count


@dataclass(frozen=True, slots=True, eq=False)
class Embedding:
    """Token ids to the first layer's rows: scale * table[id], projected, plus a learned position, normalized.

    Attributes:
        positions: a learned table of positions, read at position + position_offset; None: none.
        norm: on the sum (BLOOM, BART). project: from the width of words to that of layers (OPT-350M).
    """

    table: PackedWeight
    scale: float = 1.0
    positions: PackedWeight | None = None
    position_offset: int = 0
    norm: Norm | None = None
    project: Linear | None = None

    def __call__(self, ops: Ops, inputs: Inputs) -> Tensor:
        x = ops.embed(inputs, self.table, self.scale)
        if "replaced" in inputs.extras:  # rows that the batch brings are as wide as the table
            x = ops.replace_rows(inputs, x)
        if self.project is not None:
            x = self.project(ops, x)
        if self.positions is not None:
            x = ops.embed_positions(inputs, x, self.positions, self.position_offset)
        return x if self.norm is None else self.norm(ops, x)

    @property
    def width(self) -> int:
        """Of what layers read and write."""
        return self.table.shape[1] if self.project is None else self.project.weight.shape[0]


@dataclass(frozen=True, slots=True, eq=False)
class DecoderStack:
    """Embedding, layers, final norm and head: token ids in, logits [R, vocab] out.

    first() and rest() are the same forward cut between two layers, each half a program of its own over the
    same pages and the same batch.

    Attributes:
        norm: before the head; None: none (OPT-350M, BART).
        scaling: of the logits (Gemma's soft cap, T5's hidden_size^-0.5).
        project_out: from the width of layers to that of words (OPT-350M).
    """

    embedding: Embedding
    layers: Sequence[Block]
    norm: Norm | None
    head: Linear
    scaling: Scaling = UNSCALED
    project_out: Linear | None = None

    def __call__(self, ops: Ops, inputs: Inputs, kv: KVCache, taps: Collection[int] = ()) -> Tensor:
        """Logits [R, vocab]. taps: layers whose outputs [T, width] are kept, each as tap_name(layer)."""
        return self._logits(ops, self.hidden(ops, inputs, kv, taps))

    def hidden(self, ops: Ops, inputs: Inputs, kv: KVCache, taps: Collection[int] = ()) -> Tensor:
        """What the head reads: the last layer's output [R, width], normed."""
        return self._ending(ops, self._run(ops, inputs, kv, self.embedding(ops, inputs), 0, taps))

    def first(self, ops: Ops, inputs: Inputs, kv: KVCache, count: int, taps: Collection[int] = ()) -> Tensor:
        """The embedding and the first count layers: x [T, width], which rest() goes on from."""
        layers = self.layers[: cut(count, self.layers)]
        return run_layers(layers, ops, inputs, kv, self.embedding(ops, inputs), taps)

    def rest(
        self, ops: Ops, inputs: Inputs, kv: KVCache, count: int, x: Tensor, taps: Collection[int] = ()
    ) -> Tensor:
        """Logits [R, vocab] by the layers after the first count, from what these gave."""
        return self._logits(ops, self._ending(ops, self._run(ops, inputs, kv, x, count, taps)))

    def _run(
        self, ops: Ops, inputs: Inputs, kv: KVCache, x: Tensor, count: int, taps: Collection[int]
    ) -> Tensor:
        """The layers after the first count, from x [T, width]: [R, width]."""
        layers = self.layers[cut(count, self.layers) :]
        if not layers or len(self.layers) - 1 in taps:  # what is kept has all rows
            return ops.gather_rows(inputs, run_layers(layers, ops, inputs, kv, x, taps, count))
        x = run_layers(layers[:-1], ops, inputs, kv, x, taps, count)
        return layers[-1](ops, inputs, kv, x, ends=True)

    def _ending(self, ops: Ops, x: Tensor) -> Tensor:
        if self.norm is not None:
            x = self.norm(ops, x)
        return x if self.project_out is None else self.project_out(ops, x)

    def _logits(self, ops: Ops, x: Tensor) -> Tensor:
        return ops.logits(x, self.head.weight, self.head.bias, self.scaling)
