"""Instructor's typed answers, in each of its modes: python instructor_client.py URL KEY MODEL."""

import sys
from typing import Annotated, Literal

import instructor
import openai
from pydantic import BaseModel, ConfigDict, Field

MODES = ("TOOLS", "TOOLS_STRICT", "JSON_SCHEMA")
"""Those that promise the schema."""


class City(BaseModel):
    """A city, its size and its rivers."""

    model_config = ConfigDict(extra="forbid")  # an open schema lets a small model invent properties for ever
    name: str = Field(max_length=12)
    inhabitants: int = Field(ge=0, le=20_000_000)
    size: Literal["small", "large"]
    rivers: list[Annotated[str, Field(max_length=12)]] = Field(max_length=2)


def main(url: str, key: str, model: str) -> None:
    client = openai.OpenAI(base_url=f"{url}/v1", api_key=key, max_retries=0)
    asked = {
        "model": model,
        "messages": [{"role": "user", "content": "Describe Paris."}],
        "temperature": 0,
        "max_tokens": 300,
        "max_retries": 0,
    }
    for name in MODES:
        typed = instructor.from_openai(client, mode=instructor.Mode[name])
        city = typed.chat.completions.create(response_model=City, **asked)
        assert isinstance(city, City), name
    typed = instructor.from_openai(client, mode=instructor.Mode.JSON_SCHEMA)
    parts = list(typed.chat.completions.create_partial(response_model=City, **asked))
    assert len(parts) > 1, "the answer was not streamed"
    City.model_validate(parts[-1].model_dump())
    print(f"instructor: {', '.join(MODES)} and a stream of {len(parts)} parts")


if __name__ == "__main__":
    main(*sys.argv[1:])
