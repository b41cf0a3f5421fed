"""Greedy texts where the head chooses from bounds, and where log-probabilities need every logit."""

from __future__ import annotations

from collections.abc import Callable

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
