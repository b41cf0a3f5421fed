"""From recorded calls to a native program."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from octavo.kernels import _native
from octavo.kernels.cpu_weight import CpuWeight
from octavo.kernels.ops import (
    Activation,
    AttentionSpec,
    HeadNorms,
    KVSpec,
    Limits,
    PackedWeight,
    Rotary,
    Routing,
    Rows,
    Sight,
)
from octavo.kernels.program import Buffer, Call, Plan, max_rows, plan_arena

_ROWS = {Rows.TOKENS: 0, Rows.SAMPLED: 1, Rows.GIVEN: 2}
_ACTIVATIONS = {
    Activation.NONE: 0,
    Activation.SILU: 1,
    Activation.GELU: 2,
    Activation.GELU_TANH: 3,
    Activation.RELU: 4,
}
_SIGHTS = {Sight.CAUSAL: 0, Sight.WHOLE: 1, Sight.CROSS: 2}
_NORMS = {"rms_norm": 1, "layer_norm": 2}
_NO_NORM = (0, None, None, 0.0)
_BLOCK = 32  # positions (kRescale)

Place = tuple[int, int, int]
"""A native buffer: kind of rows, width, byte offset in the arena."""


@dataclass(frozen=True, slots=True)
class CpuKVLayer:
    """One layer of a native KV cache."""

    cache: _native.KVCache
    index: int
    spec: KVSpec


@dataclass(frozen=True, slots=True)
class Recorded:
    """Calls over numbered buffers.

    Attributes:
        given: buffers that are filled before a replay. kept: those that are read after it, as the result is.
    """

    calls: Sequence[Call]
    buffers: Sequence[Buffer]
    result: int
    given: tuple[int, ...] = ()
    kept: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Built:
    """A native program, which keeps the arrays alive that it points into, and its memory plan."""

    program: _native.Program
    plan: Plan
    buffers: Sequence[Buffer]

    def place(self, number: int) -> Place:
        buffer = self.buffers[number]
        return _ROWS[buffer.rows], buffer.width, self.plan.offsets[number]


def build(recorded: Recorded, limits: Limits, pool: _native.Pool, isa: str) -> Built:
    """Lower calls. Buffers that are read but never written (eager inputs) get memory as given ones do."""
    calls, buffers = recorded.calls, recorded.buffers
    written = {call.output for call in calls}
    given = sorted({b for call in calls for b in call.inputs} - written | set(recorded.given))
    sources = [Call("given", (), number) for number in given]
    planned = [*sources, *calls]
    sizes = [max_rows(b.rows, limits) * b.width * 4 for b in buffers]
    workspaces = [_workspace(c, buffers, limits) for c in planned]
    plan = plan_arena(planned, sizes, workspaces, recorded.result, recorded.kept)
    shape = _native.Limits(
        tokens=limits.max_tokens,
        sequences=limits.max_sequences,
        sampled=limits.max_sampled,
        table_width=limits.max_pages_per_sequence,
        given=limits.max_given,
    )
    built = Built(_native.Program(pool, isa, shape, plan.nbytes), plan, buffers)
    lowering = _Lowering(built)
    for call, workspace in zip(planned, plan.workspaces, strict=True):
        if call.name != "given":
            getattr(lowering, call.name)(call, workspace)
    built.program.set_result(built.place(recorded.result))
    return built


def parts(weight: PackedWeight) -> tuple[_native.Matrix, ...]:
    if not isinstance(weight, CpuWeight):
        raise TypeError(f"{type(weight).__name__} was packed by another backend")
    return weight.parts


def _workspace(call: Call, buffers: Sequence[Buffer], limits: Limits) -> int:
    """Bytes that the call needs while it runs."""
    if call.name == "linear":
        rows = max_rows(buffers[call.output].rows, limits)
        return max(_native.activation_bytes(part, rows) for part in parts(call.args["weight"]))
    if call.name == "moe":
        rows = max_rows(buffers[call.output].rows, limits)
        gate_up, down = (_whole(call.args[name]) for name in ("gate_up", "down"))
        return int(_native.moe_workspace(gate_up, down, call.args["top_k"], rows))
    if call.name == "head_linear":
        rows = max_rows(buffers[call.output].rows, limits)
        return _native.head_linear_workspace(_whole(call.args["weights"]), rows)
    return 0


def _whole(weights: Sequence[PackedWeight]) -> list[_native.Matrix]:
    found = [parts(w) for w in weights]
    if any(len(p) != 1 for p in found):
        raise TypeError("an expert's or a head's weight must be of one layout")
    return [p[0] for p in found]


def _padded(bias: Any) -> Any:
    """A relative bias with its ends repeated for a block of positions, so that a block is one load."""
    return None if bias is None else np.pad(bias, ((0, 0), (_BLOCK, _BLOCK)), "edge")


def _f32(array: Any) -> Any:
    """Contiguous, as a program points into it (and keeps it alive); None stays None."""
    return None if array is None else np.ascontiguousarray(array, np.float32)


class _Lowering:
    """One method per op, named as in Ops, with (call, workspace offset)."""

    def __init__(self, built: Built) -> None:
        self._program, self._place = built.program, built.place

    def _layer(self, kv: Any) -> tuple[_native.KVCache, int]:
        if not isinstance(kv, CpuKVLayer):
            raise TypeError("these pages belong to another backend")
        return kv.cache, kv.index

    def embed(self, call: Call, _: int) -> None:
        (table,) = parts(call.args["table"])
        self._program.embed(self._place(call.output), table, call.args["scale"])

    def embed_positions(self, call: Call, _: int) -> None:
        (table,) = parts(call.args["table"])
        self._program.embed_positions(
            self._place(call.inputs[0]), self._place(call.output), table, call.args["offset"]
        )

    def gather_rows(self, call: Call, _: int) -> None:
        self._program.gather(self._place(call.inputs[0]), self._place(call.output))

    def replace_rows(self, call: Call, _: int) -> None:
        self._program.replace(self._place(call.inputs[0]), self._place(call.output))

    def _norm(self, name: str, gain: Any, bias: Any, eps: float) -> tuple[int, Any, Any, float]:
        return _NORMS[name], _f32(gain), _f32(bias), eps

    def rms_norm(self, call: Call, _: int) -> None:
        norm = self._norm(call.name, call.args["gain"], call.args["bias"], call.args["eps"])
        self._program.norm(self._place(call.inputs[0]), self._place(call.output), norm)

    layer_norm = rms_norm

    def linear(self, call: Call, workspace: int) -> None:
        args = call.args
        norm = _NO_NORM if args["norm"] is None else self._norm(*args["norm"])
        bias, column = _f32(args["bias"]), 0
        for part in parts(args["weight"]):
            rows = part.shape[0]
            self._program.linear(
                self._place(call.inputs[0]),
                self._place(call.output),
                column,
                part,
                norm,
                None if bias is None else _f32(bias[column : column + rows]),
                _ACTIVATIONS[args["activation"]],
                self._place(call.inputs[1]) if len(call.inputs) > 1 else None,
                args["scale"],
                args["softcap"] or 0.0,
                workspace,
            )
            column += rows

    def add(self, call: Call, _: int) -> None:
        x, y = call.inputs
        self._program.add(self._place(x), self._place(y), self._place(call.output))

    def gate_rows(self, call: Call, _: int) -> None:
        x, gate = call.inputs
        self._program.gate_rows(self._place(x), self._place(gate), self._place(call.output))

    def moe(self, call: Call, workspace: int) -> None:
        x, router = call.inputs
        args = call.args
        routing: Routing = args["routing"]
        self._program.moe(
            self._place(x),
            self._place(router),
            self._place(call.output),
            _whole(args["gate_up"]),
            _whole(args["down"]),
            args["top_k"],
            _ACTIVATIONS[args["activation"]],
            args["renormalize"],
            (
                routing.sigmoid,
                _f32(routing.bias),
                routing.groups,
                routing.top_groups,
                routing.group_top,
                routing.scale,
            ),
            workspace,
        )

    def head_linear(self, call: Call, workspace: int) -> None:
        weights = _whole(call.args["weights"])
        self._program.head_linear(self._place(call.inputs[0]), self._place(call.output), weights, workspace)

    def latent_append(self, call: Call, _: int) -> None:
        rotary: Rotary = call.args["rotary"]
        q_latent, q_rope, latent, k_rope = (self._place(x) for x in call.inputs)
        cache, layer = self._layer(call.args["kv"])
        self._program.latent_append(
            q_latent,
            q_rope,
            latent,
            k_rope,
            self._place(call.output),
            cache,
            layer,
            call.args["spec"].num_heads,
            _f32(rotary.cos),
            _f32(rotary.sin),
            rotary.interleaved,
        )

    def rotary_append(self, call: Call, _: int) -> None:
        args = call.args
        rotary: Rotary | None = args["rotary"]
        norms: HeadNorms = args["norms"]
        spec: AttentionSpec = args["spec"]
        cache, layer = self._layer(args["kv"])
        self._program.rotary_append(
            self._place(call.inputs[0]),
            self._place(call.output),
            cache,
            layer,
            spec.num_heads,
            _f32(rotary.cos) if rotary else None,
            _f32(rotary.sin) if rotary else None,
            rotary.interleaved if rotary else False,
            _f32(norms.q),
            _f32(norms.k),
            norms.eps,
        )

    def attention(self, call: Call, _: int) -> None:
        spec: AttentionSpec = call.args["spec"]
        cache, layer = self._layer(call.args["kv"])
        self._program.attention(
            self._place(call.inputs[0]),
            self._place(call.output),
            cache,
            layer,
            spec.num_heads,
            spec.scale,
            spec.softcap or 0.0,
            spec.window or 0,
            _f32(spec.alibi_slopes),
            _f32(spec.sinks),
            _SIGHTS[spec.sight],
            _f32(_padded(spec.relative_bias)),
        )
