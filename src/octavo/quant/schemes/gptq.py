"""gptq: integers of 2, 3, 4 or 8 bits with scales and zero points of groups of columns (AutoGPTQ, GPTQModel).

    X.qweight [K bits / 32, N] I32     each column's numbers as one stream, the first in the lowest bits
    X.qzeros [K / G, N bits / 32] I32  zero points, likewise along a row; less 1 but in gptq_v2
    X.scales [K / G, N]                w = scale (q - zero)
    X.g_idx [K] I32                    each column's group; out of order where desc_act (act-order)

Numbers of 2 and 3 bits widen to 4. Source: Frantar et al. 2023 (GPTQ); AutoGPTQ, qlinear_cuda.py; GPTQModel,
nn_modules/qlinear.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from octavo.errors import CheckpointError
from octavo.kernels.outline import Outline
from octavo.kernels.weight import Weight
from octavo.quant.grid import Rounded
from octavo.quant.packing import (
    check_groups,
    int32_matrix,
    integer_outline,
    integer_weight,
    narrowed,
    order_of,
    packed,
    scales_of,
    unpacked,
    word_count,
)
from octavo.quant.scheme import Outlines, Scheme, Settings, Take, required
from octavo.quant.writer import Choice, Tensors

_BITS = (2, 3, 4, 8)
_FORMATS = {"gptq": 1, "gptq_v2": 0}
"""What to add to stored zero points."""


def open_scheme(settings: Settings) -> Scheme:
    return _open(settings)


def outlines(settings: Settings) -> Outlines:
    scheme = _open(settings)
    left_out = () if settings.get("lm_head") else ("lm_head",)
    return Outlines(scheme.form, left_out)


def _open(settings: Settings) -> _Gptq:
    bits, group = settings.get("bits"), settings.get("group_size", -1)
    written = settings.get("checkpoint_format") or "gptq"
    if bits not in _BITS:
        raise CheckpointError(f"GPTQ weights of {bits} bits are not supported; 2, 3, 4 and 8 are")
    if written not in _FORMATS:
        raise CheckpointError(f"GPTQ's checkpoint_format {written!r} is not supported; gptq and gptq_v2 are")
    if settings.get("dynamic"):
        raise CheckpointError("GPTQ settings of single modules (dynamic) are not supported")
    if not isinstance(group, int):
        raise CheckpointError(f"GPTQ's group_size is a number of columns or -1, not {group!r}")
    return _Gptq(bits, group, _FORMATS[written], bool(settings.get("sym", True)))


LOWEST_ZERO = 1
"""Of those that are written: version 1 stores zero points less one."""
STORED_BITS = {2: 16, 3: 32, 4: 8, 8: 4}
"""Bits -> how many zero points fill words."""


def settings_of(choice: Choice, act_order: bool) -> dict[str, Any]:
    """The quantization_config of what stored() gives."""
    return {
        "quant_method": "gptq",
        "bits": choice.bits,
        "group_size": choice.group,
        "desc_act": act_order,
        "sym": choice.symmetric,
        "damp_percent": choice.damp,
        "true_sequential": True,
        "lm_head": False,
        "checkpoint_format": "gptq",
    }


def stored(stem: str, rounded: Rounded, bits: int) -> Tensors:
    """The tensors of a matrix, as version 1 of the format has them. Zero points are at least 1.

    Raises:
        CheckpointError: its rows or columns do not fill whole words.
    """
    return {
        f"{stem}.qweight": packed(rounded.q.T, bits),
        f"{stem}.qzeros": np.ascontiguousarray(packed(rounded.zero - 1, bits).T),
        f"{stem}.scales": np.ascontiguousarray(rounded.scale.T.astype(np.float16)),
        f"{stem}.g_idx": rounded.g_idx,
    }


@dataclass(frozen=True, slots=True)
class _Gptq:
    """
    Attributes:
        group: columns that share a scale, or -1: all.
        more: what is added to stored zero points.
        symmetric: all zero points are the centre, says the config; the numbers are read all the same.
    """

    bits: int
    group: int
    more: int
    symmetric: bool

    def __call__(self, name: str, shape: tuple[int, int], take: Take) -> Weight | None:
        stem, (n, k) = name.removesuffix(".weight"), shape
        tensor = take(f"{stem}.qweight")
        if tensor is None:
            return None
        words = int32_matrix(tensor, (word_count(k, self.bits), n))
        groups = check_groups(tensor.name, k, self.group)
        scales = required(f"{stem}.scales", take)
        scale = scales_of(scales, (groups, n), self.group)
        zeros = int32_matrix(required(f"{stem}.qzeros", take), (groups, word_count(n, self.bits)))
        zero = unpacked(np.ascontiguousarray(zeros.T), self.bits).astype(np.int64) + self.more  # [N, K/G]
        g_idx = take(f"{stem}.g_idx")
        order = None if g_idx is None else order_of(g_idx, k, groups)
        q = np.ascontiguousarray(unpacked(words, self.bits).T)
        tensor.release()
        return integer_weight(q, self.bits, narrowed(scales.name, scale.T), zero, order)

    def form(self, shape: tuple[int, int]) -> Outline:
        groups = shape[1] // (self.group if self.group > 0 else shape[1])
        return integer_outline(shape, self.bits, groups, wide=False, zeros=not self.symmetric)

    def outline(self, name: str, shape: tuple[int, int], take: Take) -> Outline | None:
        stem = name.removesuffix(".weight")
        if take(f"{stem}.qweight") is None:
            return None
        for part in ("scales", "qzeros", "g_idx"):
            take(f"{stem}.{part}")
        check_groups(f"{stem}.qweight", shape[1], self.group)
        return self.form(shape)
