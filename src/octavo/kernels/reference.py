"""The ops in NumPy: the executable specification, and the backend where nothing else runs.

Written to be read beside operations.py, line by line; speed comes second. Weights are dequantized to f32
once; activations of quantized layouts are still rounded to int8 per block, because that rounding is
part of what ops.linear means.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import groupby

import numpy as np
import numpy.typing as npt

from octavo.kernels import trees
from octavo.kernels.forward_batch import ForwardBatch
from octavo.kernels.ops import (
    F32,
    NO_NORMS,
    UNSCALED,
    Activation,
    AttentionSpec,
    Backend,
    Experts,
    Forward,
    HeadNorms,
    Inputs,
    KVLayer,
    KVSpec,
    Limits,
    Ops,
    PackedWeight,
    Rotary,
    Routing,
    Rows,
    Scaling,
    Sight,
    Tensor,
)
from octavo.kernels.program import Signature
from octavo.kernels.reference_kv import ReferenceKVCache, ReferenceKVLayer
from octavo.kernels.reference_math import (
    activate,
    attend,
    norm_heads,
    product,
    rms_norm,
    rotate,
    round_to_int8,
    route,
    sigmoid,
)
from octavo.kernels.weight import Weight, alike, check_stack, release

I64 = npt.NDArray[np.int64]


class ReferenceWeight:
    """A packed weight: f32 [N, K], and for which rows x is rounded to int8 before it meets them.

    Attributes:
        parts: (first row, end, whether x is rounded, in which order of columns), adjacent and ascending.
    """

    def __init__(self, weights: Sequence[Weight], gated: bool) -> None:
        self.matrix: F32 = np.concatenate([w.dequantize() for w in weights])
        self.gated = gated
        mixed = gated and not alike(*weights)
        self.parts: list[tuple[int, int, bool, npt.NDArray[np.int32] | None]] = []
        start = 0
        for _, group in groupby(weights, key=lambda w: (w.layout.quantized and not mixed, id(w.order))):
            same = list(group)
            end = start + sum(w.shape[0] for w in same)
            self.parts.append((start, end, same[0].layout.quantized and not mixed, same[0].order))
            start = end
        release(weights)

    @property
    def shape(self) -> tuple[int, int]:
        return (self.matrix.shape[0], self.matrix.shape[1])

    @property
    def nbytes(self) -> int:
        return int(self.matrix.nbytes)


def batch_of(inputs: Inputs) -> ForwardBatch:
    if inputs.batch is None:
        raise TypeError("these inputs hold no batch: the reference backend runs eagerly")
    return inputs.batch


def angles(rotary: Rotary, batch: ForwardBatch) -> tuple[F32, F32]:
    """Cosines and sines of each token."""
    own = None if batch.extras is None else batch.extras.rope_positions
    positions = batch.positions if own is None else own
    return rotary.cos[positions], rotary.sin[positions]


def matrix(weight: PackedWeight) -> F32:
    if not isinstance(weight, ReferenceWeight):
        raise TypeError(f"{type(weight).__name__} was packed by another backend")
    return weight.matrix


class ReferenceOps(Ops):
    """Each method computes at once; Tensor.ref is the NumPy array."""

    exact = True
    """A row's bits are its own, whoever is computed with it; without, BLAS is many times faster."""

    def embed(self, inputs: Inputs, table: PackedWeight, scale: float = 1.0) -> Tensor:
        rows = matrix(table)[batch_of(inputs).token_ids]
        return Tensor(Rows.TOKENS, rows.shape[1], rows * np.float32(scale))

    def embed_positions(self, inputs: Inputs, x: Tensor, table: PackedWeight, offset: int = 0) -> Tensor:
        rows = matrix(table)[batch_of(inputs).positions + offset]
        return Tensor(x.rows, x.width, x.ref + rows)

    def gather_rows(self, inputs: Inputs, x: Tensor) -> Tensor:
        return Tensor(Rows.SAMPLED, x.width, x.ref[batch_of(inputs).sampled])

    def replace_rows(self, inputs: Inputs, x: Tensor) -> Tensor:
        extras = batch_of(inputs).extras
        if extras is None or extras.replaced is None or extras.rows is None:
            return x
        if extras.rows.shape[1] != x.width:
            raise ValueError(f"replaced rows are of width {extras.rows.shape[1]}, hidden states of {x.width}")
        y = x.ref.copy()
        y[extras.replaced] = extras.rows
        return Tensor(x.rows, x.width, y)

    def keep(self, inputs: Inputs, x: Tensor, name: str) -> None:
        inputs.kept[name] = x

    def given(self, inputs: Inputs, name: str, rows: Rows, width: int) -> Tensor:
        return Tensor(rows, width, np.asarray(inputs.given[name], np.float32))

    def rms_norm(self, x: Tensor, gain: F32, eps: float) -> Tensor:
        return Tensor(x.rows, x.width, rms_norm(x.ref, gain, eps))

    def layer_norm(self, x: Tensor, gain: F32, bias: F32 | None, eps: float) -> Tensor:
        centred = x.ref - x.ref.mean(axis=-1, keepdims=True)
        variance = np.square(centred).mean(axis=-1, keepdims=True)
        y = centred / np.sqrt(variance + np.float32(eps)) * gain
        return Tensor(x.rows, x.width, y if bias is None else y + bias)

    def linear(
        self, x: Tensor, weight: PackedWeight, bias: F32 | None = None,
        activation: Activation = Activation.NONE, residual: Tensor | None = None, scaling: Scaling = UNSCALED,
    ) -> Tensor:  # fmt: skip
        if not isinstance(weight, ReferenceWeight):
            raise TypeError(f"{type(weight).__name__} was packed by another backend")
        parts = [
            product(round_to_int8(x.ref, order) if rounds else x.ref, weight.matrix[start:end], self.exact)
            for start, end, rounds, order in weight.parts
        ]
        z = parts[0] if len(parts) == 1 else np.concatenate(parts, axis=1)
        if bias is not None:
            z = z + bias
        if weight.gated:
            half = z.shape[1] // 2
            z = activate(z[:, :half], activation) * z[:, half:]
        else:
            z = activate(z, activation)
        if scaling.factor != 1.0:
            z = z * np.float32(scaling.factor)
        if scaling.softcap is not None:
            z = np.float32(scaling.softcap) * np.tanh(z / np.float32(scaling.softcap))
        if residual is not None:
            z = residual.ref + z
        return Tensor(x.rows, z.shape[1], z)

    def add(self, x: Tensor, y: Tensor) -> Tensor:
        return Tensor(x.rows, x.width, x.ref + y.ref)

    def gate_rows(self, x: Tensor, gate: Tensor) -> Tensor:
        return Tensor(x.rows, x.width, sigmoid(gate.ref) * x.ref)

    def moe(
        self, x: Tensor, router_logits: Tensor, experts: Experts, top_k: int, renormalize: bool,
        routing: Routing | None = None,
    ) -> Tensor:  # fmt: skip
        chosen, share = route(router_logits.ref, top_k, renormalize, routing or Routing())
        y = np.zeros_like(x.ref)
        for e in range(len(experts.down)):
            tokens, place = np.nonzero(chosen == e)
            if len(tokens) == 0:
                continue
            routed = Tensor(x.rows, x.width, x.ref[tokens])
            hidden = self.linear(routed, experts.gate_up[e], activation=experts.activation)
            y[tokens] += share[tokens, place, None] * self.linear(hidden, experts.down[e]).ref
        return Tensor(x.rows, x.width, y)

    def head_linear(self, x: Tensor, weights: Sequence[PackedWeight]) -> Tensor:
        heads = np.split(x.ref, len(weights), axis=1)
        parts = [
            self.linear(Tensor(x.rows, h.shape[1], h), w).ref for h, w in zip(heads, weights, strict=True)
        ]
        y = np.concatenate(parts, axis=1)
        return Tensor(x.rows, y.shape[1], y)

    def rotary_append(
        self, inputs: Inputs, qkv: Tensor, kv: KVLayer, spec: AttentionSpec, rotary: Rotary | None,
        norms: HeadNorms = NO_NORMS,
    ) -> Tensor:  # fmt: skip
        batch, layer = batch_of(inputs), _layer(kv)
        tokens = qkv.ref.shape[0]
        q_end = spec.num_heads * spec.head_dim
        k_end = q_end + spec.num_kv_heads * spec.head_dim
        q = qkv.ref[:, :q_end].reshape(tokens, spec.num_heads, spec.head_dim)
        k = qkv.ref[:, q_end:k_end].reshape(tokens, spec.num_kv_heads, spec.head_dim)
        v = qkv.ref[:, k_end:].reshape(tokens, spec.num_kv_heads, spec.v_head_dim)
        if norms.q is not None:
            q = norm_heads(q, norms.q, norms.eps)
        if norms.k is not None:
            k = norm_heads(k, norms.k, norms.eps)
        if rotary is not None:
            cos, sin = angles(rotary, batch)
            q, k = (rotate(side, cos, sin, rotary.interleaved) for side in (q, k))
        layer.store(batch.slots_of(layer.sliding), k, v)
        return Tensor(qkv.rows, q_end, np.ascontiguousarray(q.reshape(tokens, q_end)))

    def latent_append(
        self, inputs: Inputs, q: tuple[Tensor, Tensor], k: tuple[Tensor, Tensor], kv: KVLayer,
        spec: AttentionSpec, rotary: Rotary,
    ) -> Tensor:  # fmt: skip
        batch, layer = batch_of(inputs), _layer(kv)
        (q_latent, q_rope), (latent, k_rope) = q, k
        tokens = q_latent.ref.shape[0]
        cos, sin = angles(rotary, batch)
        q_rotated, k_rotated = (
            rotate(side.ref.reshape(tokens, heads, -1), cos, sin, rotary.interleaved)
            for side, heads in ((q_rope, spec.num_heads), (k_rope, 1))
        )
        keys = np.concatenate([latent.ref[:, None], k_rotated], axis=2)
        layer.store(batch.slots_of(layer.sliding), keys, None)
        y = np.concatenate([q_latent.ref.reshape(tokens, spec.num_heads, -1), q_rotated], axis=2)
        return Tensor(q_latent.rows, spec.num_heads * spec.head_dim, y.reshape(tokens, -1))

    def attention(self, inputs: Inputs, q: Tensor, kv: KVLayer, spec: AttentionSpec) -> Tensor:
        batch, layer = batch_of(inputs), _layer(kv)
        lens, tables = batch.context_lens, batch.tables_of(layer.sliding)
        if spec.sight is Sight.CROSS:
            if batch.cross_lens is None or batch.cross_tables is None:
                raise ValueError("cross attention needs the encoder's pages")
            lens, tables = batch.cross_lens, batch.cross_tables
        y = np.zeros((q.ref.shape[0], spec.num_heads * spec.v_head_dim), np.float32)
        for s in range(batch.num_sequences):
            rows = slice(batch.query_start[s], batch.query_start[s + 1])
            k, v = layer.load(tables[s], int(lens[s]))
            queries = q.ref[rows].reshape(-1, spec.num_heads, spec.head_dim)
            tree = _tree(batch, rows, spec)
            y[rows] = attend(queries, k, v, batch.positions[rows], spec, tree, self.exact).reshape(
                len(queries), -1
            )
        return Tensor(q.rows, y.shape[1], y)


