"""The official openai client, unmodified, against the real model."""

from __future__ import annotations

import asyncio
import json
import re
import time
from collections.abc import Callable, Iterator
from typing import Any

import httpx
import openai
import pytest
from openai import AsyncOpenAI, OpenAI

from support.served import KEY, Served, start

MODEL = "smollm2"
PARIS: list[Any] = [{"role": "user", "content": "What is the capital of France? Answer in one word."}]
STORY: list[Any] = [{"role": "user", "content": "Tell me a long story about a dragon."}]


@pytest.fixture(scope="module")
def client(served: Served) -> Iterator[OpenAI]:
    with OpenAI(base_url=f"{served.url}/v1", api_key=KEY, max_retries=0) as client:
        yield client


def run(served: Served, test: Callable[[AsyncOpenAI], Any]) -> Any:
    async def with_client() -> Any:
        async with AsyncOpenAI(base_url=f"{served.url}/v1", api_key=KEY, max_retries=0) as client:
            return await test(client)

    return asyncio.run(with_client())


def metric(served: Served, name: str) -> float:
    """The sum of a metric's samples."""
    text = httpx.get(f"{served.url}/metrics", headers={"authorization": f"Bearer {KEY}"}).text
    return sum(float(v) for v in re.findall(rf"^{re.escape(name)}(?:{{.*}})? (\S+)$", text, re.MULTILINE))


def wait_until(condition: Callable[[], bool]) -> None:
    for _ in range(600):
        if condition():
            return
        time.sleep(0.05)
    raise AssertionError("it never happened")


def test_models(client: OpenAI) -> None:
    (model,) = client.models.list().data
    assert model.id == client.models.retrieve(MODEL).id == MODEL


def test_chat(client: OpenAI) -> None:
    answer = client.chat.completions.create(model=MODEL, messages=PARIS, temperature=0, max_tokens=16)
    (choice,) = answer.choices
    assert choice.message.role == "assistant"
    assert "Paris" in (choice.message.content or "")
    assert choice.finish_reason in ("stop", "length")
    assert answer.usage is not None
    assert answer.usage.total_tokens == answer.usage.prompt_tokens + answer.usage.completion_tokens
    assert "<|im_end|>" not in (choice.message.content or "")


def test_a_stream_is_the_whole_answer_in_parts(client: OpenAI) -> None:
    ask: dict[str, Any] = {"model": MODEL, "messages": STORY, "temperature": 0, "max_tokens": 24}
    whole = client.chat.completions.create(**ask)
    parts = list(client.chat.completions.create(**ask, stream=True, stream_options={"include_usage": True}))
    text = "".join(part.choices[0].delta.content or "" for part in parts if part.choices)
    assert text == whole.choices[0].message.content
    assert parts[0].choices[0].delta.role == "assistant"
    assert parts[-2].choices[0].finish_reason == whole.choices[0].finish_reason == "length"
    assert parts[-1].usage is not None
    assert whole.usage is not None
    assert parts[-1].usage.completion_tokens == whole.usage.completion_tokens == 24


def test_the_second_identical_prompt_comes_from_the_cache(client: OpenAI) -> None:
    messages: list[Any] = [{"role": "user", "content": "one two three four five six seven eight " * 4}]
    ask: dict[str, Any] = {"model": MODEL, "messages": messages, "temperature": 0, "max_tokens": 4}
    first, second = (client.chat.completions.create(**ask) for _ in range(2))
    assert second.usage is not None
    assert second.usage.prompt_tokens_details is not None
    assert (second.usage.prompt_tokens_details.cached_tokens or 0) > 0
    assert first.choices[0].message.content == second.choices[0].message.content


def test_seeds(client: OpenAI) -> None:
    ask: dict[str, Any] = {"model": MODEL, "messages": STORY, "temperature": 1.0, "max_tokens": 12}
    drawn = client.chat.completions.create(**ask)
    assert drawn.model_extra is not None
    again = client.chat.completions.create(**ask, seed=drawn.model_extra["seed"])
    other = client.chat.completions.create(**ask, seed=12345)
    assert again.choices[0].message.content == drawn.choices[0].message.content
    assert other.choices[0].message.content != drawn.choices[0].message.content


