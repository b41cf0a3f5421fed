"""SmolLM2 in full fp32 against transformers on the same dequantized weights."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from octavo import LLM, SamplingParams

PROMPTS = [
    "The capital of France is",
    "def fibonacci(n):",
    "Once upon a time",
    "Water boils at",
    "The three laws of robotics are",
    "In 1969, humans first",
    "Dear Sir or Madam,",
    "Photosynthesis is the process by which",
    "1, 1, 2, 3, 5, 8,",
    "To be, or not to be,",
    "The quick brown fox",
    "Ingredients: 2 eggs, 100 g flour,",
    "SELECT name FROM users WHERE",
    "Die Hauptstadt von Deutschland ist",
    "The mitochondria is",
    "Q: What is 12 times 12? A:",
    "<html><head><title>",
    "My favourite book is",
    "Climate change affects",
    "In the beginning",
]


@pytest.fixture(scope="module")
def oracle(smollm2_path: Path) -> Any:
    from transformers import AutoModelForCausalLM

    return AutoModelForCausalLM.from_pretrained(
        str(smollm2_path.parent), gguf_file=smollm2_path.name, dtype=torch.float32
    )


def test_greedy_text_is_transformers(smollm2_llm: Callable[..., LLM], backend: str, oracle: Any) -> None:
    """64 tokens of 20 prompts: at each, the oracle's first choice, unless its top two are within 1e-4.

    The oracle sees our own tokens before each position, so by induction the texts are equal.
    """
    llm = smollm2_llm(backend=backend, dtype="float32", max_model_len=256, max_num_seqs=20)
    outputs = llm.generate(PROMPTS, SamplingParams(temperature=0, max_tokens=64, ignore_eos=True))
    ties = 0
    for output in outputs:
        ids = output.prompt_token_ids + output.outputs[0].token_ids
        assert len(output.outputs[0].token_ids) == 64
        with torch.no_grad():
            logits = oracle(torch.tensor([ids])).logits[0, len(output.prompt_token_ids) - 1 : -1]
        top = logits.topk(2).values
        for position, token in enumerate(output.outputs[0].token_ids):
            if int(logits[position].argmax()) != token:
                assert float(top[position, 0] - top[position, 1]) <= 1e-4, (output.prompt, position)
                ties += 1
    assert ties <= 2  # near-ties this close are rare; more of them would be something else


def test_logprobs_are_transformers(smollm2_llm: Callable[..., LLM], backend: str, oracle: Any) -> None:
    llm = smollm2_llm(backend=backend, dtype="float32", max_model_len=256, max_num_seqs=20)
    params = SamplingParams(temperature=1.3, top_p=0.9, seed=5, max_tokens=12, logprobs=5, ignore_eos=True)
    for output in llm.generate(PROMPTS[:4], params):
        ids = output.prompt_token_ids + output.outputs[0].token_ids
        with torch.no_grad():
            logits = oracle(torch.tensor([ids])).logits[0, len(output.prompt_token_ids) - 1 : -1]
        truth = torch.log_softmax(logits, -1).numpy()
        found = output.outputs[0].logprobs or []
        assert len(found) == 12
        for position, entries in enumerate(found):
            best = np.argsort(-truth[position])[:5]
            assert {int(i) for i in best} <= set(entries)
            for token, entry in entries.items():
                assert entry.logprob == pytest.approx(float(truth[position, token]), abs=1e-3)


def test_rounded_activations_keep_the_model(
    smollm2_llm: Callable[..., LLM], backend: str, oracle: Any
) -> None:
    """The default path (4-bit weights, int8 activations), teacher-forced on the oracle's own text.

    Its first choice is the oracle's but for near-ties (0.15 logits), and little of the distribution
    is lost: mean KL divergence below 0.006 nats.
    """
    llm = smollm2_llm(backend=backend, max_model_len=256, max_num_seqs=20)
    text = " ".join(PROMPTS)
    ids = llm.get_tokenizer().encode(text)
    with torch.no_grad():
        logits = oracle(torch.tensor([ids])).logits[0]
    truth = torch.log_softmax(logits, -1).numpy()
    prefixes = range(8, len(ids) - 1)
    params = SamplingParams(temperature=0, max_tokens=1, logprobs=20)
    outputs = llm.generate([ids[: n + 1] for n in prefixes], params)
    divergence, wrong = [], 0
    for n, output in zip(prefixes, outputs, strict=True):
        token = output.outputs[0].token_ids[0]
        if token != int(truth[n].argmax()) and float(truth[n].max() - truth[n, token]) > 0.15:
            wrong += 1
        entries = (output.outputs[0].logprobs or [{}])[0]
        known = np.array(list(entries))
        ours = np.array([entries[int(i)].logprob for i in known])
        p, q = np.exp(truth[n, known]), np.exp(ours)
        rest_p, rest_q = max(1 - p.sum(), 1e-9), max(1 - q.sum(), 1e-9)
        divergence.append((p * (truth[n, known] - ours)).sum() + rest_p * np.log(rest_p / rest_q))
    assert wrong == 0
    assert np.mean(divergence) < 0.006  # 0.0031 with the NumPy reference