def _tree(batch: ForwardBatch, rows: slice, spec: AttentionSpec) -> npt.NDArray[np.bool_] | None:
    """Which of their own step the tokens see; None: their sequence is no tree, or this is an encoder's."""
    if batch.tree_masks is None or spec.sight is Sight.CROSS or not batch.tree_masks[rows].any():
        return None
    if spec.sight is not Sight.CAUSAL:
        raise ValueError("only causal attention has trees")
    return trees.seen(batch.tree_masks[rows], rows.stop - rows.start)


def _layer(kv: KVLayer) -> ReferenceKVLayer:
    if not isinstance(kv, ReferenceKVLayer):
        raise TypeError("these pages belong to another backend")
    return kv


class ReferenceProgram:
    """No capture: a replay calls the model code again, eagerly."""

    def __init__(self, ops: ReferenceOps, forward: Forward, limits: Limits) -> None:
        self._ops, self._forward, self._limits = ops, forward, limits
        self._signature = Signature.of(forward, limits)
        self._kept: dict[str, Tensor] = {}

    def replay(self, batch: ForwardBatch, given: Mapping[str, F32] | None = None) -> F32:
        self._limits.check(batch)
        inputs = Inputs(batch, self._limits.extras, given or {})
        self._signature.check(batch, self._limits, inputs.given)
        with np.errstate(invalid="ignore", over="ignore"):
            result: F32 = self._forward(self._ops, inputs).ref
        self._kept = inputs.kept
        return result

    def kept(self, name: str) -> F32:
        self._signature.check_kept(name, bool(self._kept))
        array: F32 = self._kept[name].ref
        return array


class ReferenceBackend(Backend):
    """NumPy on whatever BLAS it brings. Correct first."""

    name = "reference"
    isa = "numpy"

    def __init__(self, threads: int = 1) -> None:
        self.threads = threads
        self.ops = ReferenceOps()

    def pack(self, weights: Sequence[Weight], gated: bool = False, head: bool = False) -> ReferenceWeight:
        check_stack(weights, gated)
        return ReferenceWeight(weights, gated)

    def kv_cache(
        self, layers: Sequence[KVSpec], num_pages: int, page_size: int, swap_pages: int = 0,
        sliding: bool = False,
    ) -> ReferenceKVCache:  # fmt: skip
        return ReferenceKVCache(layers, num_pages + swap_pages, page_size, sliding)

    def capture(self, forward: Forward, limits: Limits) -> ReferenceProgram:
        return ReferenceProgram(self.ops, forward, limits)
