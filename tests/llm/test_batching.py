"""Continuous batching, chunks, the prefix cache and preemption on the real model."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from octavo import LLM, SamplingParams
from octavo.assembly import core_of, load
from octavo.config import EngineConfig
from octavo.engine.sources import SwapSpace
from octavo.params import CompletionOutput

STORY = "Once upon a time, in a small village by the sea, there lived an old fisherman who"
OTHERS = [
    "The capital of France is",
    "def fibonacci(n):",
    "Water boils at a temperature of",
    "My favourite book is",
    "In 1969, humans first",
    "The quick brown fox",
    "Climate change affects",
]
GREEDY = SamplingParams(temperature=0, max_tokens=16, ignore_eos=True, logprobs=0)
SAMPLED = SamplingParams(temperature=0.9, top_p=0.95, seed=7, max_tokens=16, ignore_eos=True, logprobs=0)


def drawn(completion: CompletionOutput) -> list[float]:
    return [
        step[token].logprob
        for step, token in zip(completion.logprobs or [], completion.token_ids, strict=True)
    ]


def same(ours: CompletionOutput, alone: CompletionOutput, backend: str) -> None:
    """Equal ids and logprobs: bit for bit on native kernels, to 1e-5 where BLAS picks its order."""
    assert ours.token_ids == alone.token_ids
    if backend == "cpu":
        assert drawn(ours) == drawn(alone)
    else:
        assert drawn(ours) == pytest.approx(drawn(alone), abs=1e-5)


@pytest.fixture
def llm(smollm2_llm: Callable[..., LLM]) -> Callable[..., LLM]:
    """(backend, options) -> LLM; fp32 on the reference, where the promise is 1e-5."""

    def get(backend: str, **options: object) -> LLM:
        precision = {"dtype": "float32"} if backend == "reference" else {}
        return smollm2_llm(backend=backend, max_model_len=512, max_num_seqs=8, **precision, **options)

    return get


def alone(llm: LLM, params: SamplingParams, prompt: Any = STORY) -> CompletionOutput:
    llm.reset_prefix_cache()
    return llm.generate([prompt], params)[0].outputs[0]


@pytest.mark.parametrize("params", [GREEDY, SAMPLED], ids=["greedy", "sampled"])
def test_alone_is_in_a_batch_of_eight(llm: Callable[..., LLM], backend: str, params: SamplingParams) -> None:
    engine = llm(backend)
    first = alone(engine, params)
    engine.reset_prefix_cache()
    crowd = engine.generate([STORY, *OTHERS], params)
    same(crowd[0].outputs[0], first, backend)
    assert len({tuple(o.outputs[0].token_ids) for o in crowd}) > 4  # the others are others


@pytest.mark.parametrize("budget", [7, 16])
def test_chunked_is_whole(llm: Callable[..., LLM], backend: str, budget: int) -> None:
    prompt = " ".join([STORY, *OTHERS])
    whole = alone(llm(backend), SAMPLED, prompt)
    chunked = llm(backend, max_num_batched_tokens=budget)
    before = chunked.get_metrics().steps
    same(alone(chunked, SAMPLED, prompt), whole, backend)
    length = len(chunked.get_tokenizer().encode(prompt))
    assert chunked.get_metrics().steps - before >= length // budget + 15


def test_a_second_equal_prompt_hits_the_cache(llm: Callable[..., LLM], fastest: str) -> None:
    engine = llm(fastest)
    engine.reset_prefix_cache()
    prompt = " ".join([STORY, *OTHERS])
    cold = engine.generate([prompt], SAMPLED)[0]
    warm = engine.generate([prompt], SAMPLED)[0]
    assert cold.num_cached_tokens == 0
    assert warm.num_cached_tokens >= 32
    same(warm.outputs[0], cold.outputs[0], fastest)


@pytest.mark.parametrize("swap_space", [0.0, 0.05])
def test_preempted_requests_say_the_same(
    llm: Callable[..., LLM], fastest: str, swap_space: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    swapped: list[int] = []
    take = SwapSpace.take

    def watched(self: SwapSpace, num_tokens: int, num_pages: int) -> list[int]:
        blocks = take(self, num_tokens, num_pages)
        swapped.extend(blocks)
        return blocks

    monkeypatch.setattr(SwapSpace, "take", watched)
    params = SAMPLED.replace(max_tokens=24)
    prompts = [STORY, *OTHERS]
    calm = [alone(llm(fastest), params, prompt) for prompt in prompts]
    precision = {"dtype": "float32"} if fastest == "reference" else {}
    tight = LLM(
        "smollm2",
        backend=fastest,
        max_model_len=64,
        max_num_seqs=8,
        page_size=4,
        num_pages=30,
        swap_space=swap_space,
        **precision,
    )
    outputs = tight.generate(prompts, params)
    assert tight.get_metrics().preemptions > 0
    assert bool(swapped) is (swap_space > 0)
    for output, want in zip(outputs, calm, strict=True):
        same(output.outputs[0], want, fastest)


def test_a_late_request_starts_before_the_first_ends(fastest: str) -> None:
    loaded = load(EngineConfig("smollm2", backend=fastest, max_model_len=256, max_num_seqs=4))
    core = core_of(loaded)
    params = SamplingParams(temperature=0, max_tokens=20, ignore_eos=True)
    core.add_request("early", loaded.tokenizer.encode(STORY), params)
    order: list[tuple[str, bool]] = []
    steps = 0
    while core.has_unfinished():
        if steps == 3:
            core.add_request("late", loaded.tokenizer.encode(OTHERS[0]), params)
        order += [(update.request_id, update.finish_reason is not None) for update in core.step()]
        core.check_integrity()
        steps += 1
    assert order.index(("late", False)) < order.index(("early", True))
    assert steps <= 20 + 3 + 1  # they decoded together


def test_unseeded_answers_differ_and_can_be_had_again(llm: Callable[..., LLM], fastest: str) -> None:
    engine = llm(fastest)
    params = SamplingParams(temperature=1.0, max_tokens=12, ignore_eos=True)
    outputs = engine.generate([STORY] * 8, params)
    texts = [output.outputs[0].text for output in outputs]
    assert len(set(texts)) >= 7
    again = engine.generate([STORY] * 8, [params.replace(seed=output.seed) for output in outputs])
    assert [output.outputs[0].text for output in again] == texts
    assert [output.seed for output in again] == [output.seed for output in outputs]


def test_n_samples_share_the_prompt_and_differ(llm: Callable[..., LLM], fastest: str) -> None:
    engine = llm(fastest)
    params = SamplingParams(n=4, temperature=1.0, seed=3, max_tokens=12, ignore_eos=True)
    output = engine.generate([STORY], params)[0]
    texts = [completion.text for completion in output.outputs]
    assert [completion.index for completion in output.outputs] == [0, 1, 2, 3]
    assert len(set(texts)) == 4
    single = engine.generate([STORY], params.replace(n=1))[0].outputs[0].text
    assert single == texts[0]
