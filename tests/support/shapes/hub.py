"""Requests of huggingface_hub's InferenceClient and of TGI's own clients; statuses of TGI's reference.

Of TGI's parameters the types are huggingface_hub's (TextGenerationInput, ChatCompletionInput).
"""

from __future__ import annotations

from typing import Any

from huggingface_hub import ChatCompletionInput, TextGenerationInput

from support.shapes import ABSENT, MODEL, SCHEMA, Fields, Table
from support.shapes.chat import RESULT, USER, answer, called, function, part, say, shaped

WEATHER = function("weather", description="Of a city", parameters=SCHEMA)
NAMED: Fields = {"function": {"name": "weather"}}
CALL: Fields = {
    "id": "call_1",
    "type": "function",
    "function": {"name": "weather", "arguments": {"city": "Paris"}},
}
CHAT = Table(
    client="huggingface_hub chat_completion",
    path="/v1/chat/completions",
    reads="hub chat",
    base={"model": MODEL, "messages": [USER], "stream": False},
    taken=[
        {}, {"frequency_penalty": 0.5}, {"logprobs": True}, {"logprobs": True, "top_logprobs": 5},
        {"max_tokens": 3}, {"n": 1}, {"presence_penalty": -0.5}, {"seed": 4}, {"stop": ["lo"]},
    {"temperature": 0.2},
        {"top_p": 0.9}, {"model": "tgi"}, {"stream": True, "stream_options": {"include_usage": True}},
        {"response_format": {"type": "json_object"}}, {"response_format": {"type": "text"}},
        {"response_format": {"type": "json_object", "value": SCHEMA}}, shaped(SCHEMA, strict=True),
        {"tools": [WEATHER]}, {"tools": [WEATHER], "tool_choice": "auto"},
        {"tools": [WEATHER], "tool_choice": "required"}, {"tools": [WEATHER], "tool_choice": "none"},
        {"tools": [WEATHER], "tool_choice": NAMED}, say({"role": "system", "content": "Be brief."}, USER),
        say({"role": "user", "content": [part("Hi")]}), say(USER, answer("Hello"), USER),
        say(USER, called(CALL), RESULT), {"logit_bias": None, "stop": None, "tools": None},
    ],
    otherwise=[
        ({"messages": []}, 422, 400, "the path is OpenAI's, too, and so are its errors"),
        ({"temperature": -1}, 422, 400, "the path is OpenAI's, too, and so are its errors"),
        ({"tool_prompt": "Tools:"}, 200, 400, "the chat template writes tools"),
    ],
    params=ChatCompletionInput,
    headers={"user-agent": "unknown/None; hf_hub/2.4.0"},
)  # fmt: skip


def asked(**parameters: Any) -> Fields:
    return {"parameters": parameters}


PARAMETERS: list[Fields] = [
    {}, {"parameters": {}}, {"parameters": None}, asked(max_new_tokens=3), asked(do_sample=True),
    asked(do_sample=True, seed=5), asked(temperature=0.7), asked(top_k=5), asked(top_p=0.9),
    asked(typical_p=0.9),
    asked(repetition_penalty=1.2), asked(frequency_penalty=0.5), asked(stop=["lo"]), asked(stop=[]),
    asked(truncate=1), asked(watermark=True), asked(watermark=False), asked(details=True),
    asked(details=True, do_sample=True, seed=1), asked(details=True, top_n_tokens=3),
    asked(return_full_text=True),
    asked(return_full_text=False), asked(adapter_id=None), asked(grammar={"type": "json", "value": SCHEMA}),
    asked(grammar={"type": "regex", "value": "[a-z]+"}),
    asked(grammar={"type": "json_schema", "value": {"name": "a", "schema": SCHEMA}}),
    asked(max_new_tokens=2, temperature=1.5, top_k=3, top_p=0.5, seed=0, details=True), asked(best_of=1),
]  # fmt: skip
WHOLE: list[Fields] = [
    asked(best_of=2, do_sample=True, details=True), asked(decoder_input_details=True, details=True),
    asked(best_of=3, temperature=0.5), asked(decoder_input_details=True),
]  # fmt: skip
WRONG: list[tuple[Fields, int, str | None]] = [
    (asked(**{name: wrong}), 422, name)
    for name, wrong in {
        "temperature": 0, "top_k": 0, "top_p": 1.0, "typical_p": 0.0, "repetition_penalty": 0,
    "max_new_tokens": 0,
        "truncate": 0, "seed": -1, "do_sample": "yes", "stop": "lo", "details": 1, "grammar": {"type": "xml"},
        "best_of": 2, "top_n_tokens": -1, "return_full_text": "no", "frequency_penalty": "x", "temprature": 1,
        "adapter_id": "mine", "watermark": "yes",
    }.items()
]  # fmt: skip
INPUTS: list[tuple[Fields, int, str | None]] = [
    ({"inputs": ""}, 422, "inputs"), ({"inputs": ABSENT}, 422, "inputs"), ({"inputs": 5}, 422, "inputs"),
    ({"inputs": ["a", "b"]}, 422, "inputs"), ({"parameters": 5}, 422, "parameters"), ({"input": "a"},
    422, "input"),
    ({**asked(grammar={"type": "regex", "value": "(["})}, 422, "grammar"),
    ({**asked(grammar={"type": "json", "value": "{"})}, 422, "grammar"),
]  # fmt: skip
CLIENT: dict[str, Any] = {
    "params": TextGenerationInput,
    "streams": False,
    "headers": {"user-agent": "unknown/None; hf_hub/0.36.2"},
}
"""What huggingface_hub's tables share."""
GENERATE = Table(
    client="text-generation generate",
    path="/generate",
    reads="hub text",
    base={"inputs": "Hi"},
    taken=[*PARAMETERS, *WHOLE],
    refused=[*WRONG, *INPUTS, ({"stream": True}, 422, "stream")],
    **CLIENT,
)
STREAM = Table(
    client="text-generation generate_stream",
    path="/generate_stream",
    reads="hub tokens",
    base={"inputs": "Hi", "stream": True},
    taken=PARAMETERS,
    refused=[
        (asked(best_of=2, do_sample=True), 422, "best_of"),
        (asked(decoder_input_details=True), 422, "decoder_input_details"),
        (asked(temperature=-1.0), 422, "temperature"),
        ({"inputs": ""}, 422, "inputs"),
    ],
    **CLIENT,
)
ROOT = Table(
    client="huggingface_hub text_generation",
    path="/",
    reads="hub texts",
    base={"inputs": "Hi", "stream": False},
    taken=PARAMETERS,
    refused=[*WRONG[:6], *INPUTS[:4]],
    params=TextGenerationInput,
    headers={"user-agent": "unknown/None; hf_hub/2.4.0"},
)
