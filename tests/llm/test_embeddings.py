"""Embeddings of SmolLM2: transformers' hidden states, and the same bits in any company."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from octavo import LLM, SamplingParams
from octavo.errors import InvalidRequestError
from octavo.pooling import PoolingParams

TEXTS = ["A page is a leaf.", "x", "The capital of France is Paris. " * 20, "Wasser siedet bei hundert Grad."]
RAW = {kind: PoolingParams(kind, normalize=False) for kind in ("last", "mean")}


def vectors(llm: LLM, texts: Any, params: PoolingParams) -> list[list[float]]:
    return [output.outputs.embedding for output in llm.embed(texts, pooling_params=params)]


@pytest.fixture(scope="module")
def oracle(smollm2_path: Path) -> Any:
    from transformers import AutoModel

    return AutoModel.from_pretrained(
        str(smollm2_path.parent), gguf_file=smollm2_path.name, dtype=torch.float32
    )


@pytest.mark.parametrize("kind", ["last", "mean"])
def test_hidden_states_are_transformers(
    kind: str, smollm2_llm: Callable[..., LLM], backend: str, oracle: Any
) -> None:
    llm = smollm2_llm(backend=backend, dtype="float32", max_model_len=256, max_num_seqs=20)
    for output in llm.embed(TEXTS, pooling_params=RAW[kind]):
        with torch.no_grad():
            states = oracle(torch.tensor([output.prompt_token_ids])).last_hidden_state[0].double().numpy()
        theirs = states[-1] if kind == "last" else states.mean(0)
        ours = np.array(output.outputs.embedding)
        assert np.abs(ours - theirs).max() <= 1e-3 * np.abs(theirs).max()


def test_a_text_may_fill_the_context(smollm2_llm: Callable[..., LLM], fastest: str) -> None:
    llm = smollm2_llm(backend=fastest, max_model_len=256, max_num_seqs=20)
    larger = smollm2_llm(backend=fastest, max_model_len=512, max_num_seqs=4)
    ids = list(range(1000, 1257))
    full = [{"prompt_token_ids": ids[:256]}]
    for kind in RAW.values():
        ours, theirs = vectors(llm, full, kind)[0], vectors(larger, full, kind)[0]
        assert np.allclose(ours, theirs, atol=1e-3)
    with pytest.raises(
        InvalidRequestError, match="the prompt has 257 tokens; max_model_len 256 leaves room for at most 256"
    ):
        llm.embed({"prompt_token_ids": ids})


@pytest.mark.parametrize("kind", ["last", "mean"])
def test_the_bits_do_not_depend_on_company_chunks_or_cache(
    kind: str, smollm2_llm: Callable[..., LLM], fastest: str
) -> None:
    llm = smollm2_llm(backend=fastest, max_model_len=256, max_num_seqs=20)
    chunked = smollm2_llm(backend=fastest, max_model_len=256, max_num_seqs=3, max_num_batched_tokens=7)
    alone = [vectors(llm, text, RAW[kind])[0] for text in TEXTS]
    llm.generate(TEXTS, SamplingParams(max_tokens=2))  # now all of it is in the prefix cache
    together = vectors(llm, TEXTS * 3, RAW[kind])
    if fastest == "cpu":  # BLAS in the reference adds by the batch's shape
        assert together == alone * 3
        assert vectors(chunked, TEXTS, RAW[kind]) == alone
    assert np.allclose(together, alone * 3, atol=1e-3)


def test_generation_beside_embeddings_is_undisturbed(smollm2_llm: Callable[..., LLM], fastest: str) -> None:
    llm = smollm2_llm(backend=fastest, max_model_len=256, max_num_seqs=20)
    params = SamplingParams(temperature=0, max_tokens=12)
    before = llm.generate(TEXTS[0], params)[0].outputs[0]
    core, generated = llm._core, llm.get_metrics().generated_tokens
    tokens: list[int] = []
    core.add_request("text", llm.get_tokenizer().encode(TEXTS[0]), params)
    found: dict[str, int] = {}
    for i, text in enumerate(TEXTS):
        core.add_request(f"vector-{i}", llm.get_tokenizer().encode(text), PoolingParams("mean").sampling())
    while core.has_unfinished():
        for update in core.step():
            if update.vector is not None:
                found[update.request_id] = len(update.vector)
                assert not update.tokens
            tokens += [token.token_id for token in update.tokens]
    assert tokens == before.token_ids
    assert found == {f"vector-{i}": 576 for i in range(len(TEXTS))}
    assert llm.get_metrics().generated_tokens - generated == len(tokens), "an embedding generates nothing"


def test_normalized_and_cut(smollm2_llm: Callable[..., LLM], fastest: str) -> None:
    llm = smollm2_llm(backend=fastest, max_model_len=256, max_num_seqs=20)
    (raw,) = vectors(llm, TEXTS[0], RAW["mean"])
    (cut,) = vectors(llm, TEXTS[0], PoolingParams("mean", dimensions=32))
    length = math.dist(raw[:32], [0.0] * 32)
    assert cut == pytest.approx([x / length for x in raw[:32]])
    assert math.dist(cut, [0.0] * 32) == pytest.approx(1.0)
    with pytest.raises(InvalidRequestError, match="dimensions 577 is above the model's 576"):
        llm.embed("a", pooling_params=PoolingParams(dimensions=577))


def test_like_texts_are_near(smollm2_llm: Callable[..., LLM], fastest: str) -> None:
    llm = smollm2_llm(backend=fastest, max_model_len=256, max_num_seqs=20)
    first, again, other = vectors(
        llm, ["A cat sleeps.", "A cat is sleeping.", "SELECT 1;"], PoolingParams("mean")
    )
    assert np.dot(first, again) > np.dot(first, other)


@pytest.mark.parametrize(
    ("fields", "param"),
    [({"pooling": "max"}, "pooling"), ({"dimensions": 0}, "dimensions"), ({"dimensions": 1.5}, "dimensions")],
)
def test_bad_params_are_named(fields: dict[str, Any], param: str) -> None:
    with pytest.raises(InvalidRequestError, match=param) as caught:
        PoolingParams(**fields)
    assert caught.value.param == param
