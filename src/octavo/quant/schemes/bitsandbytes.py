"""bitsandbytes: NF4 and FP4 in blocks of 64 numbers, with scales that may be quantized too (QLoRA); LLM.int8.

    X.weight [N K / 2, 1] U8                     two codes a byte, the first in the high nibble
    X.weight.absmax                              f32 a block; U8 codes where nested
    X.weight.quant_map [16]                      what the codes mean
    X.weight.nested_absmax, nested_quant_map     of blocks of 256 scales: scale = map[code] absmax + offset
    X.weight.quant_state.bitsandbytes__nf4       JSON: shape, blocksize, nested_offset ... (or __fp4)

    X.weight [N, K] I8, X.SCB [N]                LLM.int8: w = q SCB / 127

Blocks run through the rows end to end, so rows are of whole blocks. x meets int8 as it meets all integers,
rounded in blocks of 32: LLM.int8's own rule, columns in which some token of the batch exceeds 6 in 16 bits,
would make a row's numbers depend on its neighbours. Source: bitsandbytes, functional.py, QuantState.as_dict
and dequantize_4bit; Dettmers et al. 2023, section 3; Dettmers et al. 2022 (LLM.int8), section 3.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from functools import partial
from typing import Any

import numpy as np

from octavo.checkpoints.base import StoredTensor
from octavo.errors import CheckpointError
from octavo.kernels.coded import NF4_GROUP
from octavo.kernels.outline import Outline
from octavo.kernels.weight import BLOCK, CODES, F32Array, Layout, Weight
from octavo.quant.scheme import (
    Outlines,
    Scheme,
    Settings,
    Take,
    by_rows,
    check_finite,
    matrix,
    required,
    table,
)
from octavo.quant.writer import Choice, Tensors

_STATE = "quant_state.bitsandbytes__"


_KINDS = {"nf4": Layout.NF4, "fp4": Layout.FP4}


def open_scheme(settings: Settings) -> Scheme:
    if _eight(settings):
        return _int8
    return partial(_nibbles, _layout(settings))


def also_called(settings: Settings) -> tuple[str, ...]:
    if _eight(settings):
        return ("int8",)
    kind = str(settings.get("bnb_4bit_quant_type", "nf4"))
    return kind, f"bitsandbytes-{kind}"


def settings_of(nibbles: Choice | None, left_out: Sequence[str]) -> dict[str, Any]:
    """The quantization_config of NF4, or where nibbles is None of LLM.int8."""
    return {
        "quant_method": "bitsandbytes",
        "load_in_4bit": nibbles is not None,
        "load_in_8bit": nibbles is None,
        "_load_in_4bit": nibbles is not None,
        "_load_in_8bit": nibbles is None,
        "bnb_4bit_quant_type": "nf4",
        "bnb_4bit_use_double_quant": nibbles is not None and nibbles.nested,
        "bnb_4bit_compute_dtype": "float32",
        "bnb_4bit_quant_storage": "uint8",
        "llm_int8_threshold": 6.0,
        "llm_int8_has_fp16_weight": False,
        "llm_int8_enable_fp32_cpu_offload": False,
        "llm_int8_skip_modules": list(left_out),
    }


_NESTED = 256
"""Scales that share one."""


def stored_nf4(stem: str, made: Weight, nested: bool) -> Tensors:
    """The tensors of a matrix of NF4.

    Args:
        nested: scales are quantized to 8 bits less their mean, in blocks (double quantization).
    """
    assert made.scale is not None, "NF4 has scales"
    name = f"{stem}.weight"
    scale = made.scale.astype(np.float32).reshape(-1)
    state: dict[str, Any] = {
        "quant_type": "nf4",
        "blocksize": NF4_GROUP,
        "dtype": "float32",
        "shape": list(made.shape),
    }
    found: Tensors = {
        name: made.values.reshape(-1, 1),
        f"{name}.absmax": scale,
        f"{name}.quant_map": CODES[Layout.NF4],
    }
    if nested:
        offset = scale.mean(dtype=np.float32)
        code = dynamic_map()
        blocks = np.zeros(-(-scale.size // _NESTED) * _NESTED, np.float32)
        blocks[: scale.size] = scale - offset
        most = np.abs(blocks.reshape(-1, _NESTED)).max(axis=1)
        shares = blocks.reshape(-1, _NESTED) / np.where(most > 0, most, 1)[:, None]
        borders = (code[1:] + code[:-1]) / 2
        found[f"{name}.absmax"] = np.searchsorted(borders, shares.reshape(-1)[: scale.size]).astype(np.uint8)
        found[f"{name}.nested_absmax"] = most
        found[f"{name}.nested_quant_map"] = code
        state |= {"nested_blocksize": _NESTED, "nested_dtype": "float32", "nested_offset": float(offset)}
    found[f"{name}.{_STATE}nf4"] = np.frombuffer(json.dumps(state).encode(), np.uint8)
    return found


def dynamic_map() -> F32Array:
    """256 numbers from -1 to 1, ascending: a sign, an exponent of ten in unary, a fraction (Dettmers 2016).

    Exponent e from 0 to -6 leaves 6 + e bits for the fraction, whose steps from 0.1 to 1 are met in the
    middle.
    """
    positive = []
    for bits in range(7):
        edges = np.linspace(0.1, 1, 2**bits + 1)
        positive += list(10.0 ** (bits - 6) * (edges[:-1] + edges[1:]) / 2)
    found = np.array([*(-np.array(positive)), 0, *positive, 1], np.float32)
    return np.sort(found)


def outlines(settings: Settings) -> Outlines:
    left_out = settings.get("llm_int8_skip_modules") or ["lm_head"]
    if _eight(settings):
        return Outlines(lambda s: Outline.coded(Layout.S8, s, 1), left_out)
    layout = _layout(settings)
    return Outlines(lambda s: Outline.coded(layout, s, s[1] // NF4_GROUP), left_out)


def _eight(settings: Settings) -> bool:
    return bool(settings.get("load_in_8bit") or settings.get("_load_in_8bit"))


def _layout(settings: Settings) -> Layout:
    kind = settings.get("bnb_4bit_quant_type", "nf4")
    if kind not in _KINDS:
        raise CheckpointError(f"bitsandbytes' {kind} is not supported; {' and '.join(_KINDS)} are")
    return _KINDS[kind]


def _int8(name: str, shape: tuple[int, int], take: Take) -> Weight | None:
    tensor = take(name)
    if tensor is None or tensor.format != "I8":
        return None
    stem = name.removesuffix(".weight")
    take(f"{stem}.weight_format")
    rows = required(f"{stem}.SCB", take)
    scale = by_rows(rows.name, table(rows), shape, None) / np.float32(127)
    n, k = shape
    if k % BLOCK:
        raise CheckpointError(f"tensor {name!r}: LLM.int8 needs a multiple of {BLOCK} columns, not {k}")
    values = matrix(tensor, np.int8, shape).reshape(n, k // BLOCK, BLOCK)
    return Weight(Layout.S8, shape, values, scale, release=tensor.release)


def _nibbles(layout: Layout, name: str, shape: tuple[int, int], take: Take) -> Weight | None:
    kind = layout.value
    stored = take(f"{name}.{_STATE}{kind}")
    if stored is None:
        others = [other for other in _KINDS if take(f"{name}.{_STATE}{other}") is not None]
        if others:
            raise CheckpointError(f"tensor {name!r} is of {others[0]}, and bnb_4bit_quant_type says {kind}")
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
            f"tensor {name!r}: {tensor.data.nbytes} bytes of {tensor.format} are not {kind.upper()} {n}x{k}"
        )
    if not np.array_equal(table(required(f"{name}.quant_map", take)).ravel(), CODES[layout]):
        raise CheckpointError(f"tensor {name!r} has a quant_map that is not {kind.upper()}'s")
    scale = _scales(name, state, take)
    if scale.size != n * k // NF4_GROUP:
        raise CheckpointError(f"tensor {name!r} has {scale.size} scales, expected {n * k // NF4_GROUP}")
    check_finite(f"{name}.absmax", scale)
    values = tensor.data.reshape(n, k // 2)
    return Weight(layout, shape, values, scale.reshape(n, -1), release=tensor.release)


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
