"""The words that the ops speak: handles of data, and what one layer's op is asked to be."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Any, NoReturn, Protocol

import numpy as np
import numpy.typing as npt

from octavo.kernels.forward_batch import ForwardBatch

F32 = npt.NDArray[np.float32]
U8 = npt.NDArray[np.uint8]


# Ops take these as arguments: csrc/types.h has the same enums, in the same order (kernels/cpu_lower.py).


class Rows(Enum):
    """What the leading dimension of a Tensor counts; its size is known only at run time.

    GIVEN: the rows of the arrays that a replay is given (Ops.given), which agree in their number.
    """

    TOKENS = "tokens"
    SAMPLED = "sampled"
    GIVEN = "given"


class Activation(Enum):
    """NONE, SiLU, GELU (erf), GELU_TANH (tanh approximation), RELU."""

    NONE = "none"
    SILU = "silu"
    GELU = "gelu"
    GELU_TANH = "gelu_tanh"
    RELU = "relu"


class Sight(Enum):
    """What a query sees.

    CAUSAL: its sequence up to itself. WHOLE: all of its sequence (ForwardBatch.context_lens), as in an
    encoder. CROSS: all of its sequence's encoder pages (ForwardBatch.cross_lens and cross_tables).
    """

    CAUSAL = "causal"
    WHOLE = "whole"
    CROSS = "cross"


class Tensor:
    """An opaque handle [rows, width] of f32. Only ops read or make one; ref is their own."""

    __slots__ = ("ref", "rows", "width")

    def __init__(self, rows: Rows, width: int, ref: Any = None) -> None:
        self.rows = rows
        self.width = width
        self.ref = ref

    def _refuse(self, *_: object) -> NoReturn:
        raise TypeError("a Tensor is opaque: use ops, so that the forward can be captured")

    __getitem__ = __setitem__ = __len__ = __iter__ = __array__ = __bool__ = _refuse
    __add__ = __radd__ = __sub__ = __mul__ = __rmul__ = __truediv__ = __matmul__ = __neg__ = _refuse

    def __repr__(self) -> str:
        return f"Tensor({self.rows.value}, {self.width})"


@dataclass(frozen=True, slots=True)
class Inputs:
    """The batch, as model code sees it: something to hand on to ops. Opaque but for extras.

    Attributes:
        extras: names of the optional parts that batches may bring (Limits.extras).
        given: what the replay was given; kept: what the forward leaves. Of backends that run at once.
    """

    batch: ForwardBatch | None = None
    extras: frozenset[str] = frozenset()
    given: Mapping[str, Any] = field(default_factory=dict)
    kept: dict[str, Tensor] = field(default_factory=dict)


class PackedWeight(Protocol):
    """A matrix [N, K] as a backend streams it. Made by Backend.pack.

    gated: rows are two stacked matrices of N/2, a gate and an up projection (ops.linear says how
    they meet); the backend may interleave them as it likes.
    """

    @property
    def shape(self) -> tuple[int, int]: ...
    @property
    def gated(self) -> bool: ...
    @property
    def nbytes(self) -> int: ...


class KVLayer(Protocol):
    """The K and V pages of one layer. Layout and dtype are the backend's own."""


@dataclass(frozen=True, slots=True, eq=False)
class Rotary:
    """Rotary position embedding (Su et al. 2021) as tables, so that every backend uses equal bits.

    Attributes:
        cos, sin [max_position, rotary_dim / 2]: scalings (llama3, yarn, linear...) are in them.
        interleaved: pairs are (0, 1), (2, 3)... (GPT-J); otherwise (i, i + rotary_dim/2) (NeoX).
    """

    cos: F32
    sin: F32
    interleaved: bool = False

    @property
    def dim(self) -> int:
        return 2 * int(self.cos.shape[1])


