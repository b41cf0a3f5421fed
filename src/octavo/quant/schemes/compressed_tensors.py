"""compressed-tensors: FP8 and INT8 weights with scales of a tensor, a row or a block (llm-compressor).

    X.weight [N, K] F8_E4M3 or I8     w = number * scale
    X.weight_scale                    one number, [N, 1], or [N / 128, K / 128]
    X.input_scale                     of activations: not needed here

INT8 becomes S8 without loss. Source: compressed-tensors, quantization/quant_args.py and compressors/.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from octavo.errors import CheckpointError
from octavo.kernels.weight import BLOCK, Layout, Weight
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

_FORMATS = ("float-quantized", "int-quantized", "naive-quantized")


def open_scheme(settings: Settings) -> Scheme:
    groups: list[dict[str, Any]] = list((settings.get("config_groups") or {}).values())
    for group in groups:
        written = group.get("format") or settings.get("format")
        weights = group.get("weights") or {}
        if written not in _FORMATS:
            raise CheckpointError(
                f"compressed-tensors of format {written!r} are not supported; {', '.join(_FORMATS)} are"
            )
        if weights.get("num_bits") != 8 or weights.get("strategy") not in ("tensor", "channel", "block"):
            raise CheckpointError(
                f"compressed-tensors weights of {weights.get('num_bits')} bits by {weights.get('strategy')} "
                "are not supported; 8 bits by tensor, channel or block are"
            )
        if not weights.get("symmetric", True):
            raise CheckpointError("compressed-tensors weights with zero points are not supported")
    blocks = {tuple(b) for g in groups if (b := g["weights"].get("block_structure"))}
    if len(blocks) > 1:
        raise CheckpointError("compressed-tensors of several block structures are not supported")
    return _CompressedTensors(check_block([*blocks.pop()]) if blocks else None)


def outlines(settings: Settings) -> Outlines:
    weights = [group.get("weights") or {} for group in (settings.get("config_groups") or {}).values()]
    blocks = [block for w in weights if (block := w.get("block_structure"))]
    left_out = settings.get("ignore") or ()
    if any(w.get("type") == "int" for w in weights):
        return Outlines(Layout.S8, lambda k: k // BLOCK, left_out)
    return Outlines(Layout.F8, lambda k: -(-k // blocks[0][1]) if blocks else 1, left_out)


@dataclass(frozen=True, slots=True)
class _CompressedTensors:
    block: tuple[int, int] | None

    def __call__(self, name: str, shape: tuple[int, int], take: Take) -> Weight | None:
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
        return Weight(
            Layout.S8, shape, values, np.repeat(numbers, k // BLOCK, axis=1), release=tensor.release
        )
