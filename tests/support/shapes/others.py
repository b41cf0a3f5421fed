"""What clients of vLLM and llama.cpp send beside OpenAI's fields; statuses of their references."""

from __future__ import annotations

from support.shapes import MODEL, SCHEMA, Fields, Table
from support.shapes.chat import USER, answer, say

LARK = 'start: "yes" | "no"'
SAMPLING: list[Fields] = [
    {"top_k": 5}, {"top_k": -1}, {"min_p": 0.1}, {"repetition_penalty": 1.1}, {"stop_token_ids": [72, 105]},
    {"include_stop_str_in_output": True, "stop": ["l"]}, {"ignore_eos": True, "max_tokens": 5},
    {"min_tokens": 2},
    {"skip_special_tokens": False}, {"spaces_between_special_tokens": False}, {"truncate_prompt_tokens": 5},
    {"allowed_token_ids": [72, 101, 108, 111]}, {"bad_words": ["no"]}, {"bad_words": []}, {"priority": 1},
    {"request_id": "mine"}, {"return_token_ids": True}, {"cache_salt": "mine"},
    {"stream": True, "stream_options": {"include_usage": True, "continuous_usage_stats": True}},
    {"structured_outputs": {"json": SCHEMA}}, {"structured_outputs": {"regex": "[a-z]+"}},
    {"structured_outputs": {"choice": ["yes", "no"]}}, {"structured_outputs": {"grammar": LARK}},
    {"structured_outputs": {"json_object": True}}, {"guided_json": SCHEMA}, {"guided_regex": "[0-9]{3}"},
    {"guided_choice": ["a", "b"]}, {"guided_grammar": LARK},
    {"guided_json": SCHEMA, "guided_decoding_backend": "auto"},
    {"response_format": {"type": "structural_tag", "structures": [
        {"begin": "<f>", "schema": SCHEMA, "end": "</f>"}], "triggers": ["<f>"]}},
    {"temperature": 0.7, "top_k": 20, "top_p": 0.8, "min_p": 0, "repetition_penalty": 1.05},
]  # fmt: skip
SCORED: list[Fields] = [
    {"prompt_logprobs": 1}, {"use_beam_search": True, "n": 2}, {"prompt_logprobs": 0, "max_tokens": 1},
    {"use_beam_search": True, "n": 3, "length_penalty": 0.5}, {"best_of": 2},
]  # fmt: skip
WRONG: list[tuple[Fields, int, str | None]] = [
    ({name: wrong}, 400, name)
    for name, wrong in {
        "top_k": -2, "min_p": 1.5, "repetition_penalty": 0, "stop_token_ids": ["a"], "min_tokens": -1,
        "truncate_prompt_tokens": 0, "allowed_token_ids": [], "bad_words": [5], "priority": "high",
        "structured_outputs": {"json": SCHEMA, "regex": "a"}, "guided_regex": "([", "guided_json": "{",
        "prompt_logprobs": -1, "ignore_eos": "yes", "length_penalty": 2.0, "skip_special_tokens": 5,
        "guided_choice": [], "cache_salt": 5,
    }.items()
]  # fmt: skip
EXTRA = frozenset(
    name
    for row in (*SAMPLING, *SCORED)
    for name in row
) | {"add_generation_prompt", "continue_final_message", "chat_template_kwargs",
    "add_special_tokens"}  # fmt: skip
VLLM_CHAT = Table(
    client="vllm chat",
    path="/v1/chat/completions",
    reads="openai chat",
    base={"model": MODEL, "messages": [USER]},
    taken=[
        *SAMPLING, {"chat_template_kwargs": {"enable_thinking": False}}, {"add_generation_prompt": True},
        {**say(USER, answer("Well,")), "continue_final_message": True, "add_generation_prompt": False},
    ],
    refused=[
        *WRONG, ({"chat_template_kwargs": {"tools": []}}, 400, "chat_template_kwargs"),
        ({"continue_final_message": True, "add_generation_prompt": True}, 400, "continue_final_message"),
    ],
    otherwise=[
        ({"chat_template": "{{ messages }}"}, 200, 400, "templates of callers are code"),
        ({"mm_processor_kwargs": {"a": 1}}, 200, 400, "models read text alone"),
        ({"documents": [{"title": "A", "text": "a"}]}, 200, 400, "put them into messages"),
    ],
    beside=EXTRA,
    headers={"user-agent": "OpenAI/Python 3.52.0"},
)  # fmt: skip
VLLM_TEXT = Table(
    client="vllm completions",
    path="/v1/completions",
    reads="openai text",
    base={"model": MODEL, "prompt": "Hi"},
    taken=[*SAMPLING, {"add_special_tokens": False}],
    refused=[*WRONG, ({"use_beam_search": True, "stream": True}, 400, "use_beam_search")],
    beside=EXTRA,
    headers={"user-agent": "OpenAI/Python 3.52.0"},
)
VLLM_SCORED = Table(
    client="vllm completions, scored",
    path="/v1/completions",
    reads="openai text",
    base={"model": MODEL, "prompt": "Hi"},
    taken=SCORED,
    streams=False,
    headers={"user-agent": "OpenAI/Python 3.52.0"},
)
LLAMA_CPP = Table(
    client="llama.cpp chat",
    path="/v1/chat/completions",
    reads="openai chat",
    base={"model": MODEL, "messages": [USER], "cache_prompt": True},
    taken=[
        {}, {"cache_prompt": False}, {"typical_p": 0.9},
        {"response_format": {"type": "json_object", "schema": SCHEMA}},
        {"top_k": 40, "min_p": 0.05, "top_p": 0.95, "typical_p": 1.0, "temperature": 0.8},
        {"chat_template_kwargs": {"enable_thinking": True}},
    ],
    refused=[({"typical_p": 2}, 400, "typical_p"), ({"cache_prompt": 1}, 400, "cache_prompt")],
    otherwise=[
        ({"repeat_penalty": 1.1}, 200, 400, "repetition_penalty is its name"),
        ({"mirostat": 2}, 200, 400, "there is no such sampler"),
        ({"samplers": ["top_k", "temperature"]}, 200, 400, "the order of samplers is vLLM's"),
    ],
)  # fmt: skip