@dataclass(frozen=True, slots=True, eq=False)
class AttentionSpec:
    """Shape and variant of one layer's attention.

    Query head h reads KV head h // (num_heads / num_kv_heads).

    Attributes:
        scale: factor of q . k.
        window: a query at position p sees positions > p - window (itself included); None sees all.
        softcap: scores become softcap * tanh(score / softcap).
        alibi_slopes [num_heads]: adds slope * (kv position - query position) to scores.
        sinks [num_heads]: one more logit in each softmax, which takes part in the sum only.
        latent: V is not stored; it is the first v_head_dim elements of K (KVSpec.latent).
        sight: which positions a query sees; a window is for causal attention only.
        relative_bias [num_heads, 2 D + 1]: adds its column D + min(max(j - p, -D), D) to the score of
            kv position j seen from query position p (T5; Raffel et al. 2020, section 2.1).
    """

    num_heads: int
    num_kv_heads: int
    head_dim: int
    v_head_dim: int
    scale: float
    window: int | None = None
    softcap: float | None = None
    alibi_slopes: F32 | None = None
    sinks: F32 | None = None
    latent: bool = False
    sight: Sight = Sight.CAUSAL
    relative_bias: F32 | None = None

    def __post_init__(self) -> None:
        if self.window is not None and self.sight is not Sight.CAUSAL:
            raise ValueError("only causal attention has a window")


@dataclass(frozen=True, slots=True, eq=False)
class HeadNorms:
    """RMS norms of q and k before they rotate.

    q, k: gains [head_dim] of each head by itself, or [heads * head_dim] over all heads of that side together;
    None: that side has no norm.
    """

    q: F32 | None = None
    k: F32 | None = None
    eps: float = 1e-6


NO_NORMS = HeadNorms()


@dataclass(frozen=True, slots=True)
class Scaling:
    """What becomes of logits: z = factor * z, then z = softcap * tanh(z / softcap) if there is one."""

    factor: float = 1.0
    softcap: float | None = None


UNSCALED = Scaling()


@dataclass(frozen=True, slots=True, eq=False)
class Experts:
    """Each expert's two weights, gate_up gated, with the activation of the gates."""

    gate_up: Sequence[PackedWeight]
    down: Sequence[PackedWeight]
    activation: Activation


@dataclass(frozen=True, slots=True, eq=False)
class Routing:
    """How ops.moe chooses experts where it is not by softmax alone (DeepSeek-V2 and V3).

    Attributes:
        sigmoid: p = sigmoid(router_logits) instead of softmax.
        bias [experts]: added to p for the choice of groups and experts, not to the shares.
        groups, top_groups: experts lie in equal, adjacent groups; only those of the best top_groups
            may be chosen. A group is as good as the sum of its group_top best experts. The p of the other
            groups' experts becomes 0, or with sigmoid they are never chosen.
        scale: factor of the shares, after they were renormalized.
    """

    sigmoid: bool = False
    bias: F32 | None = None
    groups: int = 1
    top_groups: int = 1
    group_top: int = 1
    scale: float = 1.0


@dataclass(frozen=True, slots=True)
class KVSpec:
    """What one layer stores per token: num_kv_heads x (head_dim + v_head_dim) of dtype.

    dtype: "f32", "f16", "bf16", or "int8", "int16" (symmetric, one f32 scale per token, KV head and side;
    Ops.rotary_append says which).
    latent: V is K's first v_head_dim elements and is not stored again (multi-head latent attention).
    window: tokens that the layer's queries see, themselves included; None: all before them.
    """

    num_kv_heads: int
    head_dim: int
    v_head_dim: int
    dtype: str
    latent: bool = False
    window: int | None = None

    @property
    def bytes_per_token(self) -> int:
        values = self.num_kv_heads * (self.head_dim + (0 if self.latent else self.v_head_dim))
        scales = (1 if self.latent else 2) * 4 * self.num_kv_heads if self.dtype.startswith("int") else 0
        return values * {"f32": 4, "f16": 2, "bf16": 2, "int8": 1, "int16": 2}[self.dtype] + scales
