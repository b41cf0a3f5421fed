"""OpenAI's completions and embeddings: openai's typed parameters, statuses of its API reference."""

from __future__ import annotations

from openai.types.completion_create_params import CompletionCreateParamsNonStreaming
from openai.types.embedding_create_params import EmbeddingCreateParams

from support.shapes import ABSENT, MODEL, Fields, Table

PROMPTS: list[Fields] = [
    {"prompt": prompt}
    for prompt in (
        "Once", "a\nb", "\u00fc \U0001f600", ["Once", "Twice"], ["one of a list"], [72, 105], [[72, 105],
        [72]],
        [[65]], "x" * 5000,
    )
]  # fmt: skip
COMPLETION: list[Fields] = [
    {}, {"suffix": None}, {"max_tokens": 1}, {"max_tokens": 64}, {"max_tokens": None}, {"temperature": 0},
    {"temperature": 2}, {"top_p": 0.5}, {"n": 3}, {"n": 2, "prompt": ["a", "b"]}, {"echo": True},
    {"echo": True, "prompt": [72, 105]}, {"echo": False}, {"logprobs": 0}, {"logprobs": 5},
    {"logprobs": None},
    {"echo": True, "logprobs": 1}, {"best_of": 1}, {"stop": "l"}, {"stop": ["l", "o"]}, {"stop": None},
    {"presence_penalty": 1.5}, {"frequency_penalty": -1.5}, {"logit_bias": {"72": 100}}, {"seed": 3},
    {"user": "somebody"}, {"stream": True, "stream_options": {"include_usage": True}},
    {"stream": True, "n": 2, "logprobs": 2}, {"stream": True, "echo": True},
    {"stream": True, "prompt": ["a", "b"], "max_tokens": 2},
    {"temperature": 0, "max_tokens": 3, "logprobs": 1},
]  # fmt: skip
COMPLETION_TYPES: list[tuple[Fields, int, str | None]] = [
    ({name: wrong}, 400, name)
    for name, wrong in {
        "prompt": {"a": 1}, "max_tokens": "5", "temperature": "hot", "n": 1.5, "echo": "yes",
        "logprobs": True,
        "best_of": "2", "stop": 3, "logit_bias": 5, "seed": "x", "user": 5, "stream": 1, "model": 5,
        "top_p": "x", "presence_penalty": [], "frequency_penalty": "0",
    }.items()
]  # fmt: skip
COMPLETION_WRONG: list[tuple[Fields, int, str | None]] = [
    ({"temperature": -1}, 400, "temperature"), ({"top_p": 1.01}, 400, "top_p"), ({"n": 0}, 400, "n"),
    ({"n": 129}, 400, "n"), ({"max_tokens": -1}, 400, "max_tokens"), ({"best_of": 1, "n": 2}, 400, "best_of"),
    ({"best_of": 2, "stream": True}, 400, "best_of"), ({"presence_penalty": -3}, 400, "presence_penalty"),
    ({"frequency_penalty": 3}, 400, "frequency_penalty"), ({"logit_bias": {"x": 1}}, 400, "logit_bias"),
    ({"logit_bias": {"65": -101}}, 400, "logit_bias"), ({"prompt": [1, "a"]}, 400, "prompt"),
    ({"prompt": [-1]}, 400, "prompt"), ({"prompt": [999]}, 400, "prompt"), ({"promt": "a"}, 400, "promt"),
    ({"stream_options": {"include_usage": True}}, 400, "stream_options"), ({"messages": []}, 400, "messages"),
    ({"logprobs": -1}, 400, "logprobs"), ({"model": "davinci-002"}, 404, "model"),
    ({"model": "davinci-002", "stream": True}, 404, "model"),
]  # fmt: skip
COMPLETION_OTHERWISE: list[tuple[Fields, int, int, str]] = [
    ({"prompt": ABSENT}, 200, 400, "the service goes on from its own end-of-text token"),
    ({"suffix": " end"}, 200, 400, "only the end of a text is continued"),
    ({"logprobs": 6}, 400, 200, "vLLM's clients may have 20"),
    ({"stop": list("abcde")}, 400, 200, "vLLM's clients may"),
    ({"temperature": 3}, 400, 200, "vLLM's clients may"),
]
COMPLETIONS = Table(
    client="openai-python completions",
    path="/v1/completions",
    reads="openai text",
    base={"model": MODEL, "prompt": "Hi"},
    taken=[*COMPLETION, *PROMPTS],
    refused=[*COMPLETION_TYPES, *COMPLETION_WRONG],
    otherwise=COMPLETION_OTHERWISE,
    params=CompletionCreateParamsNonStreaming,
    headers={"user-agent": "OpenAI/Python 3.52.0"},
)

EMBEDDINGS = Table(
    client="openai-python embeddings",
    path="/v1/embeddings",
    reads="openai vectors",
    base={"model": MODEL, "input": "Hi"},
    taken=[
        {}, {"input": ["a", "b"]}, {"input": ["one of a list"]}, {"input": [72, 105]},
        {"input": [[72], [105]]},
        {"encoding_format": "float"}, {"encoding_format": "base64"}, {"dimensions": 2}, {"dimensions": 4},
        {"user": "somebody"}, {"input": ["a"] * 64, "encoding_format": "base64", "dimensions": 3},
    ],
    refused=[
        ({"input": ABSENT}, 400, "input"), ({"input": ""}, 400, "input"), ({"input": []}, 400, "input"),
        ({"input": {"text": "a"}}, 400, "input"), ({"input": [1, "a"]}, 400, "input"),
        ({"input": [[]]}, 400, "input"), ({"encoding_format": "int8"}, 400, "encoding_format"),
        ({"dimensions": 0}, 400, "dimensions"), ({"dimensions": 5}, 400, "dimensions"),
        ({"dimensions": "2"}, 400, "dimensions"), ({"user": 5}, 400, "user"), ({"inputs": "a"},
        400, "inputs"),
        ({"model": "text-embedding-3-small"}, 404, "model"),
    ],
    params=EmbeddingCreateParams,
    streams=False,
    headers={"user-agent": "OpenAI/Python 3.52.0"},
)  # fmt: skip
