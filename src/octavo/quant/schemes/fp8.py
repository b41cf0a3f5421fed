"""fp8: E4M3 numbers with scales of a tensor, a row or a block of 128 x 128 (DeepSeek-V3, Qwen3-FP8, vLLM).

    X.weight [N, K] F8_E4M3     w = number * scale
    X.weight_scale_inv          [N / 128, K / 128], where weight_block_size is set
    X.weight_scale              one number, or one a row
    X.input_scale               of activations: not needed, which stay in 16 bits here

Source: transformers, integrations/finegrained_fp8.py; vLLM, layers/quantization/fp8.py.
"""

from __future__ import annotations

from dataclasses import dataclass

from octavo.errors import CheckpointError
from octavo.kernels.outline import Outline
from octavo.kernels.weight import Layout, Weight
from octavo.quant.scheme import Outlines, Scheme, Settings, Take, by_rows, check_block, f8, table


def open_scheme(settings: Settings) -> Scheme:
    if (fmt := settings.get("fmt", "e4m3")) != "e4m3":
        raise CheckpointError(f"FP8 numbers of format {fmt!r} are not supported; e4m3 is")
    return _Fp8(check_block(settings.get("weight_block_size")))


def outlines(settings: Settings) -> Outlines:
    block = check_block(settings.get("weight_block_size"))
    left_out = settings.get("modules_to_not_convert") or settings.get("ignored_layers") or ["lm_head"]
    columns = None if block is None else block[1]
    return Outlines(lambda s: Outline.coded(Layout.F8, s, -(-s[1] // (columns or s[1]))), left_out)


@dataclass(frozen=True, slots=True)
class _Fp8:
    block: tuple[int, int] | None

    def __call__(self, name: str, shape: tuple[int, int], take: Take) -> Weight | None:
        tensor = take(name)
        if tensor is None or tensor.format != "F8_E4M3":
            return None
        stem = name.removesuffix(".weight")
        take(f"{stem}.input_scale")
        scale = take(f"{name}_scale_inv") or take(f"{name}_scale")
        if scale is None:
            raise CheckpointError(f"tensor {name!r} is FP8 without {stem}.weight_scale or weight_scale_inv")
        return f8(tensor, by_rows(scale.name, table(scale), shape, self.block), shape)
