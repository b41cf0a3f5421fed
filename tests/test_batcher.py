"""ContinuousBatcher: the lesson's calls, and the texts that LLM gives."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest

from octavo import LLM, ContinuousBatcher, SamplingParams
from octavo.engine.request import RequestUpdate
from octavo.errors import InvalidRequestError, OctavoError

PROMPTS = {"a": "The capital of France is", "b": "Two plus two makes", "c": "The sea is"}


@pytest.fixture(scope="module")
def llm() -> Iterator[LLM]:
    llm = LLM("smollm2", max_model_len=256, max_num_seqs=4, num_pages=64)
    yield llm
    llm.shutdown()


def test_texts_come_as_requests_end_and_are_those_of_generate(llm: LLM) -> None:
    batcher = ContinuousBatcher(llm, llm.get_tokenizer(), max_batch_size=2, max_seq_len=64)
    lengths = {"a": 8, "b": 3, "c": 5}
    for name, prompt in PROMPTS.items():
        batcher.add_request(name, prompt, lengths[name])
    assert len(batcher.request_queue) == 3
    ended: list[str] = []
    texts: dict[str, str] = {}
    while batcher.request_queue or batcher.active_requests:
        done = batcher.step()
        assert len(batcher.active_requests) <= 2
        ended += done
        texts |= done
    assert ended == ["b", "a", "c"] or ended == ["b", "c", "a"], "the short one leaves first, and c enters"
    params = [SamplingParams(temperature=0, max_tokens=lengths[name]) for name in PROMPTS]
    outputs = llm.generate(list(PROMPTS.values()), params, use_tqdm=False)
    assert texts == {name: one.outputs[0].text for name, one in zip(PROMPTS, outputs, strict=True)}
    assert batcher.step() == {}


def test_it_is_made_of_a_name_too() -> None:
    batcher = ContinuousBatcher("smollm2", max_batch_size=1, max_seq_len=64, num_pages=16)
    batcher.add_request("r1", "Hello", 2)
    while not (done := batcher.step()):
        pass
    assert set(done) == {"r1"}
    assert batcher.llm.max_model_len == 64
    batcher.llm.shutdown()


def test_a_request_that_fails_takes_no_other_with_it(llm: LLM, monkeypatch: pytest.MonkeyPatch) -> None:
    """All three end in one step, and the first of them by an error."""
    batcher = ContinuousBatcher(llm, max_seq_len=64)
    for name, prompt in PROMPTS.items():
        batcher.add_request(name, prompt, 2)
    whole = llm.core.step

    def step() -> list[RequestUpdate]:
        updates = list(whole())
        first = next(iter(batcher._streams), None)
        return [
            replace(each, finish_reason="error", stop_reason="no memory")
            if each.finish_reason and each.request_id == first
            else each
            for each in updates
        ]

    monkeypatch.setattr(llm.core, "step", step)
    with pytest.raises(OctavoError, match="request a failed: no memory"):
        any(batcher.step() for _ in range(20))
    assert (batcher.active_requests, batcher.request_queue) == ({}, [])
    done = batcher.step()
    params = SamplingParams(temperature=0, max_tokens=2)
    outputs = llm.generate([PROMPTS["b"], PROMPTS["c"]], params, use_tqdm=False)
    assert done == dict(zip("bc", (one.outputs[0].text for one in outputs), strict=True))
    assert batcher.step() == {}


def test_what_is_wrong_is_said(llm: LLM) -> None:
    for size in (0, -5):
        with pytest.raises(InvalidRequestError, match="max_batch_size must be a positive integer"):
            ContinuousBatcher(llm, max_batch_size=size)
    batcher = ContinuousBatcher(llm, max_seq_len=10)
    with pytest.raises(InvalidRequestError, match="more than max_seq_len 10"):
        batcher.add_request("long", "Hello", 10)
    with pytest.raises(InvalidRequestError, match="prompt is empty"):
        batcher.add_request("none", "", 4)
    batcher.add_request("r", "Hello", 4)
    with pytest.raises(InvalidRequestError, match="'r' is in use"):
        batcher.add_request("r", "Hello", 4)
    cases: list[tuple[tuple[Any, ...], str]] = [
        ((5, 4), "prompt must be a list of token ids"),
        ((["a"], 4), "prompt must be a text or token ids"),
        (("Hello", "4"), "max_tokens must be a positive integer"),
        (("Hello", 0), "max_tokens must be a positive integer"),
        (("Hello", 4, {"temperature": 0}), "sampling_params must be SamplingParams"),
    ]
    for wrong, said in cases:
        with pytest.raises(InvalidRequestError, match=said):
            batcher.add_request("wrong", *wrong)
    with pytest.raises(InvalidRequestError, match="dtype belongs to LLM"):
        ContinuousBatcher(llm, dtype="float32")
