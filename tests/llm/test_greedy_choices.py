"""Greedy texts where the head chooses from bounds, and where log-probabilities need every logit."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from octavo import LLM, SamplingParams
from octavo.kernels.select import native_available

if not native_available():
    pytest.skip("the extension is not built", allow_module_level=True)

from octavo.kernels.cpu import instruction_sets

PROMPTS = [
    f"{start} {number}"
    for number in range(4)
    for start in ("The capital of France is", "def fibonacci(n):", "Water boils at", "List three fruits:")
]


@pytest.mark.parametrize("isa", [isa for isa in instruction_sets() if isa != "generic"])
def test_choices_change_no_token(smollm2_llm: Callable[..., LLM], isa: str) -> None:
    llm = smollm2_llm(isa=isa, max_model_len=128, max_num_seqs=16)
    tokens = []
    for prompts, logprobs in ((PROMPTS, None), (PROMPTS, 0), (PROMPTS[:3], None)):
        params = SamplingParams(temperature=0.0, max_tokens=64, ignore_eos=True, logprobs=logprobs)
        tokens.append([output.outputs[0].token_ids for output in llm.generate(prompts, params)])
    chosen, computed, few = tokens
    assert chosen == computed
    assert few == chosen[:3]


def test_an_engine_that_has_measured_its_steps_chooses_from_bounds() -> None:
    """What a head learns from the first greedy rows is learned from texts, and not from what was measured."""
    llm = LLM("smollm2", max_model_len=256, max_num_seqs=4, speculative_config={"method": "ngram"})
    runner: Any = llm._core._executor
    native = runner._decoding.decoder.native
    assert native.chosen == 0
    params = SamplingParams(temperature=0.0, max_tokens=64, ignore_eos=True, speculative={"k": 0})
    llm.generate(PROMPTS[:4], params)
    assert native.chosen > 4 * 64 / 3, "all but those that it has learned from, and few others"
