"""kernels.ops on a device: each method launches at once, and nothing waits for the device.

Tensor.ref is a torch tensor [rows, width] of the compute type; logits are f32. A sum
that a norm may follow is left undone (Sum), so that one kernel adds and normalizes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch

from octavo.kernels.cuda import attention, moe, norms, rotary
from octavo.kernels.cuda.device_batch import DeviceBatch
from octavo.kernels.cuda.gemm import TilePolicy, product, widen
from octavo.kernels.cuda.integer import RoundedRows
from octavo.kernels.cuda.kv import CudaKVLayer
from octavo.kernels.cuda.norms import Epilogue
from octavo.kernels.cuda.weight import CudaWeight, PackedRows, stack
from octavo.kernels.ops import (
    F32,
    NO_NORMS,
    UNSCALED,
    Activation,
    AttentionSpec,
    Experts,
    HeadNorms,
    Inputs,
    KVLayer,
    Ops,
    PackedWeight,
    Rotary,
    Routing,
    Rows,
    Scaling,
    Sight,
    Tensor,
)
from octavo.kernels.weight import BLOCK, Layout

WIDEN_ROWS = 256
"""From so many rows on a quantized weight is widened once and left to cuBLAS."""


class Constants:
    """f32 vectors and tables of the model on the device, each copied once.

    Keyed by the array's identity; the array is held, so that no other takes its place.
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._held: dict[int, tuple[F32, torch.Tensor]] = {}
        self._experts: dict[int, tuple[object, PackedRows]] = {}

    def __call__(self, array: F32) -> torch.Tensor:
        held = self._held.get(id(array))
        if held is None:
            held = array, torch.tensor(array, dtype=torch.float32, device=self._device)
            self._held[id(array)] = held
        return held[1]

    def optional(self, array: F32 | None) -> torch.Tensor | None:
        return None if array is None else self(array)

    def experts(self, weights: Sequence[PackedWeight]) -> PackedRows:
        """The weights stacked, at their first use."""
        held = self._experts.get(id(weights[0]))
        if held is None:
            held = weights, stack([packed(w) for w in weights])
            self._experts[id(weights[0])] = held
        return held[1]


@dataclass(slots=True, eq=False)
class Sum:
    """x + y, not added yet."""

    x: torch.Tensor
    y: torch.Tensor
    done: torch.Tensor | None = None

    def value(self) -> torch.Tensor:
        if self.done is None:
            self.done = (self.x.float() + self.y.float()).to(self.x.dtype)
        return self.done


def value(x: Tensor) -> torch.Tensor:
    """The tensor behind a handle."""
    ref = x.ref
    if isinstance(ref, RoundedRows):
        return ref.x
    result: torch.Tensor = ref.value() if isinstance(ref, Sum) else ref
    return result


def packed(weight: PackedWeight) -> CudaWeight:
    if not isinstance(weight, CudaWeight):
        raise TypeError(f"{type(weight).__name__} was packed by another backend")
    return weight


def layer_of(kv: KVLayer) -> CudaKVLayer:
    if not isinstance(kv, CudaKVLayer):
        raise TypeError("these pages belong to another backend")
    return kv


