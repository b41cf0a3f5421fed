"""Capture: a forward's op calls as a list, fused, and laid out in one arena.

    model code -> Recorder (calls over numbered buffers) -> fuse -> plan (offsets) -> native program

Buffers that are never alive at the same time share memory. Fusion changes no bit: it only moves a
norm into the linear that reads it.
"""

from __future__ import annotations

import inspect
from abc import update_abstractmethods
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from octavo.errors import UnsupportedError
from octavo.kernels.forward_batch import ForwardBatch
from octavo.kernels.ops import F32, Forward, Inputs, Limits, Ops, Rotary, Rows, Tensor


@dataclass(frozen=True, slots=True)
class Buffer:
    """[rows, width] of f32; the number of rows is known at run time."""

    rows: Rows
    width: int


@dataclass(frozen=True, slots=True)
class Call:
    """One op.

    Attributes:
        name: the method of Ops.
        inputs, output: numbers of buffers.
        args: everything else but the batch, by the method's argument names; "norm": a FusedNorm moved here.
    """

    name: str
    inputs: tuple[int, ...]
    output: int
    args: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, eq=False)
class FusedNorm:
    """A norm that its reader computes: layer_norm's arguments, or where not layer rms_norm's."""

    layer: bool
    gain: F32
    bias: F32 | None
    eps: float


class Recorder(Ops):
    """Each method notes a Call and returns a handle on its output; Tensor.ref is a buffer's number.

    Methods that are not written here are made of those of Ops (_recording).

    Attributes:
        given_as, kept_as: names -> buffers that come from, and are left to, whoever replays the forward.
        reads: the optional parts of batches that the forward takes (kernels.forward_batch.EXTRAS).
        turns: how many positions the shortest rotary table has; None: nothing is rotated.
    """

    def __init__(self) -> None:
        self.buffers: list[Buffer] = []
        self.calls: list[Call] = []
        self.given_as: dict[str, int] = {}
        self.kept_as: dict[str, int] = {}
        self.reads: set[str] = set()
        self.turns: int | None = None

    def emit(self, call: Call) -> None:
        self.calls.append(call)

    def keep(self, inputs: Inputs, x: Tensor, name: str) -> None:
        if name in self.kept_as:
            raise ValueError(f"two results are kept as {name!r}")
        self.kept_as[name] = x.ref

    def given(self, inputs: Inputs, name: str, rows: Rows, width: int) -> Tensor:
        wanted = Buffer(rows, width)
        number = self.given_as.setdefault(name, len(self.buffers))
        if number == len(self.buffers):
            self.buffers.append(wanted)
        if self.buffers[number] != wanted:
            raise ValueError(f"{name!r} was asked for as {self.buffers[number]}, and as {wanted}")
        return Tensor(rows, width, number)

    def note(self, name: str, made: Tensor, arguments: Mapping[str, Any]) -> Tensor:
        """Emit a call of the op by that name, which makes a Tensor of that shape."""
        tensors = {key: _tensors(value) for key, value in arguments.items()}
        args = {key: value for key, value in arguments.items() if not tensors[key]}
        self.reads |= _READS.get(name, set())
        for value in args.values():
            if isinstance(value, Rotary):
                self.reads.add("rope_positions")
                self.turns = len(value.cos) if self.turns is None else min(self.turns, len(value.cos))
        self.buffers.append(Buffer(made.rows, made.width))
        output = len(self.buffers) - 1
        self.emit(Call(name, tuple(x.ref for group in tensors.values() for x in group), output, args))
        return Tensor(made.rows, made.width, output)


_READS = {"replace_rows": {"replaced"}}
"""Optional parts of batches (kernels.forward_batch.EXTRAS) that an op takes, beside where it rotates to."""


def _tensors(value: object) -> tuple[Tensor, ...]:
    """An argument's buffers: of a Tensor, or of a tuple of them."""
    if isinstance(value, Tensor):
        return (value,)
    return value if isinstance(value, tuple) and value and isinstance(value[0], Tensor) else ()


