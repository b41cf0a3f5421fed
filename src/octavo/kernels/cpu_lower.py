"""From recorded calls to a native program.

An op's arguments go over by the names that kernels/operations.py gives them, each value by its type (coded);
csrc/call.h is where ops read them.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields, is_dataclass
from enum import Enum
from typing import Any

import numpy as np

from octavo.kernels import _native
from octavo.kernels.cpu_weight import CpuWeight
from octavo.kernels.ops import KVSpec, Limits, PackedWeight
from octavo.kernels.program import Arena, Buffer, Call, max_rows, plan_arena


@dataclass(frozen=True, slots=True)
class CpuKVLayer:
    """One layer of a native KV cache."""

    native: _native.KVLayer
    spec: KVSpec


@dataclass(frozen=True, slots=True)
class RecordedCalls:
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
    arena: Arena
    buffers: Sequence[Buffer]

    def place(self, number: int) -> _native.Buffer:
        """Of a buffer, in the program's arena."""
        buffer = self.buffers[number]
        return _native.Buffer(
            rows=_number(buffer.rows), width=buffer.width, offset=self.arena.offsets[number]
        )


def build(recorded: RecordedCalls, limits: Limits, pool: _native.Pool, isa: str) -> Built:
    """Lower calls. Buffers that are read but never written (eager inputs) get memory as given ones do."""
    calls, buffers = recorded.calls, recorded.buffers
    written = {call.output for call in calls}
    given = sorted({b for call in calls for b in call.inputs} - written | set(recorded.given))
    sources = [Call("given", (), number) for number in given]
    ops = [lowered(call) for call in calls]
    sizes = [max_rows(b.rows, limits) * b.width * 4 for b in buffers]
    rows = [max_rows(buffers[call.output].rows, limits) for call in calls]
    workspaces = [0] * len(sources) + [op.workspace(most) for op, most in zip(ops, rows, strict=True)]
    plan = plan_arena([*sources, *calls], sizes, workspaces, recorded.result, recorded.kept)
    shape = _native.Limits(
        tokens=limits.max_tokens,
        sequences=limits.max_sequences,
        sampled=limits.max_sampled,
        table_width=limits.max_pages_per_sequence,
        given=limits.max_given,
    )
    built = Built(_native.Program(pool=pool, isa=isa, limits=shape, nbytes=plan.nbytes), plan, buffers)
    for call, op, workspace in zip(calls, ops, plan.workspaces[len(sources) :], strict=True):
        inputs = [built.place(number) for number in call.inputs]
        built.program.add(op=op, inputs=inputs, output=built.place(call.output), workspace=workspace)
    built.program.set_result(built.place(recorded.result))
    return built


def lowered(call: Call) -> _native.Op:
    """The call without its buffers.

    Raises:
        TypeError: a weight or pages of another backend, or experts of several layouts each.
    """
    return _native.Op(
        call.name, dict(pair for name, value in call.args.items() for pair in coded(name, value))
    )


def coded(name: str, value: Any) -> Iterator[tuple[str, Any]]:
    """An argument, or each field of a struct as one of its own, "spec.window"."""
    match value:
        case None | bool() | int() | float():
            yield name, value
        case np.generic():
            yield name, value.item()
        case np.ndarray():  # contiguous, as a program points into it (and keeps it alive)
            yield name, np.ascontiguousarray(value, np.float32)
        case Enum():
            yield name, _number(value)
        case CpuWeight():
            yield name, list(value.parts)
        case CpuKVLayer():
            yield name, value.native
        case Sequence():
            yield name, [_whole(weight) for weight in value]
        case _ if is_dataclass(value):
            for field in fields(value):
                yield from coded(f"{name}.{field.name}", getattr(value, field.name))
        case _:
            raise TypeError(f"{name}: {type(value).__name__} was made by another backend")


def parts(weight: PackedWeight) -> tuple[_native.Matrix, ...]:
    if not isinstance(weight, CpuWeight):
        raise TypeError(f"{type(weight).__name__} was packed by another backend")
    return weight.parts


def _number(value: Enum) -> int:
    """As csrc/types.h numbers its enums, in the order that ours have."""
    return list(type(value)).index(value)


def _whole(weight: PackedWeight) -> _native.Matrix:
    (*rest, part) = parts(weight)
    if rest:
        raise TypeError("an expert's or a head's weight must be of one layout")
    return part
