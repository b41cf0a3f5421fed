"""Quantized checkpoints as the formats' descriptions say, one number after the other: what X.weight is.

Slow and plain on purpose: src/octavo/quant shares nothing with it. Source: AutoGPTQ, qlinear_cuda.py;
AutoAWQ, modules/linear/gemm.py; bitsandbytes, functional.py; compressed-tensors, quant_args.py.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import bitsandbytes.functional as bnb
import numpy as np
import torch

from support.packed_integers import F32, I64

Tensors = Mapping[str, torch.Tensor]


def unstream(words: Any, bits: int) -> I64:
    """Words of 32 bits as one stream of numbers, the first in the lowest bits."""
    whole = 0
    for i, word in enumerate(words.tolist()):
        whole |= (int(word) & 0xFFFFFFFF) << (32 * i)
    return np.array([whole >> (bits * i) & (2**bits - 1) for i in range(len(words) * 32 // bits)], np.int64)


def gptq(tensors: Tensors, stem: str, config: Mapping[str, Any]) -> F32:
    bits = config["bits"]
    words, points, scale, g_idx = (
        tensors[f"{stem}.{part}"].numpy() for part in ("qweight", "qzeros", "scales", "g_idx")
    )
    q = np.stack([unstream(column, bits) for column in words.T])
    zero = np.stack([unstream(row, bits) for row in points]) + 1  # [groups, N]
    factor = scale.astype(np.float32)[g_idx].T
    return np.asarray(factor * (q - zero[g_idx].T).astype(np.float32), np.float32)


def awq(tensors: Tensors, stem: str, config: Mapping[str, Any]) -> F32:
    order = (0, 2, 4, 6, 1, 3, 5, 7)

    def rows(words: Any) -> I64:
        out = np.empty((words.shape[0], words.shape[1] * 8), np.int64)
        for i, place in enumerate(order):
            out[:, place::8] = words.astype(np.int64) >> (4 * i) & 15
        return out

    q, zero = (rows(tensors[f"{stem}.{part}"].numpy()) for part in ("qweight", "qzeros"))
    group = q.shape[0] // zero.shape[0]
    scale = np.repeat(tensors[f"{stem}.scales"].numpy().astype(np.float32), group, axis=0)
    return np.ascontiguousarray((scale * (q - np.repeat(zero, group, axis=0)).astype(np.float32)).T)


def nf4(tensors: Tensors, stem: str, config: Mapping[str, Any]) -> F32:
    name = f"{stem}.weight"
    parts = {key.removeprefix(f"{name}."): t for key, t in tensors.items() if key.startswith(f"{name}.")}
    state = bnb.QuantState.from_dict(parts, device=torch.device("cpu"))
    found: F32 = bnb.dequantize_4bit(tensors[name], state).numpy()
    return found


def int8(tensors: Tensors, stem: str, config: Mapping[str, Any]) -> F32:
    found: F32 = (
        bnb.int8_vectorwise_dequant(tensors[f"{stem}.weight"], tensors[f"{stem}.SCB"]).float().numpy()
    )
    return found


def fp8(tensors: Tensors, stem: str, config: Mapping[str, Any]) -> F32:
    found: F32 = (tensors[f"{stem}.weight"].float() * tensors[f"{stem}.weight_scale"]).numpy()
    return found


READ = {"rtn": gptq, "gptq": gptq, "awq": awq, "nf4": nf4, "int8": int8, "fp8": fp8}
"""By method."""