def _recording(name: str) -> Callable[..., Tensor]:
    """The method of Recorder for an op, from what operations.py says of it."""
    declared = getattr(Ops, name)
    signature = inspect.signature(declared)

    def record(self: Recorder, *args: Any, **named: Any) -> Tensor:
        bound = signature.bind(self, *args, **named)
        bound.apply_defaults()
        made: Tensor = declared(*bound.args, **bound.kwargs)
        of_call = {key: value for key, value in bound.arguments.items() if key not in ("self", "inputs")}
        return self.note(name, made, of_call)

    return record


for _name in Ops.__abstractmethods__ - vars(Recorder).keys():
    setattr(Recorder, _name, _recording(_name))
# Its abstract ops have been written by now.
update_abstractmethods(Recorder)  # type: ignore[type-abstract]  # mypy reads the class as it was declared


@dataclass(frozen=True, slots=True)
class Signature:
    """What goes into a forward beside its batch, and what comes out beside its result, by name.

    Attributes:
        turns: Recorder.turns, which a batch's own positions of rotation must stay below.
    """

    given: Mapping[str, Buffer]
    kept: Mapping[str, Buffer]
    turns: int | None = None

    @staticmethod
    def of(forward: Forward, limits: Limits) -> Signature:
        """
        Raises:
            UnsupportedError: limits name an optional part that no program takes, or not this one.
        """
        return signed(record(forward, limits)[0], limits)

    def check(self, batch: ForwardBatch, limits: Limits, given: Mapping[str, Any]) -> int:
        """How many rows the arrays of Rows.GIVEN have.

        Raises:
            ValueError: an array is missing, unknown, of another shape or of more rows than planned; or as
                check_turns.
        """
        self.check_turns(batch)
        if self.given.keys() != given.keys():
            raise ValueError(f"this program is given {sorted(self.given)}, not {sorted(given)}")
        counts = {Rows.TOKENS: batch.num_tokens, Rows.SAMPLED: batch.num_sampled}
        for name, buffer in self.given.items():
            array = given[name]
            rows = counts.setdefault(buffer.rows, len(array))
            if tuple(array.shape) != (rows, buffer.width):
                shape = tuple(array.shape)
                raise ValueError(f"{name!r} is of shape {shape} where [{rows}, {buffer.width}] is meant")
        rows = counts.get(Rows.GIVEN, 0)
        if rows > limits.max_given:
            raise ValueError(f"{rows} given rows exceed the {limits.max_given} that were planned for")
        return rows

    def check_turns(self, batch: ForwardBatch) -> None:
        """
        Raises:
            ValueError: the batch rotates by a position of its own that the rotary tables lack.
        """
        own = None if batch.extras is None else batch.extras.rope_positions
        if own is None or self.turns is None or own.size == 0:
            return
        if own.min() < 0 or own.max() >= self.turns:
            raise ValueError(
                f"rope_positions from {own.min()} to {own.max()} leave the rotary tables, which have "
                f"{self.turns} positions"
            )

    def check_kept(self, name: str, replayed: bool = True) -> None:
        """
        Args:
            replayed: whether anything was.

        Raises:
            ValueError: nothing of that name is kept, or nothing was replayed yet.
        """
        if name not in self.kept:
            raise ValueError(f"this program keeps {sorted(self.kept)}, not {name!r}")
        if not replayed:
            raise ValueError("nothing was replayed yet")


IMPLEMENTED = frozenset({"rope_positions", "replaced"})
"""The optional parts of batches that the backends' ops take."""


def record(forward: Forward, limits: Limits) -> tuple[Recorder, Tensor]:
    """The forward's calls, and a handle on its result."""
    recorder = Recorder()  # type: ignore[abstract]  # _recording has made its methods
    return recorder, forward(recorder, Inputs(extras=limits.extras))


