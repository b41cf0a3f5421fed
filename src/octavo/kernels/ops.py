"""The hardware boundary: every operation that model code may use, specified.

Model code is ordinary Python over these methods. It sees Tensors as opaque handles: a row kind and
a width, no shape arithmetic, no slicing, no operators, so that whatever a forward does can be
recorded once and replayed (kernels/program.py on the CPU, CUDA graphs on the GPU).

`reference.py` implements each method in NumPy: the executable form of this file. Every other
backend is tested against it, op by layout by shape. Activations are f32 unless stated.

Determinism: a row of an output depends on its own inputs only, in an order of additions that is
fixed by the row and by K or by KV positions, never by the number of rows or threads (the reference
keeps this to 1e-5, because BLAS chooses its order by shape).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING, Any, NoReturn, Protocol, runtime_checkable

import numpy as np
import numpy.typing as npt

from octavo.kernels.batch import ForwardBatch

if TYPE_CHECKING:
    from octavo.kernels.draws import DeviceSteps

F32 = npt.NDArray[np.float32]
U8 = npt.NDArray[np.uint8]
TokenArrays = tuple[npt.NDArray[np.int64], npt.NDArray[np.int32], F32]
"""A list of (token, value) per row, end to end: starts [R + 1], tokens, values."""


class Rows(Enum):
    """What the leading dimension of a Tensor counts; its size is known only at run time."""

    TOKENS = "tokens"
    SAMPLED = "sampled"
    SEQUENCES = "sequences"


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
    """An opaque handle [rows, width] of f32. Only ops read or make one."""

    __slots__ = ("ref", "rows", "width")

    def __init__(self, rows: Rows, width: int, ref: Any) -> None:
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
    """The batch, as model code sees it: something to hand on to ops. Opaque."""

    batch: ForwardBatch | None = None


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
class Routing:
    """How ops.moe chooses experts where it is not by softmax alone (DeepSeek-V2 and V3).

    Attributes:
        sigmoid: p = sigmoid(router_logits) instead of softmax.
        bias [experts]: added to p for the choice of groups and experts, not to the shares.
        groups, top_groups: experts lie in equal, adjacent groups; only those of the best top_groups
            may be chosen. A group is as good as the sum of its group_top best experts; ties go to
            the lower group.
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


