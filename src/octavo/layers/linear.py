"""A projection: packed weight and bias, the matrices that it is made of, and how it may be divided."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

import numpy as np
import numpy.typing as npt

from octavo.kernels.ops import F32, UNSCALED, Activation, Ops, PackedWeight, Scaling, Tensor


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