def test_n_answers_differ(client: OpenAI) -> None:
    answer = client.chat.completions.create(model=MODEL, messages=STORY, n=3, max_tokens=12, seed=1)
    assert [choice.index for choice in answer.choices] == [0, 1, 2]
    assert len({choice.message.content for choice in answer.choices}) == 3
    texts = ["", "", ""]
    for part in client.chat.completions.create(
        model=MODEL, messages=STORY, n=3, max_tokens=12, seed=1, stream=True
    ):
        texts[part.choices[0].index] += part.choices[0].delta.content or ""
    assert texts == [choice.message.content for choice in answer.choices]


def test_stop_strings_are_never_shown(client: OpenAI) -> None:
    ask: dict[str, Any] = {"model": MODEL, "messages": PARIS, "temperature": 0, "max_tokens": 16}
    whole = client.chat.completions.create(**ask).choices[0].message.content or ""
    stop = whole[2:4]
    parts = list(client.chat.completions.create(**ask, stop=[stop], stream=True))
    assert "".join(part.choices[0].delta.content or "" for part in parts) == whole[: whole.index(stop)]
    assert parts[-1].choices[0].finish_reason == "stop"
    extra = parts[-1].choices[0].model_extra or {}
    assert extra["stop_reason"] == stop


def test_logprobs(client: OpenAI) -> None:
    answer = client.chat.completions.create(
        model=MODEL, messages=PARIS, temperature=0, max_tokens=4, logprobs=True, top_logprobs=3
    )
    logprobs = answer.choices[0].logprobs
    assert logprobs is not None
    assert logprobs.content is not None
    for entry in logprobs.content:
        assert len(entry.top_logprobs) == 3
        # Greedy: what was drawn is the likeliest, and the list is in order.
        assert (entry.token, entry.logprob) == (entry.top_logprobs[0].token, entry.top_logprobs[0].logprob)
        values = [top.logprob for top in entry.top_logprobs]
        assert values == sorted(values, reverse=True)
        assert all(value <= 0 for value in values)
    text = b"".join(bytes(e.bytes or []) for e in logprobs.content).decode()
    assert text.removesuffix("<|im_end|>") == answer.choices[0].message.content


def test_logit_bias_is_obeyed(client: OpenAI, served: Served) -> None:
    tokens = httpx.post(
        f"{served.url}/tokenize", json={"prompt": "dog"}, headers={"authorization": f"Bearer {KEY}"}
    ).json()["tokens"]
    answer = client.completions.create(
        model=MODEL, prompt="The", max_tokens=3, temperature=0, logit_bias={str(tokens[0]): 100}
    )
    assert answer.choices[0].text == "dogdogdog"


def test_completions(client: OpenAI) -> None:
    ask: dict[str, Any] = {"model": MODEL, "temperature": 0, "max_tokens": 6}
    text = client.completions.create(**ask, prompt="The capital of France is")
    assert "Paris" in text.choices[0].text
    both = client.completions.create(
        **ask, prompt=["The capital of France is", "One, two, three,"], echo=True
    )
    assert both.choices[0].text == "The capital of France is" + text.choices[0].text
    assert both.choices[1].text.startswith("One, two, three, four")
    stream = client.completions.create(**ask, prompt="The capital of France is", stream=True, logprobs=2)
    assert "".join(part.choices[0].text for part in stream) == text.choices[0].text


def test_completions_by_beam_search(client: OpenAI) -> None:
    beams = {"use_beam_search": True, "length_penalty": 0.0}
    found = client.completions.create(
        model=MODEL, prompt="The capital of France is", n=3, max_tokens=6, logprobs=0, extra_body=beams
    )
    sums = [sum(choice.logprobs.token_logprobs) for choice in found.choices]
    assert len({choice.text for choice in found.choices}) == 3
    assert sums == sorted(sums, reverse=True)
    assert "Paris" in found.choices[0].text