class Ops(ABC):
    """The operations. x, y: Tensors; T: rows of x; G: gain and B: bias are f32 vectors."""

    # -- tokens in, rows out ---------------------------------------------------------------------

    @abstractmethod
    def embed(self, inputs: Inputs, table: PackedWeight, scale: float = 1.0) -> Tensor:
        """y[t] = scale * table[token_ids[t]]: [T, K] of a table [vocab, K], dequantized exactly."""

    @abstractmethod
    def embed_positions(self, inputs: Inputs, x: Tensor, table: PackedWeight, offset: int = 0) -> Tensor:
        """y[t] = x[t] + table[positions[t] + offset]: learned positions (GPT-2, OPT)."""

    @abstractmethod
    def gather_rows(self, inputs: Inputs, x: Tensor) -> Tensor:
        """y[r] = x[sampled[r]]: [R, width], the rows whose logits are wanted."""

    @abstractmethod
    def pool(self, inputs: Inputs, x: Tensor, how: str) -> Tensor:
        """[S, width]: "last" or "mean" over each sequence's tokens of this batch (embeddings)."""

    # -- rows to rows ----------------------------------------------------------------------------

    @abstractmethod
    def rms_norm(self, x: Tensor, gain: F32, eps: float) -> Tensor:
        """y = x / sqrt(mean(x^2) + eps) * G (Zhang and Sennrich 2019). Gemma's 1 + G comes folded."""

    @abstractmethod
    def layer_norm(self, x: Tensor, gain: F32, bias: F32 | None, eps: float) -> Tensor:
        """y = (x - mean) / sqrt(var + eps) * G + B, var being the biased variance."""

    @abstractmethod
    def linear(
        self,
        x: Tensor,
        weight: PackedWeight,
        bias: F32 | None = None,
        activation: Activation = Activation.NONE,
        residual: Tensor | None = None,
        scale: float = 1.0,
        softcap: float | None = None,
    ) -> Tensor:
        """y = epilogue(x W^T), in this order:

        1. z = x W^T + bias. For layouts of integers x is first rounded to int8 per block of 32 along
           K: d = max|x| / 127, q = round_half_even(x / d), x ~ d q (d = 0: q = 0). Layouts
           of floats, and of codes of floats (F8, NF4), use x as it is and accumulate in f32.
        2. gated weight: z = activation(z[:N/2]) * z[N/2:], width N/2; otherwise z = activation(z).
        3. z = scale * z; softcap: z = softcap * tanh(z / softcap).
        4. residual: y = residual + z.
        """

    @abstractmethod
    def act_mul(self, x: Tensor, activation: Activation) -> Tensor:
        """y = activation(x[:, :w/2]) * x[:, w/2:]: the gating of a fused gate-and-up projection."""

    @abstractmethod
    def add(self, x: Tensor, y: Tensor) -> Tensor:
        """x + y."""

    @abstractmethod
    def gate_rows(self, x: Tensor, gate: Tensor) -> Tensor:
        """y[t] = sigmoid(gate[t, 0]) * x[t], gate being of width 1: the gate of a shared expert."""

    @abstractmethod
    def moe(
        self,
        x: Tensor,
        router_logits: Tensor,
        gate_up: Sequence[PackedWeight],
        down: Sequence[PackedWeight],
        top_k: int,
        activation: Activation,
        renormalize: bool,
        routing: Routing | None = None,
    ) -> Tensor:
        """Mixture of experts: y[t] = sum over the top_k experts e of p_e down_e(gated_e(x[t])).

        p = softmax(router_logits[t]), or as routing says; ties go to the lower expert; renormalize
        divides by the sum of the chosen p. Experts are added in ascending order of e.
        """

    @abstractmethod
    def head_linear(self, x: Tensor, weights: Sequence[PackedWeight]) -> Tensor:
        """Each head by its own matrix: y[:, h N : (h + 1) N] = x[:, h K : (h + 1) K] W_h^T.

        weights: one [N, K] for each of x's width / K heads. x is rounded as in linear, per head.
        """

    # -- attention -------------------------------------------------------------------------------

    @abstractmethod
    def rotary_append(
        self,
        inputs: Inputs,
        qkv: Tensor,
        kv: KVLayer,
        spec: AttentionSpec,
        rotary: Rotary | None,
        q_norm: F32 | None = None,
        k_norm: F32 | None = None,
        eps: float = 1e-6,
    ) -> Tensor:
        """Split qkv, normalize and rotate q and k, store k and v at the tokens' slots, return q.

        qkv rows are [num_heads * head_dim | num_kv_heads * head_dim | num_kv_heads * v_head_dim].
        q_norm, k_norm: RMS norm before rotation, [head_dim] of each head by itself, or [heads *
        head_dim] over all heads of q or k together. rotary None: no rotation.
        Rotation of a pair: (a cos - b sin, b cos + a sin) at the token's position, over the first
        rotary.dim elements of each head. Scales of a token and head: int8 pages max|x| / 127; int16
        pages max(|k| / 46000, max|k| / 32767) with the Euclidean norm |k|, and max|v| / 16383: then
        sums of 32 bits hold every score, and every block of 32 weighted values (csrc/isa/round16.inl).
        """

    @abstractmethod
    def append(self, inputs: Inputs, x: Tensor, kv: KVLayer, spec: AttentionSpec) -> None:
        """Store k and v of x at the tokens' slots: what cross attention will read.

        x rows are [num_kv_heads * head_dim | num_kv_heads * v_head_dim].
        """

    @abstractmethod
    def latent_append(
        self,
        inputs: Inputs,
        q_latent: Tensor,
        q_rope: Tensor,
        latent: Tensor,
        k_rope: Tensor,
        kv: KVLayer,
        spec: AttentionSpec,
        rotary: Rotary,
    ) -> Tensor:
        """Multi-head latent attention (DeepSeek-AI 2024, section 2.1): store one latent a token.

        Stores k = [latent | rotate(k_rope)] at the tokens' slots as the only KV head, and returns q
        [T, num_heads * head_dim], for each head [q_latent of it | rotate(q_rope of it)]. latent has
        spec.v_head_dim elements, k_rope the other spec.head_dim - spec.v_head_dim, all of which rotate.
        """

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

    # -- ranks -----------------------------------------------------------------------------------

    @abstractmethod
    def all_reduce(self, x: Tensor) -> Tensor:
        """Sum of x over the ranks of one model, in rank order. One rank: x."""


@dataclass(frozen=True, slots=True)
class Limits:
    """Upper bounds of one batch; static buffers are sized by them."""

    max_tokens: int
    max_sequences: int
    max_sampled: int
    max_pages_per_sequence: int


class KVCache(Protocol):
    """All layers' pages on one backend."""

    @property
    def nbytes(self) -> int: ...

    def layer(self, index: int) -> KVLayer: ...

    def copy_pages(self, pairs: Sequence[tuple[int, int]]) -> None:
        """Copy page src to page dst in every layer for each (src, dst); all are read first."""
        ...


@runtime_checkable
class LateCopies(Protocol):
    """A KVCache whose copies are still under way when copy_pages returns."""

    def wait(self) -> None: ...


@runtime_checkable
class PageBytes(Protocol):
    """A KVCache whose pages can be taken out and put back: what makes them up, scales included."""

    @property
    def page_bytes(self) -> int:
        """Bytes of a page, all layers together."""
        ...

    def read_page(self, page: int) -> U8:
        """A copy of a page's bytes, [page_bytes]."""
        ...

    def write_page(self, page: int, data: U8) -> None:
        """Make a page what read_page gave, of whichever page it was."""
        ...


