"""bitsandbytes: NF4 in blocks of 64 numbers, whose scales may be quantized again (QLoRA).

    X.weight [N K / 2, 1] U8                     two codes a byte, the first in the high nibble
    X.weight.absmax                              f32 a block; U8 codes where nested
    X.weight.quant_map [16]                      what the codes mean
    X.weight.nested_absmax, nested_quant_map     of blocks of 256 scales: scale = map[code] absmax + offset
    X.weight.quant_state.bitsandbytes__nf4       JSON: shape, blocksize, nested_offset ...

Blocks run through the rows end to end, so rows are of whole blocks. Source: bitsandbytes, functional.py,
QuantState.as_dict and dequantize_4bit; Dettmers et al. 2023, section 3.
"""

from __future__ import annotations

import json
from typing import Any

import numpy as np

from octavo.checkpoints.base import StoredTensor
from octavo.errors import CheckpointError
from octavo.kernels.coded import NF4_CODE, NF4_GROUP
from octavo.kernels.weight import F32Array, Layout, Weight
from octavo.quant.scheme import Outlines, Scheme, Settings, Take, required, table

_STATE = "quant_state.bitsandbytes__"


def open_scheme(settings: Settings) -> Scheme:
    if settings.get("load_in_8bit") or settings.get("_load_in_8bit"):
        raise CheckpointError("bitsandbytes' LLM.int8 is not supported; NF4 is")
    kind = settings.get("bnb_4bit_quant_type", "nf4")
    if kind != "nf4":
        raise CheckpointError(f"bitsandbytes' {kind} is not supported; nf4 is")
    return _nf4


def outlines(settings: Settings) -> Outlines:
    left_out = settings.get("llm_int8_skip_modules") or ["lm_head"]
    return Outlines(Layout.NF4, lambda k: k // NF4_GROUP, left_out)


def _nf4(name: str, shape: tuple[int, int], take: Take) -> Weight | None:
    stored = take(f"{name}.{_STATE}nf4")
    if stored is None:
        if take(f"{name}.{_STATE}fp4") is not None:
            raise CheckpointError(f"tensor {name!r} is of bitsandbytes' fp4, which is not supported; nf4 is")
        return None
    state = _state(stored)
    tensor = required(name, take)
    n, k = shape
    if list(state.get("shape", [])) != [n, k]:
        raise CheckpointError(f"tensor {name!r} has shape {state.get('shape')}, expected {list(shape)}")
    if state.get("blocksize") != NF4_GROUP or k % NF4_GROUP:
        raise CheckpointError(
            f"tensor {name!r} {list(shape)} in blocks of {state.get('blocksize')} is not supported; rows of "
            f"whole blocks of {NF4_GROUP} are"
        )
    if tensor.format != "U8" or tensor.data.nbytes != n * k // 2:
        raise CheckpointError(
            f"tensor {name!r}: {tensor.data.nbytes} bytes of {tensor.format} are not NF4 {n}x{k}"
        )
    if not np.array_equal(table(required(f"{name}.quant_map", take)).ravel(), NF4_CODE):
        raise CheckpointError(f"tensor {name!r} has a quant_map that is not NF4's")
    scale = _scales(name, state, take)
    if scale.size != n * k // NF4_GROUP:
        raise CheckpointError(f"tensor {name!r} has {scale.size} scales, expected {n * k // NF4_GROUP}")
    values = tensor.data.reshape(n, k // 2)
    return Weight(Layout.NF4, shape, values, scale.reshape(n, -1), release=tensor.release)


def _state(tensor: StoredTensor) -> dict[str, Any]:
    try:
        state = json.loads(tensor.data.tobytes())
    except ValueError:
        state = None
    if not isinstance(state, dict):
        raise CheckpointError(f"tensor {tensor.name!r} is not a JSON object")
    return state


def _scales(name: str, state: dict[str, Any], take: Take) -> F32Array:
    """One f32 a block."""
    absmax = required(f"{name}.absmax", take)
    if absmax.format != "U8":
        return table(absmax).ravel()
    outer = table(required(f"{name}.nested_absmax", take)).ravel()
    code = table(required(f"{name}.nested_quant_map", take)).ravel()
    size, offset = state.get("nested_blocksize"), state.get("nested_offset")
    if not isinstance(size, int) or size < 1 or not isinstance(offset, float | int) or code.size != 256:
        raise CheckpointError(f"tensor {name!r} lacks nested_blocksize, nested_offset or nested_quant_map")
    if outer.size != -(-absmax.data.size // size):
        raise CheckpointError(f"tensor {name!r} has {outer.size} nested scales of blocks of {size}")
    return np.asarray(
        code[absmax.data] * np.repeat(outer, size)[: absmax.data.size] + np.float32(offset), np.float32
    )