def test_beams_under_a_grammar(client: OpenAI) -> None:
    schema = {
        "type": "object",
        "properties": {"city": {"type": "string", "maxLength": 8}, "big": {"type": "boolean"}},
        "required": ["city", "big"],
        "additionalProperties": False,
    }
    ask: dict[str, Any] = {"model": MODEL, "prompt": "Paris as JSON: ", "max_tokens": 40}
    found = client.completions.create(
        **ask, n=4, extra_body={"use_beam_search": True, "structured_outputs": {"json": schema}}
    )
    answers = [json.loads(choice.text) for choice in found.choices]
    assert len(answers) == 4
    assert all(set(answer) == {"city", "big"} for answer in answers)
    few = client.completions.create(
        **ask, n=4, extra_body={"use_beam_search": True, "structured_outputs": {"regex": "[01]"}}
    )
    assert [choice.index for choice in few.choices] == list(range(len(few.choices)))
    assert {choice.text for choice in few.choices} == {"0", "1"}


def test_token_id_prompts(client: OpenAI, served: Served) -> None:
    ids = httpx.post(
        f"{served.url}/tokenize",
        json={"prompt": "The capital of France is"},
        headers={"authorization": f"Bearer {KEY}"},
    ).json()["tokens"]
    ask: dict[str, Any] = {"model": MODEL, "temperature": 0, "max_tokens": 6}
    by_text = client.completions.create(**ask, prompt="The capital of France is").choices[0].text
    assert client.completions.create(**ask, prompt=ids).choices[0].text == by_text
    assert client.completions.create(**ask, prompt=[ids, ids]).choices[1].text == by_text


def test_many_at_once_answer_as_alone(served: Served) -> None:
    async def test(client: AsyncOpenAI) -> None:
        async def ask(number: int) -> str:
            stream = await client.completions.create(
                model=MODEL, prompt=f"{number} plus {number} is", max_tokens=8, temperature=0.9, seed=number,
                stream=True,
            )  # fmt: skip
            return "".join([part.choices[0].text async for part in stream])

        alone = [await ask(number) for number in range(6)]
        together = await asyncio.gather(*(ask(number) for number in range(6)))
        assert together == alone

    run(served, test)


def test_a_late_request_does_not_wait_for_an_early_one(served: Served) -> None:
    async def test(client: AsyncOpenAI) -> None:
        early = await client.completions.create(
            model=MODEL, prompt="Once", max_tokens=1500, stream=True, extra_body={"ignore_eos": True}
        )
        parts = aiter(early)
        await anext(parts)
        late = await client.completions.create(model=MODEL, prompt="Twice", max_tokens=2)
        assert late.usage is not None
        assert late.usage.completion_tokens == 2
        assert metric(served, "octavo_num_requests_running") >= 1
        await early.close()

    run(served, test)