class Forward(Protocol):
    """Model code: from a batch to logits [R, vocab]."""

    def __call__(self, ops: Ops, inputs: Inputs) -> Tensor: ...


class Program(Protocol):
    """A forward that can be run again and again over the same static buffers."""

    def replay(self, batch: ForwardBatch) -> F32:
        """Run it. Returns the forward's result, [rows, width]; valid until the next replay."""
        ...


class RowSampler(Protocol):
    """A backend's sampler, by arrays alone; sampling/native.py calls it and says what they mean."""

    def sample(
        self,
        logits: F32,
        params: npt.NDArray[np.uint8],
        positions: npt.NDArray[np.int64],
        bias: TokenArrays,
        banned: TokenArrays,
        seen: TokenArrays,
        mask: npt.NDArray[np.uint32] | None,
        given: npt.NDArray[np.int32] | None,
        logprob: npt.NDArray[np.float64],
        rank: npt.NDArray[np.int64],
        top_token: npt.NDArray[np.int32],
        top_logprob: npt.NDArray[np.float64],
    ) -> list[int]: ...


class RowDecoder(Protocol):
    """A backend's own way through a step in which every row computes one token and draws the next."""

    def step(
        self, rows: Sequence[int], starts: Sequence[int], mask: npt.NDArray[np.uint32] | None = None
    ) -> list[int]:
        """Compute the token at position starts[i] of each row, draw and append the one after it.

        Args:
            mask [R, ceil(vocab / 32)]: which tokens may be drawn, as SamplingBatch has it; None: all.

        Returns:
            The tokens; in the place of one what RowSampler.sample gives for an error: that row stays
            as it was.
        """
        ...

    def redraw(self, indices: Sequence[int], mask: npt.NDArray[np.uint32]) -> list[int]:
        """Draw again for some rows of the last step, whose tokens were refused; the new ones replace them.

        Args:
            indices: of `rows`, each once.
            mask [len(indices), ceil(vocab / 32)]: it forbids the token that was drawn.

        Returns:
            The tokens, or errors, as step does; an error leaves the row without the token.
        """
        ...


class Backend(ABC):
    """A place to compute: packs weights, holds pages, runs programs.

    Attributes:
        kv_dtype: the type of pages (KVSpec.dtype) where nobody chose one; None: the configuration's.
        step_tokens: tokens of a step that keep it busy; None: as many as a CPU's.
    """

    name: str
    isa: str
    threads: int
    kv_dtype: str | None = None
    step_tokens: int | None = None

    def page_budget(self, share: float | None, reserve: int) -> int | None:
        """Bytes of a memory of its own that pages may take; None: they lie in the system's memory.

        Args:
            share: of the whole memory, for everything; None: the backend's own.
            reserve: bytes to leave to activations.
        """
        return None

    @abstractmethod
    def pack(self, weights: Sequence[Any], gated: bool = False) -> PackedWeight:
        """Stack Weights (kernels/weight.py) of one width along their rows, packed for ops.linear.

        Layouts may differ: each row keeps its weight's own, and meets x rounded or not as that
        layout says. gated: exactly two weights of equal shape, a gate and an up projection; two
        layouts meet in f32. Each Weight's release() is called once its bytes were taken.
        """

    @abstractmethod
    def kv_cache(
        self, layers: Sequence[KVSpec], num_pages: int, page_size: int, swap_pages: int = 0
    ) -> KVCache:
        """Pages for all layers; memory is touched lazily where the system allows.

        Args:
            swap_pages: pages after the others that only copy_pages reaches, in the system's memory.
        """

    @abstractmethod
    def capture(self, forward: Forward, limits: Limits) -> Program:
        """Make a Program of model code."""

    def facts(self) -> dict[str, str]:
        """What the lines of a start should say of it, by name."""
        return {}

    def report(self, tell: Callable[[str, float], None]) -> None:
        """From now on tell of work that ended in the background: (what it was, seconds), on its thread."""
        return None

    def steps(self, forward: Forward, limits: Limits, vocab_size: int) -> DeviceSteps | None:
        """A program that draws where its logits are (kernels/draws.py); None: logits come to the host."""
        return None

    def sampler(self, vocab_size: int) -> RowSampler | None:
        """Draws tokens from logits [R, vocab_size]; None: this backend leaves that to NumPy."""
        return None

    def decoder(
        self,
        program: Program,
        sampler: RowSampler,
        tokens: npt.NDArray[np.int32],
        lengths: npt.NDArray[np.int64],
        pages: npt.NDArray[np.int32],
        page_size: int,
        params: npt.NDArray[Any],
    ) -> RowDecoder | None:
        """Decodes rows whose draws need params and masks alone, without log-probabilities; None: it cannot.

        Args:
            program, sampler: of this backend.
            tokens [rows, T]: each row's known tokens; those drawn are appended.
            lengths [rows]: how many of them are known; kept up likewise.
            pages [rows, P]: each row's page table.
            params [rows]: records as the sampler reads them. All arrays are those that others change
                between steps, C-contiguous.
        """
        return None
