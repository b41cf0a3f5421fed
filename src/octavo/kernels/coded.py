"""Weights whose numbers are codes of floats: F8 (E4M3), NF4 and FP4. x meets them as it is, never rounded.

F8     one byte a number, OCP FP8 E4M3 (Micikevicius et al. 2022): no infinities, NaN is 0x7f and 0xff
NF4    a nibble a number: one of 16 quantiles of a normal distribution (Dettmers et al. 2023, QLoRA);
       the first number of a byte in its high nibble, as bitsandbytes packs them
FP4    the same with bitsandbytes' floats of a sign, two bits of exponent and one of mantissa, over 12
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

F32Array = npt.NDArray[np.float32]

F8_GROUP = 128
"""Columns that share an F8 scale, where a row has more than one."""
NF4_GROUP = 64
"""Columns that share an NF4 or FP4 scale: bitsandbytes' default, QLoRA's choice."""

NF4_CODE = np.array(
    [
        -1.0, -0.6961928009986877, -0.5250730514526367, -0.39491748809814453,
        -0.28444138169288635, -0.18477343022823334, -0.09105003625154495, 0.0,
        0.07958029955625534, 0.16093020141124725, 0.24611230194568634, 0.33791524171829224,
        0.44070982933044434, 0.5626170039176941, 0.7229568362236023, 1.0,
    ],
    np.float32,
)  # fmt: skip
"""QLoRA, appendix E."""

_FP4 = np.array([0, 0.0625, 8, 12, 4, 6, 2, 3], np.float32) / np.float32(12)
FP4_CODE = np.concatenate([_FP4, -_FP4])
"""bitsandbytes, functional.py, get_4bit_type."""

IQ4_CODE = np.array([-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113], np.int8)
"""Whole numbers that C4's four bits name: llama.cpp, ggml-common.h, kvalues_iq4nl. x meets them rounded."""

_BYTES = np.arange(256)
_EXPONENT, _MANTISSA = _BYTES >> 3 & 15, _BYTES & 7
_F8 = np.where(_EXPONENT == 0, _MANTISSA * 2.0**-9, (8 + _MANTISSA) * 2.0 ** (_EXPONENT - 10.0))
_F8[127], _F8[128:] = np.nan, -_F8[:128]
_F8[255] = np.nan
_F8 = _F8.astype(np.float32)
"""The number of each byte of E4M3."""


def f8_numbers(values: npt.NDArray[np.generic], scale: npt.NDArray[np.generic]) -> F32Array:
    """values [N, K] of E4M3, scale [N, 1] or [N, ceil(K / 128)] -> [N, K]."""
    wide = scale.astype(np.float32)
    if wide.shape[1] > 1:
        wide = np.repeat(wide, F8_GROUP, axis=1)[:, : values.shape[1]]
    return np.asarray(_F8[values.view(np.uint8)] * wide, np.float32)


def nibble_numbers(
    values: npt.NDArray[np.generic], scale: npt.NDArray[np.generic], code: F32Array
) -> F32Array:
    """values [N, K / 2] of two codes a byte, scale [N, K / 64] -> [N, K]."""
    pairs = np.stack([code[_BYTES >> 4], code[_BYTES & 15]], axis=1)
    codes = pairs[values].reshape(*scale.shape, NF4_GROUP)
    return np.asarray(codes * scale.astype(np.float32)[:, :, None], np.float32).reshape(len(values), -1)