@pytest.mark.parametrize("stream", [False, True])
def test_work_ends_when_the_client_leaves(served: Served, stream: bool) -> None:
    wait_until(lambda: metric(served, "vllm:num_requests_running") == 0)
    cut = metric(served, "octavo_request_cut_total")

    async def test(client: AsyncOpenAI) -> None:
        ask = client.completions.create(
            model=MODEL, prompt="Once", max_tokens=1500, stream=stream, extra_body={"ignore_eos": True}
        )
        if stream:
            response: Any = await ask
            await anext(aiter(response))
            await response.close()
        else:
            task = asyncio.ensure_future(ask)
            while metric(served, "vllm:num_requests_running") == 0:
                await asyncio.sleep(0.02)
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)

    run(served, test)
    wait_until(lambda: metric(served, "vllm:num_requests_running") == 0)
    assert metric(served, "octavo_request_cut_total") == cut + 1


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"max_tokens": 0}, "max_tokens"),
        ({"max_tokens": -1}, "max_tokens"),
        ({"temperature": -1}, "temperature"),
        ({"n": 10**6}, "n"),
        ({"messages": []}, "messages"),
        ({"messages": [{"role": "user", "content": "word " * 5000}]}, "messages"),
        ({"logit_bias": {"99999": 1}}, "logit_bias"),
        ({"stop": ["x"] * 1000}, "stop"),
        ({"extra_body": {"tempreature": 1}}, "tempreature"),
        ({"tools": [{"type": "retrieval"}]}, "tools"),
        ({"response_format": {"type": "xml"}}, "response_format"),
        ({"extra_body": {"best_of": 3}}, "best_of"),
    ],
)
@pytest.mark.parametrize("stream", [False, True])
def test_bad_requests_name_the_field(
    client: OpenAI, fields: dict[str, Any], param: str, stream: bool
) -> None:
    ask: dict[str, Any] = {"model": MODEL, "messages": PARIS, "stream": stream, **fields}
    with pytest.raises(openai.BadRequestError) as caught:
        client.chat.completions.create(**ask)
    assert caught.value.param == param


def test_bad_requests_leave_a_stream_alone(served: Served) -> None:
    async def test(client: AsyncOpenAI) -> None:
        ask: dict[str, Any] = {"model": MODEL, "prompt": "Once upon a time", "max_tokens": 24, "seed": 3}
        alone = (await client.completions.create(**ask)).choices[0].text
        text = ""
        async for part in await client.completions.create(**ask, stream=True):
            text += part.choices[0].text
            with pytest.raises(openai.BadRequestError):
                await client.completions.create(model=MODEL, prompt="x" * 100_000)
        assert text == alone

    run(served, test)


def test_other_errors(client: OpenAI, served: Served) -> None:
    with pytest.raises(openai.NotFoundError) as caught:
        client.chat.completions.create(model="gpt-4", messages=PARIS)
    assert caught.value.code == "model_not_found"
    with (
        OpenAI(base_url=f"{served.url}/v1", api_key="wrong", max_retries=0) as wrong,
        pytest.raises(openai.AuthenticationError),
    ):
        wrong.models.list()


def test_sigterm_lets_streams_end(served: Served) -> None:
    server = start("--max-model-len", "512")
    with OpenAI(base_url=f"{server.url}/v1", api_key="dummy", max_retries=0) as client:
        stream = client.completions.create(
            model=MODEL, prompt="Once", max_tokens=80, stream=True, extra_body={"ignore_eos": True}
        )
        parts = [next(stream)]
        server.process.terminate()
        wait_until(lambda: httpx.get(f"{server.url}/health").status_code == 503)
        with pytest.raises(openai.InternalServerError, match="shutting down"):
            client.completions.create(model=MODEL, prompt="Twice", max_tokens=1)
        parts += list(stream)
    assert parts[-1].choices[0].finish_reason == "length"
    assert server.process.wait(60) == 0
    server.end()
    assert server.events[-1] == {"event": "stopped", "finished": True}


def test_embeddings(client: OpenAI) -> None:
    """The client asks for base64 by itself, and decodes it."""
    texts = ["A page is a leaf.", "Water boils."]
    answer = client.embeddings.create(model=MODEL, input=texts)
    assert [len(item.embedding) for item in answer.data] == [576, 576]
    plain = client.embeddings.create(model=MODEL, input=texts[1], encoding_format="float")
    assert answer.data[1].embedding == pytest.approx(plain.data[0].embedding, abs=1e-6)
    short = client.embeddings.create(model=MODEL, input=texts[1], dimensions=8)
    assert sum(x * x for x in short.data[0].embedding) == pytest.approx(1.0, abs=1e-5)
    with pytest.raises(openai.BadRequestError, match="dimensions"):
        client.embeddings.create(model=MODEL, input=texts[1], dimensions=577)