def signed(recorder: Recorder, limits: Limits) -> Signature:
    """
    Raises:
        UnsupportedError: as Signature.of.
    """
    if missing := limits.extras - IMPLEMENTED:
        raise UnsupportedError(f"no program takes {', '.join(sorted(missing))} yet")
    if unread := limits.extras - recorder.reads:
        raise UnsupportedError(f"this model does not read {', '.join(sorted(unread))}")
    buffers = recorder.buffers
    given = {name: buffers[number] for name, number in recorder.given_as.items()}
    kept = {name: buffers[number] for name, number in recorder.kept_as.items()}
    return Signature(given, kept, recorder.turns)


def fuse(calls: Sequence[Call], result: int, kept: Collection[int] = ()) -> list[Call]:
    """Move each norm that only one linear reads into that linear, where it is quantized anyway.

    An attention that only gather_rows reads is told so ("sampled_only"): it need not compute other rows.
    """
    readers: dict[int, list[int]] = {number: [-1] for number in (result, *kept)}
    for i, call in enumerate(calls):
        for buffer in call.inputs:
            readers.setdefault(buffer, []).append(i)
    fused: list[Call | None] = list(calls)
    for i, call in enumerate(calls):
        used_by = readers.get(call.output, [])
        if call.name == "attention" and all(n >= 0 and calls[n].name == "gather_rows" for n in used_by):
            fused[i] = replace(call, args={**call.args, "sampled_only": True})
        if call.name not in ("rms_norm", "layer_norm"):
            continue
        if len(used_by) != 1 or used_by[0] < 0:
            continue
        reader = fused[used_by[0]]
        if reader is None or reader.name != "linear" or reader.inputs[0] != call.output:
            continue
        norm = FusedNorm(
            call.name == "layer_norm", call.args["gain"], call.args.get("bias"), call.args["eps"]
        )
        inputs = call.inputs + reader.inputs[1:]
        fused[used_by[0]] = replace(reader, inputs=inputs, args={**reader.args, "norm": norm})
        fused[i] = None
    return [call for call in fused if call is not None]


def max_rows(rows: Rows, limits: Limits) -> int:
    match rows:
        case Rows.TOKENS:
            return limits.max_tokens
        case Rows.SAMPLED:
            return limits.max_sampled
        case Rows.GIVEN:
            return limits.max_given


@dataclass(frozen=True, slots=True)
class Arena:
    """Where everything lies: byte offsets of buffers, and of each call's workspace, in an arena."""

    offsets: dict[int, int]
    workspaces: list[int]
    nbytes: int


def plan_arena(
    calls: Sequence[Call],
    sizes: Sequence[int],
    workspaces: Sequence[int],
    result: int,
    kept: Collection[int] = (),
) -> Arena:
    """Lowest fit in the order of definition. The result and what is kept stay to the end.

    Args:
        sizes: bytes of each buffer.
        workspaces: bytes that each call needs while it runs.
    """
    last_use = {call.output: i for i, call in enumerate(calls)}
    for i, call in enumerate(calls):
        for buffer in call.inputs:
            last_use[buffer] = i
    last_use |= dict.fromkeys((result, *kept), len(calls))
    live: list[tuple[int, int, int]] = []  # (offset, end, last use), by offset
    offsets: dict[int, int] = {}
    placed: list[int] = []
    total = 0

    def place(size: int, until: int) -> int:
        nonlocal total
        size = max(-(-size // 64) * 64, 64)
        at = 0
        for offset, end, _ in live:
            if offset - at >= size:
                break
            at = max(at, end)
        live.append((at, at + size, until))
        live.sort()
        total = max(total, at + size)
        return at

    for i, call in enumerate(calls):
        live = [entry for entry in live if entry[2] >= i]
        offsets[call.output] = place(sizes[call.output], last_use[call.output])
        placed.append(place(workspaces[i], i) if workspaces[i] else 0)
    return Arena(offsets, placed, total)
