"""huggingface_hub's InferenceClient, unmodified, against the real model by TGI's API."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from math import isclose
from typing import Any

import pytest
from huggingface_hub import AsyncInferenceClient, InferenceClient, TextGenerationOutput
from huggingface_hub.errors import ValidationError

import octavo
from octavo import WatermarkDetector
from support.served import KEY, Served

PROMPT = "The capital of France is"
SCHEMA = {
    "type": "object",
    "properties": {"city": {"type": "string", "maxLength": 12}},
    "required": ["city"],
    "additionalProperties": False,
}


@pytest.fixture(scope="module")
def client(served: Served) -> Iterator[InferenceClient]:
    with InferenceClient(served.url, token=KEY) as client:
        yield client


def text(client: InferenceClient, **wishes: Any) -> Any:
    return client.text_generation(PROMPT, return_full_text=False, max_new_tokens=8, **wishes)


def test_text_with_details(client: InferenceClient) -> None:
    answer: TextGenerationOutput = text(client, details=True, decoder_input_details=True, top_n_tokens=2)
    assert "Paris" in answer.generated_text
    details = answer.details
    assert details is not None
    assert (details.finish_reason, details.generated_tokens, details.seed) == ("length", 8, None)
    assert "".join(token.text for token in details.tokens) == answer.generated_text
    assert "".join(token.text for token in details.prefill) == PROMPT
    assert details.prefill[0].logprob is None
    assert all(token.logprob < 0 for token in [*details.tokens, *details.prefill[1:]])
    for token, likeliest in zip(details.tokens, details.top_tokens or [], strict=True):
        assert likeliest[0]["id"] == token.id  # type: ignore[index]  # (which the client leaves as they came)
    assert text(client) == answer.generated_text
    assert client.text_generation(PROMPT, max_new_tokens=8) == PROMPT + answer.generated_text


def test_a_stream_is_the_whole_answer(client: InferenceClient) -> None:
    whole = text(client, details=True)
    streamed = list(text(client, details=True, stream=True))
    assert (
        "".join(each.token.text for each in streamed) == streamed[-1].generated_text == whole.generated_text
    )
    for each, token in zip(streamed, whole.details.tokens, strict=True):
        assert each.token.id == token.id
        assert isclose(each.token.logprob, token.logprob, abs_tol=1e-9)
    assert streamed[-1].details.generated_tokens == 8
    assert "".join(text(client, stream=True)) == whole.generated_text


def test_stop_texts_stay_and_seeds_repeat(client: InferenceClient) -> None:
    stopped = text(client, details=True, stop=["Par"])
    assert stopped.generated_text.endswith("Par")
    assert stopped.details.finish_reason == "stop_sequence"
    assert "".join(token.text for token in stopped.details.tokens) == stopped.generated_text
    one, other = (text(client, details=True, temperature=0.9, top_k=20, seed=5) for _ in range(2))
    assert one == other
    assert one.details.seed == 5
    several = text(client, details=True, do_sample=True, best_of=2)
    assert len(several.details.best_of_sequences) == 1


def test_a_typical_draw_with_a_mark(client: InferenceClient) -> None:
    asked = {"seed": 5, "temperature": 1.0, "typical_p": 0.5, "max_new_tokens": 100}
    begun = "The old lighthouse keeper opened the letter and"
    marked, plain = (
        client.text_generation(begun, return_full_text=False, watermark=mark, **asked)  # type: ignore[call-overload]
        for mark in (True, False)
    )
    detector = WatermarkDetector("smollm2")
    assert detector.detect(marked).z > 3 > detector.detect(plain).z


def test_a_grammar(client: InferenceClient) -> None:
    found = client.text_generation(
        PROMPT,
        return_full_text=False,
        grammar={"type": "json", "value": SCHEMA},
        max_new_tokens=64,  # type: ignore[arg-type]
    )
    assert json.loads(found).keys() == {"city"}


def test_chat_as_it_stands(client: InferenceClient) -> None:
    """Its model is "dummy" where nobody names one."""
    messages = [{"role": "user", "content": "What is the capital of France? Answer in one word."}]
    answer = client.chat_completion(messages, max_tokens=16, temperature=0)
    content = answer.choices[0].message.content
    assert content is not None
    assert "Paris" in content
    chunks = client.chat.completions.create(messages, max_tokens=16, temperature=0, stream=True)
    assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices) == content


def test_a_chat_with_a_grammar(client: InferenceClient) -> None:
    """In TGI's own forms of response_format."""
    messages = [{"role": "user", "content": "Where is the Louvre?"}]
    for kind, value in (("json", SCHEMA), ("regex", "[0-9]{4}")):
        shape: Any = {"type": kind, "value": value}
        answer = client.chat_completion(messages, max_tokens=64, temperature=0, response_format=shape)
        content = answer.choices[0].message.content or ""
        assert content.isdigit() if kind == "regex" else json.loads(content).keys() == {"city"}
        assert answer.system_fingerprint == f"octavo-{octavo.__version__}"


def test_endpoint_and_health(served: Served) -> None:
    with InferenceClient(served.url, token=KEY, provider="hf-inference") as client:
        info = client.get_endpoint_info()
        assert (info["model_id"], info["max_total_tokens"]) == ("smollm2", 2048)
        assert info["model_dtype"] == "Q4_1"
        assert client.health_check() is True


def test_errors_are_those_of_the_client(client: InferenceClient) -> None:
    with pytest.raises(ValidationError, match="inputs cannot be empty"):
        client.text_generation("")
    with pytest.raises(ValidationError, match=r"top_p must be > 0\.0"):
        text(client, top_p=1.0)
    with pytest.raises(ValidationError, match="best_of != 1"):
        list(text(client, stream=True, best_of=2, do_sample=True))


def test_the_client_that_waits_for_nothing(served: Served) -> None:
    async def ask() -> str:
        async with AsyncInferenceClient(served.url, token=KEY) as client:
            found = await client.text_generation(
                PROMPT, return_full_text=False, max_new_tokens=8, stream=True
            )
            return "".join([piece async for piece in found])

    assert "Paris" in asyncio.run(ask())
