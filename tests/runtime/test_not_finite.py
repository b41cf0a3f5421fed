"""Weights that are not numbers: a row that meets them ends alone, however it draws; the engine goes on."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from octavo.params import BeamSearchParams, SamplingParams
from support.tiny_engine import BACKENDS, Answers, save_tiny_llama, tiny_engine

PLAIN = SamplingParams(max_tokens=5, temperature=1.0, seed=1, ignore_eos=True)
WISHES = {
    "greedy": PLAIN.replace(temperature=0),
    "drawn": PLAIN,
    "top_p": PLAIN.replace(top_p=0.8),
    "top_k": PLAIN.replace(top_k=5),
    "min_p": PLAIN.replace(min_p=0.1),
    "logprobs": PLAIN.replace(logprobs=3),
    "prompt_logprobs": PLAIN.replace(prompt_logprobs=2),
    "penalties": PLAIN.replace(repetition_penalty=1.3, frequency_penalty=0.5),
    "allowed": PLAIN.replace(allowed_token_ids=range(3, 60)),
    "beams": SamplingParams(max_tokens=5, n=2, beam_search=BeamSearchParams(2, 5)),
}
TENSORS = {
    "embedding": "model.embed_tokens.weight",
    "norm": "model.layers.0.input_layernorm.weight",
    "attention": "model.layers.1.self_attn.q_proj.weight",
    "mlp": "model.layers.0.mlp.down_proj.weight",
    "last norm": "model.norm.weight",
    "head": "lm_head.weight",
}
BAD = 7
"""The row that is spoiled: of the embedding, so of prompts that hold this token alone."""


@pytest.fixture(scope="module")
def spoiled(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str, float], Path]:
    """(which tensor, what stands in it) -> a model's folder."""
    made: dict[tuple[str, float], Path] = {}

    def make(which: str, value: float) -> Path:
        key = which, value if value == value else 0.0
        if key not in made:
            made[key] = folder = save_tiny_llama(tmp_path_factory.mktemp("spoiled"))
            tensors = dict(load_file(folder / "model.safetensors"))
            if which:
                tensors[TENSORS[which]][BAD] = value
            save_file(tensors, folder / "model.safetensors", {"format": "pt"})
        return made[key]

    return make


def answers(folder: Path, backend: str, wish: SamplingParams) -> Answers:
    """Of a prompt with the spoiled token and one without, side by side."""
    core, found = tiny_engine(folder, backend), Answers()
    core.add_request("bad", [3, BAD, 4], wish)
    core.add_request("good", [3, 5, 4], wish)
    while core.has_unfinished():
        found.take(core.step())
        core.check_integrity()
    assert core.failed_steps == 0
    return found


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("wish", WISHES)
@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_a_row_that_meets_it_ends_alone(
    spoiled: Callable[[str, float], Path], backend: str, wish: str, value: float
) -> None:
    with np.errstate(all="ignore"):
        found = answers(spoiled("embedding", value), backend, WISHES[wish])
    whole = answers(spoiled("", 0.0), backend, WISHES[wish])
    for (name, index), reason in found.reasons.items():
        assert reason == ("error" if name == "bad" else whole.reasons[name, index])
        if name == "good":
            assert found.tokens[name, index] == whole.tokens[name, index]


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("which", [name for name in TENSORS if name != "embedding"])
@pytest.mark.parametrize("wish", WISHES)
def test_where_all_rows_meet_it_all_say_so_and_the_engine_lives(
    spoiled: Callable[[str, float], Path], backend: str, which: str, wish: str
) -> None:
    with np.errstate(all="ignore"):
        found: Any = answers(spoiled(which, np.nan), backend, WISHES[wish])
    assert set(found.reasons.values()) == {"error"}
