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
_BLOCK = 32  # positions (kRescale)


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

    def place(self, number: int) -> _native.Buffer:
        """Of a buffer, in the program's arena."""
        buffer = self.buffers[number]
        return _native.Buffer(rows=_ROWS[buffer.rows], width=buffer.width, offset=self.plan.offsets[number])


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
    built = Built(_native.Program(pool=pool, isa=isa, limits=shape, nbytes=plan.nbytes), plan, buffers)
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
        return int(_native.moe_workspace(gate_up=gate_up, down=down, top_k=call.args["top_k"], tokens=rows))
    if call.name == "head_linear":
        rows = max_rows(buffers[call.output].rows, limits)
        return _native.head_linear_workspace(weights=_whole(call.args["weights"]), rows=rows)
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


def _norm(name: str, gain: Any, bias: Any, eps: float) -> _native.Norm:
    return _native.Norm(kind=_NORMS[name], gain=_f32(gain), bias=_f32(bias), eps=eps)


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
        self._program.embed(y=self._place(call.output), table=table, scale=call.args["scale"])

    def embed_positions(self, call: Call, _: int) -> None:
        (table,) = parts(call.args["table"])
        self._program.embed_positions(
            x=self._place(call.inputs[0]),
            y=self._place(call.output),
            table=table,
            offset=call.args["offset"],
        )

    def gather_rows(self, call: Call, _: int) -> None:
        self._program.gather(x=self._place(call.inputs[0]), y=self._place(call.output))

    def replace_rows(self, call: Call, _: int) -> None:
        self._program.replace(x=self._place(call.inputs[0]), y=self._place(call.output))

    def rms_norm(self, call: Call, _: int) -> None:
        norm = _norm(call.name, call.args["gain"], call.args["bias"], call.args["eps"])
        self._program.norm(x=self._place(call.inputs[0]), y=self._place(call.output), norm=norm)

    layer_norm = rms_norm

    def linear(self, call: Call, workspace: int) -> None:
        args = call.args
        bias, column = _f32(args["bias"]), 0
        for part in parts(args["weight"]):
            rows = part.shape[0]
            self._program.linear(
                x=self._place(call.inputs[0]),
                y=self._place(call.output),
                column=column,
                weight=part,
                norm=None if args["norm"] is None else _norm(*args["norm"]),
                bias=None if bias is None else bias[column : column + rows],
                activation=_ACTIVATIONS[args["activation"]],
                residual=self._place(call.inputs[1]) if len(call.inputs) > 1 else None,
                scale=args["scale"],
                softcap=args["softcap"] or 0.0,
                prepared=workspace,
            )
            column += rows

    def add(self, call: Call, _: int) -> None:
        x, y = call.inputs
        self._program.add(x=self._place(x), y=self._place(y), z=self._place(call.output))

    def gate_rows(self, call: Call, _: int) -> None:
        x, gate = call.inputs
        self._program.gate_rows(x=self._place(x), gate=self._place(gate), y=self._place(call.output))

    def moe(self, call: Call, workspace: int) -> None:
        x, router = call.inputs
        args = call.args
        self._program.moe(
            x=self._place(x),
            router=self._place(router),
            y=self._place(call.output),
            gate_up=_whole(args["gate_up"]),
            down=_whole(args["down"]),
            top_k=args["top_k"],
            activation=_ACTIVATIONS[args["activation"]],
            renormalize=args["renormalize"],
            routing=args["routing"],
            workspace=workspace,
        )

    def head_linear(self, call: Call, workspace: int) -> None:
        self._program.head_linear(
            x=self._place(call.inputs[0]),
            y=self._place(call.output),
            weights=_whole(call.args["weights"]),
            workspace=workspace,
        )

    def latent_append(self, call: Call, _: int) -> None:
        rotary: Rotary = call.args["rotary"]
        q_latent, q_rope, latent, k_rope = (self._place(x) for x in call.inputs)
        cache, layer = self._layer(call.args["kv"])
        self._program.latent_append(
            q_latent=q_latent,
            q_rope=q_rope,
            latent=latent,
            k_rope=k_rope,
            q=self._place(call.output),
            cache=cache,
            layer=layer,
            heads=call.args["spec"].num_heads,
            cos=_f32(rotary.cos),
            sin=_f32(rotary.sin),
            interleaved=rotary.interleaved,
        )

    def rotary_append(self, call: Call, _: int) -> None:
        args = call.args
        rotary: Rotary | None = args["rotary"]
        norms: HeadNorms = args["norms"]
        spec: AttentionSpec = args["spec"]
        cache, layer = self._layer(args["kv"])
        self._program.rotary_append(
            qkv=self._place(call.inputs[0]),
            q=self._place(call.output),
            cache=cache,
            layer=layer,
            heads=spec.num_heads,
            cos=_f32(rotary.cos) if rotary else None,
            sin=_f32(rotary.sin) if rotary else None,
            interleaved=rotary.interleaved if rotary else False,
            q_norm=_f32(norms.q),
            k_norm=_f32(norms.k),
            eps=norms.eps,
        )

    def attention(self, call: Call, _: int) -> None:
        spec: AttentionSpec = call.args["spec"]
        cache, layer = self._layer(call.args["kv"])
        self._program.attention(
            q=self._place(call.inputs[0]),
            y=self._place(call.output),
            cache=cache,
            layer=layer,
            heads=spec.num_heads,
            scale=spec.scale,
            softcap=spec.softcap or 0.0,
            window=spec.window or 0,
            slopes=_f32(spec.alibi_slopes),
            sinks=_f32(spec.sinks),
            sight=_SIGHTS[spec.sight],
            bias=_f32(_padded(spec.relative_bias)),
        )
