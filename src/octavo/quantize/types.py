"""Which type each matrix of a GGUF file gets, as llama.cpp's users expect it.

Projections get what was asked for, heads and embeddings 6 or 8 bits; routers and tables of positions stay
floats. Q4_K_M gives the values, and the second matrix of the feed-forward, of half of the layers 6 bits. Rows
that are no multiple of a type's blocks get the next larger type that fits (llama.cpp's, too).
"""

from __future__ import annotations

import re

from octavo.errors import UnsupportedError
from octavo.models.layers import Use
from octavo.quant.registry import get_format

_PROJECTIONS = {
    "F32": "F32", "F16": "F16", "Q4_0": "Q4_0", "Q4_1": "Q4_1", "Q5_0": "Q5_0", "Q8_0": "Q8_0",
    "Q4_K_M": "Q4_K",
}  # fmt: skip
_HEADS = {"F32": "F32", "F16": "F16", "Q8_0": "Q8_0"}
"""The others' are Q6_K."""
_LARGER = {"Q4_K": "Q5_0", "Q6_K": "Q8_0", "Q4_0": "F16", "Q4_1": "F16", "Q5_0": "F16", "Q8_0": "F16"}
_SIX = re.compile(r"(attn_v|attn_qkv|ffn_down(_exps|_shexp)?)\.weight$")


def check_kind(kind: str) -> None:
    """
    Raises:
        UnsupportedError: no file of that type is made.
    """
    if kind not in _PROJECTIONS:
        raise UnsupportedError(f"--type {kind} is not supported; {', '.join(_PROJECTIONS)} are", "kind")


def type_of(kind: str, name: str, columns: int, use: Use, layers: int) -> str:
    """The type of a matrix.

    Args:
        kind: --type.
        name: in the GGUF file.
        layers: how many the model has.
    """
    if use is Use.ROUTER or "position" in name or "_norm" in name or name.startswith("rope"):
        return "F32"
    wanted = _HEADS.get(kind, "Q6_K") if use is Use.HEAD else _PROJECTIONS[kind]
    if kind == "Q4_K_M" and _SIX.search(name) and _larger_bits(name, layers):
        wanted = "Q6_K"
    while columns % get_format(wanted).block:
        wanted = _LARGER[wanted]
    return wanted


def _larger_bits(name: str, layers: int) -> bool:
    """The first and last eighth of the layers, and each third between them (llama.cpp, use_more_bits)."""
    layer = int(name.split(".")[1])
    eighth = layers // 8
    return layer < eighth or layer >= 7 * layers // 8 or (layer - eighth) % 3 == 2
