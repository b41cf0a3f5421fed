"""compressed-tensors: FP8 and integers with scales of a tensor, a row, a block or a group (llm-compressor).

    X.weight [N, K] F8_E4M3 or I8         w = number * scale
    X.weight_packed [N, K bits / 32] I32  integers of 4 or 8 bits, each row a stream: w = scale (q - zero)
    X.weight_shape [2] I64                N and K of the same
    X.weight_scale                        one number, [N, 1], [N / 128, K / 128], or [N, K / G]
    X.weight_zero_point [N bits / 32, K / G] I32   each column a stream; absent where symmetric
    X.weight_g_idx [K] I32                each column's group, where actorder
    X.input_scale                         of activations: not needed here

q and zero are stored with 2^(bits - 1) added. Source: compressed-tensors, quantization/quant_args.py and
compressors/quantized_compressors/pack_quantized.py.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from octavo.errors import CheckpointError
from octavo.kernels.outline import Outline, outline_of
from octavo.kernels.weight import BLOCK, Layout, Weight
from octavo.quant.packing import (
    Integers,
    check_groups,
    int32_matrix,
    integer_outline,
    integer_weight,
    narrowed,
    order_of,
    scales_of,
    unpacked,
    word_count,
)
from octavo.quant.scheme import (
    Outlines,
    Scheme,
    Settings,
    Take,
    by_rows,
    check_block,
    f8,
    matrix,
    required,
    table,
)

_PACKED = "pack-quantized"
_FORMATS = ("float-quantized", "int-quantized", "naive-quantized", _PACKED)
_STRATEGIES = {False: ("tensor", "channel", "block"), True: ("channel", "group")}
"""By whether numbers are packed into words."""


def also_called(settings: Settings) -> tuple[str, ...]:
    groups = (settings.get("config_groups") or {}).values()
    return ("fp8",) if any((group.get("weights") or {}).get("type") == "float" for group in groups) else ()


def open_scheme(settings: Settings) -> Scheme:
    groups: list[dict[str, Any]] = list((settings.get("config_groups") or {}).values())
    packed = {_check(group, settings.get("format")) for group in groups}
    if len(packed) > 1:
        raise CheckpointError(
            "compressed-tensors of several numbers of bits or sizes of groups are not supported"
        )
    blocks = {tuple(b) for g in groups if (b := g["weights"].get("block_structure"))}
    if len(blocks) > 1:
        raise CheckpointError("compressed-tensors of several block structures are not supported")
    return _CompressedTensors(
        check_block([*blocks.pop()]) if blocks else None, *(packed.pop() if packed else ())
    )


def _check(group: dict[str, Any], written: Any) -> tuple[int, int, bool]:
    """(bits, columns of a group or -1, whether symmetric) of packed integers; zeros of others.

    Raises:
        CheckpointError: such weights are not covered.
    """
    written = group.get("format") or written
    weights: dict[str, Any] = group.get("weights") or {}
    bits, strategy = weights.get("num_bits"), weights.get("strategy")
    symmetric = bool(weights.get("symmetric", True))
    if written not in _FORMATS:
        raise CheckpointError(
            f"compressed-tensors of format {written!r} are not supported; {', '.join(_FORMATS)} are"
        )
    packed = written == _PACKED
    if bits not in ((4, 8) if packed else (8,)) or strategy not in _STRATEGIES[packed]:
        raise CheckpointError(
            f"compressed-tensors weights of {bits} bits by {strategy} are not supported; 8 bits by tensor, "
            "channel or block and, packed, 4 and 8 bits by channel or group are"
        )
    if not packed and not symmetric:
        raise CheckpointError(
            "compressed-tensors weights with zero points are supported in pack-quantized alone"
        )
    if not packed:
        return 0, 0, True
    return (
        int(weights["num_bits"]),
        int(weights.get("group_size") or 0) if strategy == "group" else -1,
        symmetric,
    )


def fp8_settings(left_out: Sequence[str]) -> dict[str, Any]:
    """The quantization_config of E4M3 with one scale a row, activations being rounded token by token."""
    numbers = {"num_bits": 8, "type": "float", "symmetric": True}
    group = {
        "targets": ["Linear"],
        "weights": {**numbers, "strategy": "channel", "dynamic": False},
        "input_activations": {**numbers, "strategy": "token", "dynamic": True},
        "output_activations": None,
    }
    return {
        "quant_method": "compressed-tensors",
        "format": "float-quantized",
        "quantization_status": "compressed",
        "config_groups": {"group_0": group},
        "ignore": list(left_out),
    }


def outlines(settings: Settings) -> Outlines:
    scheme = open_scheme(settings)
    weights = [group.get("weights") or {} for group in (settings.get("config_groups") or {}).values()]
    blocks = [block for w in weights if (block := w.get("block_structure"))]
    left_out = settings.get("ignore") or ()
    if isinstance(scheme, _CompressedTensors) and scheme.bits:
        return Outlines(scheme.form, left_out)
    if any(w.get("type") == "int" for w in weights):
        return Outlines(lambda s: Outline.coded(Layout.S8, s, 1), left_out)
    columns = blocks[0][1] if blocks else None
    return Outlines(lambda s: Outline.coded(Layout.F8, s, -(-s[1] // (columns or s[1]))), left_out)


@dataclass(frozen=True, slots=True)
class _CompressedTensors:
    """
    Attributes:
        block: rows and columns that share a scale, of FP8.
        bits: of packed integers; 0: none are.
        group: columns of them that share a scale, or -1: all.
    """

    block: tuple[int, int] | None
    bits: int = 0
    group: int = 0
    symmetric: bool = True

    def __call__(self, name: str, shape: tuple[int, int], take: Take) -> Weight | None:
        if self.bits:
            return self._packed(name, shape, take)
        tensor = take(name)
        if tensor is None or tensor.format not in ("F8_E4M3", "I8"):
            return None
        stem = name.removesuffix(".weight")
        take(f"{stem}.input_scale")
        scale = required(f"{name}_scale", take)
        numbers = by_rows(scale.name, table(scale), shape, self.block)
        if tensor.format == "F8_E4M3":
            return f8(tensor, numbers, shape)
        n, k = shape
        if numbers.shape[1] > 1 or k % BLOCK:
            raise CheckpointError(
                f"tensor {name!r}: INT8 needs a scale a row and a multiple of {BLOCK} columns"
            )
        values = matrix(tensor, np.int8, shape).reshape(n, k // BLOCK, BLOCK)
        return Weight(Layout.S8, shape, values, narrowed(scale.name, numbers), release=tensor.release)

    def _packed(self, name: str, shape: tuple[int, int], take: Take) -> Weight | None:
        tensor = take(f"{name}_packed")
        if tensor is None:
            return None
        (n, k), bits = shape, self.bits
        groups = check_groups(tensor.name, k, self.group)
        take(f"{name}_shape")  # the model says it
        packed = int32_matrix(tensor, (n, word_count(k, bits)))
        q = np.ascontiguousarray(unpacked(np.ascontiguousarray(packed.T), bits).T)
        stored = required(f"{name}_scale", take)
        scale = scales_of(stored, (n, groups), self.group)
        zero: Integers = np.full((1, 1), 2 ** (bits - 1))
        if not self.symmetric:
            points = int32_matrix(required(f"{name}_zero_point", take), (word_count(n, bits), groups))
            zero = unpacked(points, bits).astype(np.int64)
        g_idx, order = take(f"{name}_g_idx"), None
        if g_idx is not None:
            order = order_of(g_idx, k, groups)
        tensor.release()
        return integer_weight(q, bits, narrowed(stored.name, scale), zero, order)

    def form(self, shape: tuple[int, int]) -> Outline:
        groups = shape[1] // (self.group if self.group > 0 else shape[1])
        return integer_outline(shape, self.bits, groups, wide=False, zeros=not self.symmetric)

    def outline(self, name: str, shape: tuple[int, int], take: Take) -> Outline | None:
        if not self.bits:
            found = self(name, shape, take)
            return None if found is None else outline_of(found)
        if take(f"{name}_packed") is None:
            return None
        for part in ("scale", "shape", "zero_point", "g_idx"):
            take(f"{name}_{part}")
        check_groups(f"{name}_packed", shape[1], self.group)
        return self.form(shape)