class CudaOps(Ops):
    """The ops over one batch's device arrays.

    Args:
        dtype: of activations.
    """

    def __init__(
        self, batch: DeviceBatch, dtype: torch.dtype, policy: TilePolicy, constants: Constants
    ) -> None:
        self.batch, self.dtype, self.policy, self._constants = batch, dtype, policy, constants

    # -- tokens in, rows out ---------------------------------------------------------------------

    def embed(self, inputs: Inputs, table: PackedWeight, scale: float = 1.0) -> Tensor:
        y = self._rows(packed(table), self.batch.token_ids, scale)
        return Tensor(Rows.TOKENS, y.shape[1], y)

    def embed_positions(self, inputs: Inputs, x: Tensor, table: PackedWeight, offset: int = 0) -> Tensor:
        y = self._rows(packed(table), self.batch.queries.positions + offset, 1.0, value(x))
        return Tensor(x.rows, x.width, y)

    def _rows(
        self, table: CudaWeight, ids: torch.Tensor, scale: float, added: torch.Tensor | None = None
    ) -> torch.Tensor:
        part = only(table)
        if not part.dense:
            return widen(part, self.dtype, ids, scale, added)
        y = part.values.index_select(0, ids).to(self.dtype)
        y = y if scale == 1.0 else (y.float() * scale).to(self.dtype)
        return y if added is None else added + y

    def gather_rows(self, inputs: Inputs, x: Tensor) -> Tensor:
        return Tensor(Rows.SAMPLED, x.width, value(x).index_select(0, self.batch.sampled))

    def replace_rows(self, inputs: Inputs, x: Tensor) -> Tensor:
        if self.batch.replaced is None:
            return x
        tokens, found = self.batch.replaced
        if found.shape[1] != x.width:
            raise ValueError(f"replaced rows are of width {found.shape[1]}, hidden states of {x.width}")
        v = value(x)
        return Tensor(x.rows, x.width, v.index_copy(0, tokens.long(), found.to(v.dtype)))

    # -- between programs ------------------------------------------------------------------------

    def keep(self, inputs: Inputs, x: Tensor, name: str) -> None:
        inputs.kept[name] = x

    def given(self, inputs: Inputs, name: str, rows: Rows, width: int) -> Tensor:
        return Tensor(rows, width, inputs.given[name])

    # -- rows to rows ----------------------------------------------------------------------------

    def rms_norm(self, x: Tensor, gain: F32, eps: float) -> Tensor:
        return self._norm(x, gain, None, eps, layer=False)

    def layer_norm(self, x: Tensor, gain: F32, bias: F32 | None, eps: float) -> Tensor:
        return self._norm(x, gain, bias, eps, layer=True)

    def _norm(self, x: Tensor, gain: F32, bias: F32 | None, eps: float, layer: bool) -> Tensor:
        how = norms.RowNorm(self._constants(gain), self._constants.optional(bias), eps, layer)
        programs = 0 if self.policy.exact else 2 * self.policy.sms
        undone = isinstance(x.ref, Sum) and x.ref.done is None
        count = (x.ref.x if undone else value(x)).shape[0]
        # What follows a norm is a product: where that wants its rows rounded, they come so.
        rounds = self.policy.rounding(count, Layout.S8) == 2 and x.width % BLOCK == 0
        if undone:
            x.ref.done, y = norms.norm(x.ref.x, x.ref.y, how, programs, rounds)
        else:
            _, y = norms.norm(value(x), None, how, programs, rounds)
        return Tensor(x.rows, x.width, y)

    def linear(
        self, x: Tensor, weight: PackedWeight, bias: F32 | None = None,
        activation: Activation = Activation.NONE, residual: Tensor | None = None, scaling: Scaling = UNSCALED,
    ) -> Tensor:  # fmt: skip
        w = packed(weight)
        rest = None if residual is None else value(residual)
        added = self._constants.optional(bias)
        end = Epilogue(added, activation, w.gated, scaling.factor, scaling.softcap, rest)
        return self._product(x, w, end, logits=False)

    def logits(
        self, x: Tensor, weight: PackedWeight, bias: F32 | None = None, scaling: Scaling = UNSCALED
    ) -> Tensor:
        end = Epilogue(self._constants.optional(bias), scale=scaling.factor, softcap=scaling.softcap)
        return self._product(x, packed(weight), end, logits=True)

    def _product(self, x: Tensor, w: CudaWeight, end: Epilogue, logits: bool) -> Tensor:
        v = value(x)
        whole = x.ref if isinstance(x.ref, RoundedRows) else None
        width = w.shape[0] // 2 if w.gated else w.shape[0]
        if end.sums and len(w.parts) == 1 and w.parts[0].order is None and self._by_cublas(v, w.parts[0]):
            z = self._matmul(v, w.parts[0], logits)
            return Tensor(x.rows, width, z if end.residual is None else Sum(end.residual, z))
        y = torch.empty((v.shape[0], width), dtype=torch.float32 if logits else self.dtype, device=v.device)
        first = 0
        for part in w.parts:
            last = first + (part.rows // 2 if w.gated else part.rows)
            here = end if len(w.parts) == 1 else sliced(end, first, last)
            self._linear(v, part, y[:, first:last], here, logits, whole)
            first = last
        return Tensor(x.rows, width, y)

    def _linear(
        self, x: torch.Tensor, part: PackedRows, y: torch.Tensor, end: Epilogue, logits: bool,
        whole: RoundedRows | None,
    ) -> None:  # fmt: skip
        if part.order is not None:  # columns that share scales lie together in W: they must in x
            x, whole, part = x.index_select(1, part.order), None, replace(part, order=None)
        if self._by_cublas(x, part):
            z = self._matmul(x, part, logits)
            norms.epilogue(z[None], y, end)
        else:
            product(x, part, y, end, self.policy, whole=whole)

    def _by_cublas(self, x: torch.Tensor, part: PackedRows) -> bool:
        if self.policy.exact or (x.shape[0] == 1 and self.policy.alone(part)):
            return False
        rounds = self.policy.rounds and part.quantized
        return part.dense or (x.shape[0] >= WIDEN_ROWS and not rounds)

    def _matmul(self, x: torch.Tensor, part: PackedRows, wide: bool) -> torch.Tensor:
        """x W^T by cuBLAS, of the compute type; f32 where wide."""
        w = part.values if part.dense else widen(part, self.dtype)
        x = x.to(w.dtype)
        if not wide or w.dtype == torch.float32:
            return torch.mm(x, w.t())
        if x.device.type == "cuda":
            return torch.mm(x, w.t(), out_dtype=torch.float32)
        return torch.mm(x.float(), w.float().t())

    def add(self, x: Tensor, y: Tensor) -> Tensor:
        return Tensor(x.rows, x.width, Sum(value(x), value(y)))

    def gate_rows(self, x: Tensor, gate: Tensor) -> Tensor:
        return Tensor(x.rows, x.width, norms.gate_rows(value(x), value(gate)))

    def moe(
        self, x: Tensor, router_logits: Tensor, experts: Experts, top_k: int, renormalize: bool,
        routing: Routing | None = None,
    ) -> Tensor:  # fmt: skip
        how = routing or Routing()
        bias = self._constants.optional(how.bias)
        chosen, shares = moe.route(value(router_logits), top_k, renormalize, how, bias)
        stacked = self._constants.experts(experts.gate_up), self._constants.experts(experts.down)
        y = moe.moe(value(x), chosen, shares, *stacked, experts.activation, self.policy)
        return Tensor(x.rows, y.shape[1], y)

    def head_linear(self, x: Tensor, weights: Sequence[PackedWeight]) -> Tensor:
        heads, part = len(weights), self._constants.experts(weights)
        v = value(x)
        tokens = v.shape[0]
        y = torch.empty((tokens * heads, part.rows), dtype=self.dtype, device=v.device)
        chosen = torch.arange(heads, device=v.device, dtype=torch.int32).expand(tokens, heads)
        if tokens:
            bm = self.policy.tiles(tokens, part.rows, part.columns, part.layout).bm
            groups = moe.assign(chosen, heads, bm)
            product(v.reshape(tokens * heads, part.columns), part, y, Epilogue(), self.policy, groups)
        return Tensor(x.rows, heads * part.rows, y.view(tokens, heads * part.rows))

    # -- attention -------------------------------------------------------------------------------

    def rotary_append(
        self, inputs: Inputs, qkv: Tensor, kv: KVLayer, spec: AttentionSpec, rotary_: Rotary | None,
        norms: HeadNorms = NO_NORMS,
    ) -> Tensor:  # fmt: skip
        gains = None
        if norms.q is not None and norms.k is not None:
            gains = rotary.Gains(self._constants(norms.q), self._constants(norms.k), norms.eps)
        elif norms.q is not None or norms.k is not None:
            raise ValueError("q and k are both normalized, or neither")
        turns = None if rotary_ is None else self._turns(rotary_)
        q = rotary.append(value(qkv), layer_of(kv), spec, self._slots(kv), turns, gains)
        return Tensor(qkv.rows, q.shape[1], q)

    def latent_append(
        self, inputs: Inputs, q: tuple[Tensor, Tensor], k: tuple[Tensor, Tensor], kv: KVLayer,
        spec: AttentionSpec, rotary_: Rotary,
    ) -> Tensor:  # fmt: skip
        queries = value(q[0]).contiguous(), value(q[1]).contiguous()
        key = value(k[0]), value(k[1])
        y = rotary.append_latent(queries, key, layer_of(kv), spec, self._slots(kv), self._turns(rotary_))
        return Tensor(q[0].rows, y.shape[1], y)

    def _turns(self, rotary_: Rotary) -> rotary.DeviceRotary:
        cos, sin = self._constants(rotary_.cos), self._constants(rotary_.sin)
        return rotary.DeviceRotary(self.batch.rope_positions, cos, sin, rotary_.interleaved)

    def _slots(self, kv: KVLayer) -> torch.Tensor:
        return self.batch.of(layer_of(kv).sliding).slots

    def append(self, inputs: Inputs, x: Tensor, kv: KVLayer, spec: AttentionSpec) -> None:
        rotary.append_kv(value(x), layer_of(kv), spec, self._slots(kv))

    def attention(self, inputs: Inputs, q: Tensor, kv: KVLayer, spec: AttentionSpec) -> Tensor:
        queries, optional = self.batch.of(layer_of(kv).sliding), self._constants.optional
        if spec.sight is Sight.CROSS:
            if self.batch.cross is None:
                raise ValueError("cross attention needs the encoder's pages")
            queries = self.batch.cross
        elif spec.sight is Sight.WHOLE and queries.trees is not None:
            raise ValueError("only causal attention has trees")
        tables = attention.AttentionTables(
            optional(spec.alibi_slopes), optional(spec.sinks), optional(spec.relative_bias)
        )
        y = attention.attend(value(q), layer_of(kv), spec, queries, tables, self.policy)
        return Tensor(q.rows, y.shape[1], y)


def only(weight: CudaWeight) -> PackedRows:
    """The single part of a table."""
    if len(weight.parts) != 1:
        raise TypeError("an embedding is of one layout")
    return weight.parts[0]


def sliced(end: Epilogue, first: int, last: int) -> Epilogue:
    """The epilogue of some columns of a projection that is not gated."""
    return Epilogue(
        None if end.bias is None else end.bias[first:last],
        end.activation,
        False,
        end.scale,
        end.softcap,
        None if end.residual is None else end.residual[:, first:last],
    )
