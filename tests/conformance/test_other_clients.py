"""Clients that others wrote, unmodified, against the real model: Anthropic's, LangChain, Pydantic AI."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import anthropic
import openai
import pytest
from pydantic import BaseModel, Field

from support.served import KEY, Served

MODEL = "smollm2"
PARIS = "What is the capital of France? Answer in one word."
SCHEMA = {
    "type": "object",
    "properties": {"city": {"type": "string", "maxLength": 12}},
    "required": ["city"],
    "additionalProperties": False,
}


class City(BaseModel):
    """A city and its size."""

    name: str = Field(max_length=12)
    inhabitants: int = Field(ge=0, le=20_000_000)


@pytest.fixture(scope="module")
def claude(served: Served) -> Iterator[anthropic.Anthropic]:
    with anthropic.Anthropic(base_url=served.url, api_key=KEY, max_retries=0) as client:
        yield client


@pytest.fixture(scope="module")
def client(served: Served) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"{served.url}/v1", api_key=KEY, max_retries=0) as client:
        yield client


def test_anthropic_answers_and_streams(claude: anthropic.Anthropic) -> None:
    asked = {"model": MODEL, "max_tokens": 16, "messages": [{"role": "user", "content": PARIS}]}
    answer = claude.messages.create(**asked, extra_body={"temperature": 0})  # type: ignore[call-overload]
    assert "Paris" in answer.content[0].text
    assert answer.stop_reason in ("end_turn", "max_tokens")
    with claude.messages.stream(**asked, extra_body={"temperature": 0}) as stream:  # type: ignore[arg-type]
        text = "".join(stream.text_stream)
        final = stream.get_final_message()
    assert text == answer.content[0].text
    assert final.stop_reason == answer.stop_reason
    assert final.usage.output_tokens == answer.usage.output_tokens


def test_anthropic_tools(claude: anthropic.Anthropic) -> None:
    tool = {"name": "get_weather", "description": "Weather of a city", "input_schema": SCHEMA}
    asked = {
        "model": MODEL,
        "max_tokens": 80,
        "messages": [{"role": "user", "content": "What is the weather in Paris?"}],
        "tools": [tool],
        "tool_choice": {"type": "tool", "name": "get_weather"},
    }
    answer = claude.messages.create(**asked)  # type: ignore[call-overload]
    assert answer.stop_reason == "tool_use"
    assert set(answer.content[0].input) == {"city"}
    with claude.messages.stream(**asked) as stream:  # type: ignore[arg-type]
        final = stream.get_final_message()
    assert final.content[0].type == "tool_use"
    assert set(final.content[0].input) == {"city"}


def test_anthropic_errors_are_its_own(claude: anthropic.Anthropic) -> None:
    with pytest.raises(anthropic.BadRequestError, match="temperature"):
        claude.messages.create(
            model=MODEL,
            max_tokens=1,
            messages=[{"role": "user", "content": "Hi"}],
            extra_body={"temperature": 200},
        )


def test_openai_structured_outputs(client: openai.OpenAI) -> None:
    answer = client.chat.completions.parse(
        model=MODEL, messages=[{"role": "user", "content": "Tell me about Paris."}], response_format=City
    )
    assert isinstance(answer.choices[0].message.parsed, City)


def test_openai_tool_calls_streamed_are_the_whole(client: openai.OpenAI) -> None:
    tools = [{"type": "function", "function": {"name": "weather", "parameters": SCHEMA}}]
    asked = {
        "model": MODEL,
        "messages": [{"role": "user", "content": "What is the weather in Paris?"}],
        "tools": tools,
        "tool_choice": "required",
        "parallel_tool_calls": False,
        "temperature": 0,
        "max_tokens": 80,
    }
    whole = client.chat.completions.create(**asked)  # type: ignore[call-overload]
    with client.chat.completions.stream(**asked) as stream:  # type: ignore[arg-type]
        streamed = stream.get_final_completion()
    (one,), (other,) = whole.choices[0].message.tool_calls, streamed.choices[0].message.tool_calls or []
    assert one.function.name == other.function.name == "weather"
    assert one.function.arguments == other.function.arguments


def test_openai_responses(client: openai.OpenAI) -> None:
    first = client.responses.create(model=MODEL, input=PARIS, temperature=0, max_output_tokens=16)
    assert "Paris" in first.output_text
    with client.responses.stream(
        model=MODEL, input="And of Italy?", previous_response_id=first.id, temperature=0, max_output_tokens=24
    ) as stream:
        text = "".join(e.delta for e in stream if e.type == "response.output_text.delta")
        final = stream.get_final_response()
    assert text == final.output_text
    assert client.responses.retrieve(final.id).output_text == text
    client.responses.delete(final.id)
    with pytest.raises(openai.NotFoundError):
        client.responses.retrieve(final.id)


def test_langchain(served: Served) -> None:
    from langchain_openai import ChatOpenAI

    model = ChatOpenAI(
        model=MODEL, base_url=f"{served.url}/v1", api_key=KEY, temperature=0, max_tokens=200, max_retries=0
    )
    assert "Paris" in model.invoke(PARIS).text
    assert "Paris" in "".join(chunk.text for chunk in model.stream(PARIS))
    city = model.with_structured_output(City, method="json_schema").invoke("Describe Paris.")
    assert isinstance(city, City)
    called = model.bind_tools([City], tool_choice="City", strict=True).invoke("Describe Paris.")
    assert called.tool_calls[0]["name"] == "City"
    City(**called.tool_calls[0]["args"])


def test_pydantic_ai(served: Served) -> None:
    from pydantic_ai import Agent, NativeOutput
    from pydantic_ai.models.openai import OpenAIChatModel
    from pydantic_ai.providers.openai import OpenAIProvider

    async def talk() -> None:  # one loop and a client that is closed: run_sync() leaves both open
        async with openai.AsyncOpenAI(base_url=f"{served.url}/v1", api_key=KEY) as client:
            model = OpenAIChatModel(MODEL, provider=OpenAIProvider(openai_client=client))
            agent = Agent(model, model_settings={"temperature": 0, "max_tokens": 100})
            assert "Paris" in (await agent.run(PARIS)).output
            for output in (City, NativeOutput(City)):
                typed = Agent(model, output_type=output, model_settings={"temperature": 0, "max_tokens": 100})
                assert isinstance((await typed.run("Describe Paris.")).output, City)

    asyncio.run(talk())


def test_langchain_embeddings(served: Served) -> None:
    from langchain_openai import OpenAIEmbeddings

    made = OpenAIEmbeddings(
        base_url=f"{served.url}/v1", api_key=KEY, model="smollm2", check_embedding_ctx_length=False
    )
    documents = made.embed_documents(["A page is a leaf.", "Water boils."])
    assert [len(vector) for vector in documents] == [576, 576]
    assert made.embed_query("Water boils.") == pytest.approx(documents[1], abs=1e-6)
