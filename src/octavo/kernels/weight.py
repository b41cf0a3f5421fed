"""Weight: one matrix of a checkpoint in one of the few layouts that kernels know.

A quantization format makes Weights (usually zero-copy views of the mapped file); a backend packs
them into what its kernels stream. Nothing downstream of a Weight knows the name of a format.

    layout   values [N, K]                          scale [N, K/G]   minimum [N, K/G]
    F32/F16/BF16   the numbers themselves           -                -
    S8       int8 q, [N, K/32, 32]                  f16 or f32       f16 or f32, or None
    U4       two 4-bit q a byte, [N, K/32, 16]      f16 or f32       f16 or f32, or None
    U5       fifth bits, then as U4, [N, K/32, 20]  f16 or f32       f16 or f32, or None
    U2       steps behind two-bit q, [N, K/32, 10]  f16              f16
    U3       steps behind 3-bit q, [N, K/32, 14]    f16              -
    K4       steps behind U4's q, [N, K/32, 18]     f16              f16
    K5       steps behind U5's q, [N, K/32, 22]     f16              f16
    K6       steps behind 6-bit q, [N, K/32, 26]    f16              -
    C4       a step behind 4-bit codes, [N, K/32, 17]  f16           -
    F8       E4M3, [N, K]                           f32              -
    NF4, FP4 two codes a byte, [N, K/2]             f32              -

S8:  w = scale * q, + minimum where there is one. G may be 16.
U4:  w = scale * q + minimum, 0 <= q <= 15; byte j of a block of 32 holds element j in its
low nibble and element j + 16 in its high one. minimum None means -8 * scale. In its place may be zero
[N, K/G] uint8: w = scale * (q - zero), 0 <= zero <= 127.
U5:  the same with 0 <= q <= 31, and -16 * scale: bit j of the first four bytes (little-endian) is the
fifth bit of element j.
U2:  w = scale * s * q + minimum * m. Bits 2i and 2i + 1 of byte j of a block's first eight are element
8i + j. Its last two bytes are the steps of its halves of 16: s in the low nibble, m in the high one.
U3:  w = scale * (s - 32) * (q - 4): the third bit of element 4i + j is bit i of byte 8 + j, s a whole step.
K4, K5:  w = scale * s * q + minimum * m: a block's last two bytes are s and m.
K6:  w = scale * s * (q - 32). Each half of 16 has eight bytes of low bits, element j in the low nibble of
byte j and j + 8 in its high one, and four of two high bits, those of element 4i + j at bits 2i and 2i + 1 of
byte j. The last two bytes are the halves' s, int8.
C4:  w = scale * s * number, of which kernels/coded.py, IQ4_CODE, has 16. Codes lie as U4's q do, s is int8.

G of U2 to C4 is 256 (of C4 32, too), of the others 32, of S8 and U4 also any multiple of it that divides K. A
scale times a step is exact in f32. Columns may lie in another order (act-order, in which GPTQ quantizes):
packed column j is column order[j] of W. x is rounded in blocks of that order.
F8, NF4, FP4:  w = scale * number (kernels/coded.py says which). G is 64; of F8 it is 128, the last group
of a row being what is left, or K where a row has one scale.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from enum import Enum

import ml_dtypes
import numpy as np
import numpy.typing as npt

from octavo.errors import CheckpointError
from octavo.kernels.coded import (
    F8_GROUP,
    FP4_CODE,
    IQ4_CODE,
    NF4_CODE,
    NF4_GROUP,
    f8_numbers,
    nibble_numbers,
)

BLOCK = 32
"""Elements of K that share a scale in activations, and in quantized layouts but for S8 by 16."""

Array = npt.NDArray[np.generic]
F32Array = npt.NDArray[np.float32]


class Layout(Enum):
    F32 = "f32"
    F16 = "f16"
    BF16 = "bf16"
    S8 = "s8"
    U4 = "u4"
    U5 = "u5"
    F8 = "f8"
    NF4 = "nf4"
    FP4 = "fp4"
    U2 = "u2"
    U3 = "u3"
    K4 = "k4"
    K5 = "k5"
    K6 = "k6"
    C4 = "c4"

    @property
    def quantized(self) -> bool:
        """Of integers in blocks of 32, which x meets rounded to int8 (ops.linear)."""
        return self in _BLOCK_BYTES

    @property
    def dtype(self) -> np.dtype[np.generic]:
        """Of its values."""
        return _DTYPES[self]

    @property
    def coded(self) -> bool:
        """Of codes of floats, which x meets as it is."""
        return self is Layout.F8 or self.nibbles

    @property
    def stepped(self) -> bool:
        """Of such integers with scales in two levels."""
        return self in _STEPPED

    @property
    def nibbles(self) -> bool:
        """Of such codes of four bits."""
        return self in CODES

    @property
    def block_bytes(self) -> int:
        """Of integers: bytes of the values of 32 columns."""
        return _BLOCK_BYTES[self]

    @property
    def step_minima(self) -> bool:
        """Whether there are minima in two levels, too."""
        return self in _STEPPED_MINIMA


_DTYPES: dict[Layout, np.dtype[np.generic]] = {
    Layout.F32: np.dtype(np.float32),
    Layout.F16: np.dtype(np.float16),
    Layout.BF16: np.dtype(ml_dtypes.bfloat16),
    Layout.S8: np.dtype(np.int8),
    Layout.U4: np.dtype(np.uint8),
    Layout.U5: np.dtype(np.uint8),
    Layout.F8: np.dtype(ml_dtypes.float8_e4m3fn),
    Layout.NF4: np.dtype(np.uint8),
    Layout.FP4: np.dtype(np.uint8),
    Layout.U2: np.dtype(np.uint8),
    Layout.U3: np.dtype(np.uint8),
    Layout.K4: np.dtype(np.uint8),
    Layout.K5: np.dtype(np.uint8),
    Layout.K6: np.dtype(np.uint8),
    Layout.C4: np.dtype(np.uint8),
}
CODES = {Layout.NF4: NF4_CODE, Layout.FP4: FP4_CODE}
_STEPPED = {Layout.U2: 10, Layout.U3: 14, Layout.K4: 18, Layout.K5: 22, Layout.K6: 26, Layout.C4: 17}
_BLOCK_BYTES = {Layout.S8: 32, Layout.U4: 16, Layout.U5: 20, **_STEPPED}
_STEPPED_MINIMA = (Layout.U2, Layout.K4, Layout.K5)
_EXACT_IN_ONE_LEVEL = (Layout.K4, Layout.K5, Layout.K6, Layout.C4)
"""Stepped layouts whose products have the bits that widened() gives them."""
STEPPED_GROUP = 256
"""Columns of such layouts that share a scale, which a step of each 16 or 32 is multiplied by."""
_TWO_BITS = np.arange(0, 8, 2, dtype=np.uint8)[:, None]
_ONE_BIT = np.arange(8, dtype=np.uint8)[:, None]
MOST_ZERO = 127
"""The largest zero point."""
_CENTRES = {Layout.U4: 8, Layout.U5: 16}


@dataclass(frozen=True, slots=True, eq=False)
class Weight:
    """A matrix W [N, K] of y = x W^T. Arrays may be strided views of a mapped file.

    Attributes:
        layout: how values, scale and minimum are to be read (the table above).
        shape: (N, K): output rows and input columns.
        release: gives the mapped pages behind the views back to the system; reading them again is allowed.
        zero: zero points of U4, in place of minima.
        order: [K] int32, the columns of W in the order in which they are packed; None: ascending.
    """

    layout: Layout
    shape: tuple[int, int]
    values: Array
    scale: Array | None = None
    minimum: Array | None = None
    release: Callable[[], None] | None = None
    zero: Array | None = None
    order: npt.NDArray[np.int32] | None = None

    def __post_init__(self) -> None:
        n, k = self.shape
        want: tuple[int, ...] = (n, k)
        if self.layout.quantized:
            want = self._check_blocks()
        elif self.layout.coded:
            want = self._check_codes()
        if self.values.shape != want or self.values.dtype != _DTYPES[self.layout]:
            raise CheckpointError(
                f"a {self.layout.value} weight of shape {self.shape} holds "
                f"{self.values.dtype} {self.values.shape}"
            )

    def _check_blocks(self) -> tuple[int, ...]:
        """The shape that values must have."""
        (n, k), name = self.shape, f"a {self.layout.value} weight of shape {self.shape}"
        if k % BLOCK:
            raise CheckpointError(
                f"a {self.layout.value} weight needs a multiple of {BLOCK} columns, not {k}"
            )
        scale = self.scale
        if scale is None or scale.ndim != 2 or scale.shape[0] != n or not self._divides(scale.shape[1]):
            raise CheckpointError(f"{name} lacks its scales")
        if self.minimum is not None and self.minimum.shape != scale.shape:
            raise CheckpointError(f"{name} lacks its minima")
        if self.zero is not None:
            fits = self.zero.shape == scale.shape and self.zero.dtype == np.uint8
            if self.layout is not Layout.U4 or self.minimum is not None or not fits:
                raise CheckpointError(f"{name} lacks its zero points")
        if self.layout.stepped:
            types = [table.dtype for table in (scale, self.minimum) if table is not None]
            if types != [np.float16] * (1 + self.layout.step_minima):
                raise CheckpointError(
                    f"{name} lacks its f16 scales or minima, or has minima that are not its own"
                )
        if self.order is not None and not np.array_equal(np.sort(self.order), np.arange(k)):
            raise CheckpointError(f"{name} has an order that does not name each column once")
        return (n, k // BLOCK, self.layout.block_bytes)

    def _divides(self, groups: int) -> bool:
        """Whether a row may have so many scales."""
        k = self.shape[1]
        if self.layout.stepped:
            return groups * STEPPED_GROUP == k or (self.layout is Layout.C4 and groups * BLOCK == k)
        if groups == k // 16:
            return self.layout is Layout.S8
        together = k // BLOCK if self.layout is Layout.U5 else groups
        return groups == together > 0 and k % (groups * BLOCK) == 0

    def _check_codes(self) -> tuple[int, ...]:
        """The shape that values must have."""
        n, k = self.shape
        if self.layout.nibbles and k % NF4_GROUP:
            name = f"an {self.layout.value} weight"
            raise CheckpointError(f"{name} needs a multiple of {NF4_GROUP} columns, not {k}")
        groups = {-(-k // F8_GROUP), 1} if self.layout is Layout.F8 else {k // NF4_GROUP}
        fits = self.scale is not None and self.scale.dtype == np.float32 and self.minimum is None
        if not fits or self.scale is None or self.scale.shape not in {(n, g) for g in groups}:
            raise CheckpointError(f"a {self.layout.value} weight of shape {self.shape} lacks its f32 scales")
        return (n, k // 2) if self.layout.nibbles else (n, k)

    @staticmethod
    def dense(array: Array, release: Callable[[], None] | None = None) -> Weight:
        """A weight of floats, [N, K] f32, f16 or bf16."""
        for layout in (Layout.F32, Layout.F16, Layout.BF16):
            if array.dtype == _DTYPES[layout] and array.ndim == 2:
                return Weight(layout, (array.shape[0], array.shape[1]), array, release=release)
        raise CheckpointError(f"no dense layout holds {array.dtype} of shape {array.shape}")

    def rows(self, index: npt.NDArray[np.int64] | slice) -> Weight:
        """The weight made of some output rows, in the order given (a copy where index is an array)."""
        values = self.values[index]
        return Weight(
            self.layout,
            (values.shape[0], self.shape[1]),
            values,
            None if self.scale is None else self.scale[index],
            None if self.minimum is None else self.minimum[index],
            self.release,
            None if self.zero is None else self.zero[index],
            self.order,
        )

    def columns(self, start: int, stop: int) -> Weight:
        """The weight made of columns start to stop - 1, whole groups; a row's one scale is every column's.

        Of K4 to C4 parts of a group are met in a layout of one level, where they have the same bits.

        Raises:
            CheckpointError: a group would be cut, or the columns have an order of their own.
        """
        n, k = self.shape
        if self.layout in _EXACT_IN_ONE_LEVEL and (start % self.group or (stop % self.group and stop != k)):
            return self.widened().columns(start, stop)
        if self.order is not None:
            raise CheckpointError("columns in an order of their own (act-order) cannot be cut apart")
        whole = self.scale is not None and self.scale.shape[1] == 1
        together = BLOCK if self.layout.quantized else 2 if self.layout.nibbles else 1
        unit = together if whole else max(self.group, together)
        if start % unit or (stop % unit and stop != k):
            raise CheckpointError(f"columns {start} to {stop} cut a group of {unit}")

        def cut(table: Array | None) -> Array | None:
            if table is None or whole:
                return table
            return table[:, start // self.group : -(-stop // self.group)]

        width = self.values.shape[1]
        values = self.values[:, start * width // k : stop * width // k]
        tables = cut(self.scale), cut(self.minimum), self.release, cut(self.zero)
        return Weight(self.layout, (n, stop - start), values, *tables)

    def dense_f32(self) -> Weight:
        """The same numbers as f32."""
        return Weight.dense(self.dequantize())

    def transpose(self) -> Weight:
        """[K, N]. Groups of quantized numbers lie along the other axis, so these are widened."""
        return Weight.dense((self.values if self.scale is None else self.dequantize()).T)

    @property
    def group(self) -> int:
        """Elements of K that share a scale; 1 for floats."""
        if self.layout is Layout.F8 and self.scale is not None and self.scale.shape[1] > 1:
            return F8_GROUP
        return 1 if self.scale is None else self.shape[1] // self.scale.shape[1]

    @property
    def nbytes(self) -> int:
        """Bytes of values, scales and minima: what streaming the weight once has to read."""
        held = (self.values, self.scale, self.minimum, self.zero, self.order)
        return sum(a.nbytes for a in held if a is not None)

    def dequantize(self) -> F32Array:
        """W as f32 [N, K]."""
        if self.layout.coded and self.scale is not None:
            if self.layout is Layout.F8:
                return f8_numbers(self.values, self.scale)
            return nibble_numbers(self.values, self.scale, self.code)
        if not self.layout.quantized:
            return np.ascontiguousarray(self.values, dtype=np.float32)
        packed = self.in_order()
        if self.order is None:
            return packed
        dense = np.empty_like(packed)
        dense[:, self.order] = packed
        return dense

    def in_order(self) -> F32Array:
        """W of an integer layout as f32 [N, K], its columns as they are packed."""
        assert self.scale is not None  # checked in __post_init__
        if self.layout.stepped:
            return self.widened().in_order()
        stored = self.values if self.layout is Layout.S8 else self._unsigned()
        q = stored.reshape(*self.scale.shape, self.group).astype(np.float32)
        if self.zero is not None:
            q -= self.zero.astype(np.float32)[:, :, None]
        elif self.minimum is None:
            q -= _CENTRES.get(self.layout, 0)
        q *= self.scale.astype(np.float32)[:, :, None]
        if self.minimum is not None:
            q += self.minimum.astype(np.float32)[:, :, None]
        return q.reshape(self.shape)

    def _unsigned(self) -> npt.NDArray[np.uint8]:
        """q of U4 or U5 [N, K/32, 32]."""
        packed = self.values.view(np.uint8)
        q = _both_nibbles(packed[:, :, -BLOCK // 2 :])
        if self.layout is Layout.U5:
            q |= np.unpackbits(packed[:, :, :4], axis=2, bitorder="little") << np.uint8(4)
        return q

    @property
    def code(self) -> F32Array:
        """What the 16 codes of NF4 or FP4 mean."""
        return CODES[self.layout]

    def widened(self) -> Weight:
        """U2, U3, K5, K6, C4 and U5 as S8, K4 as U4, the same numbers, for backends that read no others."""
        match self.layout:
            case Layout.U2 | Layout.U3:
                return self._without_steps()
            case Layout.K4:
                return self._without_steps_behind(Layout.U4)
            case Layout.K5:
                return self._without_steps_behind(Layout.U5).widened()
            case Layout.K6:
                return self._six_bits_in_eight()
            case Layout.C4:
                return self._codes_in_eight_bits()
            case Layout.U5:
                return self._five_bits_in_eight()
        return self

    def _five_bits_in_eight(self) -> Weight:
        """U5 as S8."""
        q = self._unsigned().view(np.int8)
        if self.minimum is None:
            q -= np.int8(_CENTRES[Layout.U5])
        return Weight(Layout.S8, self.shape, q, self.scale, self.minimum, self.release, order=self.order)

    def _without_steps(self) -> Weight:
        """U2 or U3 as S8 by 16, whose tables are f32: no product is rounded."""
        assert self.scale is not None  # checked in __post_init__
        n, k = self.shape
        packed = self.values.view(np.uint8)
        q = (packed[:, :, None, :8] >> _TWO_BITS & np.uint8(3)).reshape(n, k // BLOCK, BLOCK).view(np.int8)
        steps = packed[:, :, -2:]
        if self.minimum is not None:
            scale, minimum = _one_level(self.scale, steps & 15), _one_level(self.minimum, steps >> 4)
        else:
            third = (packed[:, :, None, 8:12] >> _ONE_BIT & np.uint8(1)).reshape(q.shape).view(np.int8)
            q = q + np.int8(4) * third - np.int8(4)
            scale, minimum = _one_level(self.scale, steps.astype(np.int16) - 32), None
        return Weight(Layout.S8, self.shape, q, scale, minimum, self.release, order=self.order)

    def _without_steps_behind(self, layout: Layout) -> Weight:
        """K4 as U4, K5 as U5, with f32 tables."""
        assert self.scale is not None  # checked in __post_init__
        assert self.minimum is not None
        packed = self.values.view(np.uint8)
        scale, minimum = (_one_level(t, packed[:, :, i]) for i, t in ((-2, self.scale), (-1, self.minimum)))
        return Weight(layout, self.shape, packed[:, :, :-2], scale, minimum, self.release, order=self.order)

    def _six_bits_in_eight(self) -> Weight:
        """K6 as S8 by 16."""
        assert self.scale is not None  # checked in __post_init__
        n, k = self.shape
        packed = self.values.view(np.uint8)
        halves = packed[:, :, :-2].reshape(n, k // 16, 12)
        high = halves[:, :, None, 8:] >> _TWO_BITS & np.uint8(3)
        q = _both_nibbles(halves[:, :, :8]) | high.reshape(n, k // 16, 16) << np.uint8(4)
        scale = _one_level(self.scale, packed[:, :, -2:].view(np.int8))
        numbers = (q.view(np.int8) - np.int8(32)).reshape(n, k // BLOCK, BLOCK)
        return Weight(Layout.S8, self.shape, numbers, scale, None, self.release, order=self.order)

    def _codes_in_eight_bits(self) -> Weight:
        """C4 as S8."""
        assert self.scale is not None  # checked in __post_init__
        packed = self.values.view(np.uint8)
        scale = _one_level(self.scale, packed[:, :, -1].view(np.int8))
        numbers = IQ4_CODE[_both_nibbles(packed[:, :, :-1])]
        return Weight(Layout.S8, self.shape, numbers, scale, None, self.release, order=self.order)

    def with_minima(self) -> Weight:
        """Zero points as f32 minima -scale * zero, exact for scales of up to 17 bits; others as they are."""
        if self.zero is None or self.scale is None:
            return self
        minimum = self.scale.astype(np.float32) * -self.zero.astype(np.float32)
        return replace(self, zero=None, minimum=minimum)


def _one_level(scale: Array, steps: Array) -> F32Array:
    """Tables [N, K/G] of f16 times whole steps, which divide G alike, as f32."""
    n, groups = scale.shape
    factors = steps.reshape(n, groups, -1).astype(np.float32)
    return (scale.astype(np.float32)[:, :, None] * factors).reshape(n, -1)


def _both_nibbles(packed: Array) -> npt.NDArray[np.uint8]:
    """Bytes [..., n] -> [..., 2 n], the low nibbles first."""
    q = packed.view(np.uint8)
    return np.concatenate([q & np.uint8(15), q >> np.uint8(4)], axis=-1)


def check_stack(weights: Sequence[Weight], gated: bool) -> None:
    """What any backend asks of weights that it packs as one.

    Raises:
        ValueError: gated, and not two weights of one shape.
        CheckpointError: the weights differ in width.
    """
    if gated and (len(weights) != 2 or weights[0].shape != weights[1].shape):
        raise ValueError("a gated weight is made of two weights of one shape, gate and up")
    if len({w.shape[1] for w in weights}) != 1:
        raise CheckpointError("only weights of one width can be stacked")


def alike(gate: Weight, up: Weight) -> bool:
    """Whether the halves of a gated weight can lie row beside row; those that cannot are met as f32."""
    if gate.order is None or up.order is None:
        same = gate.order is up.order
    else:
        same = np.array_equal(gate.order, up.order)
    minima = gate.layout is not Layout.S8 or (gate.minimum is None) == (up.minimum is None)
    return gate.layout is up.layout and gate.group == up.group and minima and same


def release(weights: Sequence[Weight]) -> None:
    """Give the mapped pages behind weights back, once their bytes were taken."""
    for w in weights:
        if w.release is not None:
            w.release()
