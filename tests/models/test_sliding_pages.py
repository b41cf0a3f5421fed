"""Families some of whose layers have a window: the same bits with few pages for these."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from octavo.params import SamplingParams
from support.tiny_engine import BACKENDS, loaded, run, tiny_engine

WINDOW = 24
MIXED = (
    ("gemma2", "capped"),
    ("gemma3_text", "plain"),
    ("gemma3_text", "scaled"),
    ("qwen2", "tied_window"),
    ("qwen2_moe", "window"),
    ("qwen3", "window"),
)
PARAMS = SamplingParams(max_tokens=30, ignore_eos=True, seed=3, temperature=0.8, logprobs=2)


@pytest.mark.parametrize(("family", "variant"), MIXED)
@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("length", [WINDOW - 1, WINDOW + 1, 70])
def test_few_sliding_pages_change_no_bit(
    tiny_folder: Callable[[str, str], Path], family: str, variant: str, backend: str, length: int
) -> None:
    folder = tiny_folder(family, variant)
    windows = {spec.window for spec in loaded(folder, backend, 1)[1].kv_specs("f32")}
    assert windows == {None, WINDOW}, "all layers share pages"
    prompt = [(7 * place + place * place) % 90 + 3 for place in range(length)]
    options: dict[str, Any] = {"page_size": 4, "max_num_batched_tokens": 9}
    whole = run(tiny_engine(folder, backend, **options), prompt, PARAMS)
    few = -(-(WINDOW + 2 * 9 - 2) // 4) + 1
    sliding = {"sliding_window": WINDOW, "num_sliding_pages": few, "enable_prefix_caching": False}
    assert run(tiny_engine(folder, backend, **options, **sliding), prompt, PARAMS) == whole
