"""exp and log, in single steps that are rounded alike everywhere: C++ and NumPy give the same bits.

Libraries differ in the last bit, from one machine to the next and with the length of an array. Each
line here is one IEEE operation; nothing is fused. csrc/isa/sample.inl and csrc/sample_draw.cpp repeat
them in the same order, so a native draw and this one are equal, not just alike.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

F32 = npt.NDArray[np.float32]
F64 = npt.NDArray[np.float64]

LOWEST = np.float32(-87.33)
"""Below it exp_negative is 0: f32 has only denormals left."""

_LOG2_E = np.float32(1.44269504)
_LN2_HIGH, _LN2_LOW = np.float32(0.693145752), np.float32(1.42860677e-6)  # high: times n <= 127 is exact
_EXP = tuple(
    map(np.float32, (1.393366939e-3, 8.363192819e-3, 4.166646474e-2, 1.666657690e-1, 5.000000013e-1))
)

_SQRT_HALF = 0.7071067811865476
_LN2 = 0.6931471803691238, 1.9082149292705877e-10  # high: times an exponent is exact


def exp_negative(x: F32) -> F32:
    """e^x in f32 for x <= 0 (or -inf), within 2 ulp; 1 at 0, and 0 below LOWEST.

    x = n ln 2 + r with |r| <= ln 2 / 2; e^r by a polynomial, times 2^n through its exponent bits.
    """
    bounded = np.maximum(x, LOWEST)
    n = np.rint(bounded * _LOG2_E)
    r = bounded - n * _LN2_HIGH
    r -= n * _LN2_LOW
    p = r * _EXP[0]
    for coefficient in _EXP[1:-1]:
        p += coefficient
        p *= r
    p += _EXP[-1]
    p *= r * r
    p += r
    p += np.float32(1)
    p *= ((n.astype(np.int32) + np.int32(127)) << np.int32(23)).view(np.float32)
    p[x < LOWEST] = 0
    return p


def log(x: F64) -> F64:
    """Natural logarithm in f64 of normal numbers > 0, within 3 ulp.

    x = 2^e m with sqrt(1/2) <= m < sqrt(2); log m = 2 atanh(s), s = (m - 1) / (m + 1), by its series.
    """
    m, e = np.frexp(x)
    small = m < _SQRT_HALF
    m = np.where(small, m + m, m)
    e = (e - small).astype(np.float64)
    s = (m - 1.0) / (m + 1.0)
    z = s * s
    p = z * (2 / 21)
    for odd in range(19, 1, -2):
        p += 2 / odd
        p *= z
    p += 2.0
    p *= s
    result: F64 = e * _LN2[0] + (p + e * _LN2[1])
    return result
