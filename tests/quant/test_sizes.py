"""What projections take in memory on a CPU, of every format, beside 16 bits and beside their files."""

from __future__ import annotations

import numpy as np
import pytest

from octavo.kernels.cpu import CpuBackend
from octavo.kernels.outline import Outline
from octavo.kernels.types import KVSpec
from octavo.kernels.weight import Layout
from octavo.quant import registry
from octavo.quant.on_load import methods
from octavo.quant.packing import integer_outline

SHAPE = N, K = 256, 2048
NUMBERS = N * K


def share(outline: Outline) -> float:
    """Packed bytes over those of f16, as `octavo plan` weighs them."""
    packed = PLANNED.pack([outline])
    return packed.nbytes / (2 * NUMBERS)


PLANNED = CpuBackend(threads=1, planned=True)
UNITS = 4 * N / (2 * NUMBERS) if PLANNED.isa == "avx2" else 0
"""AVX2 has integers for f16 scales where it can, and a unit for them of four bytes a row (csrc/types.h)."""


@pytest.mark.parametrize(
    ("form", "most"),
    [
        (integer_outline(SHAPE, 4, K // 128, False, True), 0.27),  # GPTQ and AWQ of groups of 128
        (integer_outline(SHAPE, 4, K // 32, False, True), 0.30),
        (registry.outline("Q4_1", SHAPE), 0.3126 + UNITS),
        (integer_outline(SHAPE, 8, 1, True, False), 0.51),  # INT8 and LLM.int8: a scale a row
        (methods()["eetq"].form(SHAPE), 0.51),
        (methods()["int8"].form(SHAPE), 0.51),
        (Outline.coded(Layout.NF4, SHAPE, K // 64), 0.30),
        (methods()["nf4"].form(SHAPE), 0.30),
        (Outline.coded(Layout.F8, SHAPE, 1), 0.51),
        (methods()["fp8"].form(SHAPE), 0.51),
    ],
    ids=["int4-g128", "int4-g32", "Q4_1", "int8-row", "eetq", "int8", "nf4", "nf4-made", "fp8", "fp8-made"],
)
def test_share_of_16_bits(form: Outline, most: float) -> None:
    assert 0 < share(form) <= most


def beside_the_file(name: str) -> float:
    """What is held over what the file holds."""
    form = registry.get_format(name)
    stored = form.block_bytes / form.block / 2  # bytes a number over f16's
    return share(registry.outline(name, SHAPE)) / stored


@pytest.mark.parametrize(
    "name",
    ["Q2_K", "Q3_K", "Q4_0", "Q4_1", "Q4_K", "Q5_0", "Q5_1", "Q5_K", "Q6_K", "Q8_0", "IQ4_NL", "IQ4_XS"],
)
def test_beside_the_file(name: str) -> None:
    assert 1 <= beside_the_file(name) <= 1.1


@pytest.mark.parametrize("name", ["Q4_K", "Q5_K", "Q6_K", "IQ4_XS"])
def test_two_levels_cost_next_to_nothing(name: str) -> None:
    """Steps of six bits lie in bytes, which is what Q4_K to IQ4_XS grow by; Q6_K's are bytes."""
    assert beside_the_file(name) <= (1 if name == "Q6_K" else 1.03)


def test_planned_is_what_is_packed() -> None:
    for name in ("Q2_K", "Q3_K", "IQ1_S", "Q4_K", "Q5_K", "Q6_K", "IQ4_NL", "IQ4_XS"):
        form = registry.get_format(name)
        blocks = np.zeros((N, K // form.block), form.dtype)
        real = CpuBackend(threads=1).pack([form.unpack(blocks, lambda: None)])
        assert real.nbytes == PLANNED.pack([registry.outline(name, SHAPE)]).nbytes


@pytest.mark.parametrize("head_dim", [64, 80, 128, 256])
def test_int8_pages_are_little_over_half_of_16_bits(head_dim: int) -> None:
    of_int8, of_16_bits = (KVSpec(2, head_dim, head_dim, dtype).bytes_per_token for dtype in ("int8", "f16"))
    assert 0.5 < of_int8 / of_16_bits <= 0.55
