"""awq: integers of 4 bits with scales and zero points of groups of columns (AutoAWQ's GEMM packing).

    X.qweight [K, N / 8] I32      nibble i of a word is row 8 w + (0, 2, 4, 6, 1, 3, 5, 7)[i] of W
    X.qzeros [K / G, N / 8] I32   zero points, likewise
    X.scales [K / G, N]           w = scale (q - zero)

Source: Lin et al. 2023 (AWQ); AutoAWQ, modules/linear/gemm.py and utils/packing_utils.py.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from octavo.errors import CheckpointError
from octavo.kernels.outline import Outline
from octavo.kernels.weight import Weight
from octavo.quant.grid import Rounded
from octavo.quant.packing import (
    U8,
    check_groups,
    int32_matrix,
    integer_outline,
    integer_weight,
    narrowed,
    packed,
    scales_of,
    unpacked,
    word_count,
)
from octavo.quant.scheme import Outlines, Scheme, Settings, Take, required
from octavo.quant.writer import Choice, Tensors

_BITS = 4
_PLACES = np.array([0, 4, 1, 5, 2, 6, 3, 7])
"""The nibble of a word that holds each of its eight numbers."""


def open_scheme(settings: Settings) -> Scheme:
    return _open(settings)


def outlines(settings: Settings) -> Outlines:
    scheme, left_out = _open(settings), settings.get("modules_to_not_convert") or ["lm_head"]
    return Outlines(lambda shape: scheme.form(shape), left_out)


def _open(settings: Settings) -> _Awq:
    bits = settings.get("bits", settings.get("w_bit"))
    group = settings.get("group_size", settings.get("q_group_size", 128))
    version = str(settings.get("version", "gemm")).lower()
    if bits != _BITS:
        raise CheckpointError(f"AWQ weights of {bits} bits are not supported; 4 are")
    if version != "gemm":
        raise CheckpointError(f"AWQ's packing {version!r} is not supported; gemm is")
    if not isinstance(group, int):
        raise CheckpointError(f"AWQ's group_size is a number of columns or -1, not {group!r}")
    return _Awq(group, bool(settings.get("zero_point", True)))


def settings_of(choice: Choice, left_out: Sequence[str]) -> dict[str, Any]:
    """The quantization_config of what stored() gives."""
    return {
        "quant_method": "awq",
        "bits": choice.bits,
        "group_size": choice.group,
        "zero_point": True,
        "version": "gemm",
        "modules_to_not_convert": list(left_out),
    }


def stored(stem: str, rounded: Rounded) -> Tensors:
    """The tensors of a matrix, with zero points.

    Raises:
        CheckpointError: its rows do not fill whole words.
    """
    return {
        f"{stem}.qweight": _placed(rounded.q),
        f"{stem}.qzeros": _placed(rounded.zero),
        f"{stem}.scales": np.ascontiguousarray(rounded.scale.T.astype(np.float16)),
    }


def _placed(numbers: npt.NDArray[np.integer[Any]]) -> npt.NDArray[np.int32]:
    """Numbers [N, K] -> words [K, N / 8], each of which has its eight in _PLACES."""
    n, k = numbers.shape
    word_count(n, _BITS)
    turned = numbers.reshape(n // 8, 8, k)[:, np.argsort(_PLACES)]
    return np.ascontiguousarray(packed(turned.reshape(n, k), _BITS).T)


@dataclass(frozen=True, slots=True)
class _Awq:
    """
    Attributes:
        group: columns that share a scale, or -1: all.
        zeros: whether there are zero points.
    """

    group: int
    zeros: bool

    def __call__(self, name: str, shape: tuple[int, int], take: Take) -> Weight | None:
        stem, (n, k) = name.removesuffix(".weight"), shape
        tensor = take(f"{stem}.qweight")
        if tensor is None:
            return None
        groups, width = check_groups(tensor.name, k, self.group), word_count(n, _BITS)
        q = _rows(int32_matrix(tensor, (k, width)))
        scales = required(f"{stem}.scales", take)
        scale = scales_of(scales, (groups, n), self.group)
        zero = np.full((1, 1), 8)
        if self.zeros:
            zero = _rows(int32_matrix(required(f"{stem}.qzeros", take), (groups, width))).astype(np.int64)
        else:
            take(f"{stem}.qzeros")
        tensor.release()
        return integer_weight(q, _BITS, narrowed(scales.name, scale.T), zero, None)

    def form(self, shape: tuple[int, int]) -> Outline:
        groups = shape[1] // (self.group if self.group > 0 else shape[1])
        return integer_outline(shape, _BITS, groups, wide=False, zeros=self.zeros)

    def outline(self, name: str, shape: tuple[int, int], take: Take) -> Outline | None:
        stem = name.removesuffix(".weight")
        if take(f"{stem}.qweight") is None:
            return None
        take(f"{stem}.scales"), take(f"{stem}.qzeros")
        check_groups(f"{stem}.qweight", shape[1], self.group)
        return self.form(shape)


def _rows(words: npt.NDArray[np.uint32]) -> U8:
    """Words [K, N / 8] -> numbers [N, K]."""
    numbers = unpacked(np.ascontiguousarray(words.T), _BITS).reshape(words.shape[1], 8, -1)
    return np.ascontiguousarray(numbers[:, _PLACES].reshape(-1, words.shape[0]))
