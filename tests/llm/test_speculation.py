"""LLM with speculative_config: the answers of one without, what it says of drafts, what is refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from octavo import LLM, SamplingParams
from octavo.assembly.planning import plan
from octavo.engine_args import EngineArgs
from octavo.errors import InvalidRequestError, UnsupportedError
from octavo.kernels.select import native_available
from octavo.runtime.speculation import Speculation
from octavo.runtime.step_costs import StepCosts
from octavo.spec import methods
from octavo.spec.costs import CostTable
from support.modelled import first_layer_of
from support.seq2seq import make_folder
from support.tiny_engine import save_tiny_llama, save_words

PROMPTS = [[5, 6, 7, 5, 6, 7, 5, 6], [9, 8, 9, 8, 9, 8, 9], [40]]
PARAMS = [
    SamplingParams(temperature=0, max_tokens=40, ignore_eos=True, logprobs=2),
    SamplingParams(temperature=0.7, seed=3, max_tokens=40, ignore_eos=True, top_p=0.9),
    SamplingParams(temperature=1.3, seed=4, n=2, max_tokens=30, presence_penalty=0.5, logprobs=0),
    SamplingParams(temperature=0, max_tokens=40, ignore_eos=True, watermark={"delta": 1}),
    SamplingParams(temperature=1, seed=5, n=2, max_tokens=30, ignore_eos=True, watermark=True),
]
OPTIONS: dict[str, Any] = {"max_model_len": 128, "max_num_seqs": 4, "num_pages": 64, "threads": 1}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_words(save_tiny_llama(tmp_path_factory.mktemp("speculating")))


@pytest.fixture(scope="module")
def drafter(folder: Path) -> Path:
    """Its first layer, as a model of its own."""
    return save_words(first_layer_of(folder))


def config_of(method: str, drafter: Path) -> dict[str, Any]:
    return {
        "method": method,
        "num_speculative_tokens": 4,
        **({"model": str(drafter)} if method == "draft" else {}),
    }


def told(llm: LLM) -> list[Any]:
    outputs = [output for params in PARAMS for output in llm.generate(PROMPTS, params, use_tqdm=False)]
    return [[(c.token_ids, c.text, c.logprobs, c.finish_reason) for c in out.outputs] for out in outputs]


@pytest.mark.skipif(not native_available(), reason="the reference's sums depend on the number of rows")
@pytest.mark.parametrize("policy", ["fixed", "auto"])
@pytest.mark.parametrize("method", methods())
def test_answers_are_those_without(
    folder: Path, drafter: Path, method: str, policy: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Steps cost the same, so that every draft is worth it, however long that takes here.
    monkeypatch.setattr(StepCosts, "table", lambda _: CostTable({1: 1.0, 256: 1.0}))
    monkeypatch.setattr(Speculation, "took", lambda *_: None)
    config = {**config_of(method, drafter), "policy": policy}
    llm = LLM(str(folder), speculative_config=config, **OPTIONS)
    assert told(llm) == told(LLM(str(folder), **OPTIONS))
    counts = llm.get_metrics().drafts
    assert counts.drafts > 5
    assert ("step costs" in llm._loaded.phases) is (policy == "auto")


def test_a_prediction_is_looked_up(folder: Path) -> None:
    """Its own answer predicted, a request needs fewer steps; without drafts it is checked and no more."""
    params = SamplingParams(temperature=0, max_tokens=24, ignore_eos=True)
    config = {"method": "ngram", "num_speculative_tokens": 6, "prompt_lookup_min": 1, "policy": "fixed"}
    plain, llm = LLM(str(folder), **OPTIONS), LLM(str(folder), speculative_config=config, **OPTIONS)
    (first,) = plain.generate([11, 12, 13], params, use_tqdm=False)
    known = first.outputs[0].token_ids
    told = params.replace(speculative={"prediction": known})
    (output,) = llm.generate([11, 12, 13], told, use_tqdm=False)
    assert output.outputs[0].token_ids == known
    assert output.metrics is not None
    assert output.metrics.accepted_prediction_tokens > 10
    assert plain.generate([11, 12, 13], told, use_tqdm=False)[0].outputs[0].token_ids == known
    as_text = params.replace(speculative={"prediction": {"type": "content", "content": "w5"}})
    assert llm.generate([11, 12, 13], as_text, use_tqdm=False)[0].outputs[0].token_ids == known
    with pytest.raises(InvalidRequestError, match="prediction is not valid Unicode text"):
        llm.generate([1], params.replace(speculative={"prediction": "\ud800"}), use_tqdm=False)
    with pytest.raises(InvalidRequestError, match=r"speculative\.k must be an integer"):
        plain.generate([1], params.replace(speculative={"k": -1}), use_tqdm=False)


def test_what_outlives_a_request_is_forgotten_with_the_cache(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    llm = LLM(str(folder), speculative_config={"method": "suffix", "policy": "fixed"}, **OPTIONS)
    speculation: Any = llm._loaded.speculation
    forgot: list[bool] = []
    monkeypatch.setattr(speculation._proposer, "reset", lambda: forgot.append(True))
    assert llm.reset_prefix_cache()
    assert forgot == [True]


@pytest.mark.parametrize("method", methods())
def test_the_plan_is_what_a_start_allocates(folder: Path, drafter: Path, method: str) -> None:
    """Rows of logits for drafts, and the tables that drafts come from."""
    options = {**OPTIONS, "max_num_batched_tokens": 200, "device": "cpu"}
    config = {**config_of(method, drafter), "policy": "fixed"}
    llm = LLM(str(folder), speculative_config=config, **options)
    planned = plan(EngineArgs(str(folder), speculative_config=config, **options).config)
    without = plan(EngineArgs(str(folder), **options).config)
    runner = llm._loaded.runner
    assert planned.config.max_sampled_rows == llm._loaded.config.max_sampled_rows == 200
    assert without.config.max_sampled_rows == 4
    assert planned.activations == runner.activation_bytes
    assert planned.budget.weights == llm._loaded.memory.weights
    assert planned.budget.kv_cache == llm._loaded.memory.kv_cache
    assert (planned.budget.bytes_per_token > without.budget.bytes_per_token) is (method == "draft")
    assert planned.rows - without.rows > 0
    assert planned.rows - runner.state_bytes == planned.rows - without.rows


def test_a_model_with_an_encoder_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UnsupportedError, match="a model with an encoder is not drafted for"):
        LLM(str(make_folder("t5", tmp_path)), speculative_config={"method": "ngram"})
