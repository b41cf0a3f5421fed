"""The lists of every API's fields (field_lists.FieldLists): docs/reference/fields.md is made from them.

The fields that a request's model has are obeyed, but for those that stand here with an empty kind: the model
checks these, and its API writes some of them back.
"""

from __future__ import annotations

import secrets
from collections.abc import Mapping
from typing import Any

from octavo.errors import InvalidRequestError, UnsupportedError
from octavo.server.field_lists import FieldLists, Ignored, Refused
from octavo.server.openai.fields import SCOPE, note

OBJECT, LIST, TEXT, SWITCH = "an object", "a list", "a string", "true or false"
TRACING = "for whoever reads logs of requests; Octavo keeps none"
BILLING = "which tariff; there is one"
CACHING = "which prompts share a cache; all of one key do (`cache_salt` parts them)"
ABUSE = "who asks, for the provider's own records; Octavo keeps none"


def template() -> str:
    """The source of the served model's chat template; empty where it has none."""
    scope = SCOPE.get()
    engine = None if scope is None else scope["app"].state.octavo.engine
    return (None if engine is None else engine.template) or ""


def effort(value: Any, name: str) -> dict[str, Any]:
    """Variables of the chat template for an effort of reasoning; where it does not read it, none."""
    if not isinstance(value, str) or not 0 < len(value) <= 20:
        raise InvalidRequestError(
            f"{name} must be a word such as low, medium or high", name.partition(".")[0]
        )
    if "reasoning_effort" in template():
        return {"reasoning_effort": value}
    note(name)
    return {}


def _effort(value: Any, body: Mapping[str, Any]) -> dict[str, Any]:
    variables = effort(value, "reasoning_effort")
    given = body.get("chat_template_kwargs") or {}
    return {"chat_template_kwargs": {**variables, **given}} if variables and isinstance(given, dict) else {}


def _cache_prompt(value: Any, body: Mapping[str, Any]) -> dict[str, Any]:
    if not isinstance(value, bool):
        raise InvalidRequestError("cache_prompt must be true or false", "cache_prompt")
    return {} if value or body.get("cache_salt") is not None else {"cache_salt": secrets.token_hex(8)}


def _best_of(value: Any, body: Mapping[str, Any]) -> dict[str, Any]:
    if type(value) is not int or value != (body.get("n") or 1):
        raise UnsupportedError(
            "best_of is not supported yet in chats, unless it is the same integer as n", "best_of"
        )
    return {}


def _output_format(value: Any, body: Mapping[str, Any]) -> dict[str, Any]:
    config = body.get("output_config") or {}
    return {"output_config": {"format": value, **config}} if isinstance(config, dict) else {}


_GENERATION_STANDS = {
    "cache_prompt": ("`false`: a `cache_salt` that nobody else has (llama.cpp's name)", _cache_prompt)
}
_GENERATION_IGNORED = {
    "user": Ignored(ABUSE),
    "metadata": Ignored(TRACING, OBJECT),
    "prompt_cache_key": Ignored(CACHING, TEXT),
    "prompt_cache_options": Ignored("what to cache, and how long; whatever has room is", OBJECT),
    "prompt_cache_retention": Ignored("how long a prompt is cached; as long as there is room", TEXT),
    "request_id": Ignored("a name in the server's log; `X-Request-Id` comes back", TEXT),
    "safety_identifier": Ignored(ABUSE, TEXT),
    "service_tier": Ignored(BILLING, TEXT),
    "store": Ignored("whether the provider keeps it; chats are not kept", SWITCH),
    "guided_decoding_backend": Ignored("which compiler of grammars; there is one", TEXT),
    "spaces_between_special_tokens": Ignored(
        "how control tokens are joined, where they are written at all", SWITCH
    ),
    "stream_options.include_obfuscation": Ignored(
        "padding of events, against who counts bytes; none is added"
    ),
}
_GENERATION_REFUSED = {
    "guided_whitespace_pattern": Refused("white space of JSON is the schema compiler's own"),
    "kv_transfer_params": Refused("pages are not moved between servers"),
    "logits_processors": Refused("no code of callers runs here; logit_bias and bad_words do", ([],)),
    "mm_processor_kwargs": Refused("models read text alone", ({},)),
    "prompt_embeds": Refused("prompts are text or tokens"),
    "return_tokens_as_token_ids": Refused("return_token_ids gives the ids beside the text", (False,)),
    "thinking_token_budget": Refused("reasoning has no budget of its own; max_tokens counts it"),
    "vllm_xargs": Refused("there are no extensions that read it", ({},)),
}

CHAT = FieldLists(
    stands=_GENERATION_STANDS
    | {
        "reasoning_effort": (
            "a variable of the chat template, where it reads one; else accepted without effect",
            _effort,
        ),
        "best_of": ("where it is the same integer as `n`", _best_of),
    },
    ignored=_GENERATION_IGNORED
    | {
        "reasoning": Ignored(
            "how much to think, and whether to sum it up; the model does as it was made", OBJECT
        ),
        "verbosity": Ignored("how long answers should be; say it in the prompt", TEXT),
    },
    refused=_GENERATION_REFUSED
    | {
        "add_special_tokens": Refused("the chat template writes them", (False,)),
        "audio": Refused("answers are text"),
        "chat_template": Refused("it is not taken from requests: set --chat-template when the server starts"),
        "documents": Refused("put them into messages", ([],)),
        "echo": Refused("only completions have it", (False,)),
        "function_call": Refused("tool_choice does that", ("none", "auto")),
        "functions": Refused("tools do that", ([],)),
        "include_reasoning": Refused("reasoning always comes, in reasoning_content", (True,)),
        "modalities": Refused("answers are text", (["text"],)),
        "moderation": Refused("texts are not moderated"),
        "suffix": Refused("only the end of a text is continued", ("",)),
        "web_search_options": Refused("nothing is looked up"),
    },
)

_CHATS = "only chats have it"
COMPLETIONS = FieldLists(
    stands=_GENERATION_STANDS,
    ignored=_GENERATION_IGNORED
    | {
        "reasoning_effort": Ignored("how much to think; a text is continued as it is", TEXT),
        "verbosity": Ignored("how long answers should be; a text is continued as it is", TEXT),
    },
    refused=_GENERATION_REFUSED
    | {
        "audio": Refused("answers are text"),
        "chat_template": Refused(_CHATS),
        "documents": Refused("put them into the prompt", ([],)),
        "function_call": Refused(_CHATS, ("none", "auto")),
        "functions": Refused(_CHATS, ([],)),
        "modalities": Refused("answers are text", (["text"],)),
        "moderation": Refused("texts are not moderated"),
        "parallel_tool_calls": Refused(_CHATS, (True,)),
        "suffix": Refused("only the end of a text is continued", ("",)),
        "tool_choice": Refused(_CHATS, ("none",)),
        "tools": Refused(_CHATS, ([],)),
        "web_search_options": Refused("nothing is looked up"),
    },
)

RESPONSES = FieldLists(
    ignored={
        "user": Ignored(ABUSE),
        "access_programs": Ignored(
            "which of the provider's programs the caller is in; there are none", OBJECT
        ),
        "client_metadata": Ignored(TRACING, OBJECT),
        "context_management": Ignored("when to sum up a long conversation; none is", "an object or a list"),
        "image": Ignored("how images are shortened; there are none", OBJECT),
        "include": Ignored("more of what Octavo does not make: encrypted reasoning, results of hosted tools"),
        "input.caller": Ignored("of a call or its result: who made it"),
        "input.phase": Ignored("which part of an answer a message was"),
        "max_tool_calls": Ignored("of hosted tools; there are none"),
        "metadata": Ignored(f"written back; {TRACING}"),
        "prompt_cache_key": Ignored(CACHING),
        "prompt_cache_options": Ignored("what to cache, and how long; whatever has room is", OBJECT),
        "prompt_cache_retention": Ignored("how long a prompt is cached; as long as there is room", TEXT),
        "reasoning": Ignored(
            "how much to think, and whether to sum it up; `effort` goes to a template that reads it"
        ),
        "safety_identifier": Ignored(ABUSE),
        "service_tier": Ignored(BILLING),
        "stream_options": Ignored("padding of events, against who counts bytes; none is added", OBJECT),
        "text.verbosity": Ignored("how long answers should be; say it in the prompt"),
        "tools.type": Ignored(
            "tools that the provider runs (`web_search`, `image_generation`, ...) are left out"
        ),
        "truncation": Ignored("which items to drop; a conversation that is too long is a 400"),
    },
    refused={
        "background": Refused("answers are made while the client waits", (False,)),
        "conversation": Refused("previous_response_id goes on with a conversation"),
        "moderation": Refused("texts are not moderated"),
        "personality": Refused("it is a style of the provider's own models: say it in instructions"),
        "prompt": Refused("no prompts are kept: send input"),
        "top_logprobs": Refused("chats and completions have log-probabilities", (0,)),
    },
)

MESSAGES = FieldLists(
    stands={"output_format": ("the older name of `output_config.format`", _output_format)},
    ignored={
        "anthropic_beta": Ignored("which beta features may be used; what the request says counts", LIST),
        "anthropic_version": Ignored("which version of the API; there is one", TEXT),
        "cache_control": Ignored("what to cache; whatever has room is", OBJECT),
        "context_management": Ignored("when to shorten a long conversation; none is", OBJECT),
        "diagnostics": Ignored(
            "why a cache was missed; `cache_read_input_tokens` says how much was hit", OBJECT
        ),
        "inference_geo": Ignored("where the model runs; here", TEXT),
        "messages.cache_control": Ignored("of a block: what to cache"),
        "messages.caller": Ignored("of a call: who made it"),
        "messages.citations": Ignored("of a text: what it quotes"),
        "metadata": Ignored(ABUSE, OBJECT),
        "output_config.effort": Ignored("how much to think, where the chat template does not read it"),
        "service_tier": Ignored(BILLING, TEXT),
        "speed": Ignored(BILLING, TEXT),
        "system.cache_control": Ignored("of a block: what to cache"),
        "thinking": Ignored("how much to think; the model does as it was made", OBJECT),
        "tools.allowed_callers": Ignored("which hosted tools may call it; there are none"),
        "tools.cache_control": Ignored("what to cache"),
        "tools.defer_loading": Ignored("whether it is found by search; it is there at once"),
        "tools.eager_input_streaming": Ignored("arguments piece by piece; a call comes whole"),
        "tools.input_examples": Ignored("calls as they should be; put them into the description"),
        "tools.type": Ignored("tools that the provider runs (`web_search_...`, ...) are left out"),
    },
    refused={
        "container": Refused("nothing is run here"),
        "mcp_servers": Refused("nobody is called from here: call them yourself, and send tools", ([],)),
        # Were it accepted, its clients would send only what is new, and be answered without the rest.
        "thread": Refused("conversations are not kept: send all messages"),
    },
)

EMBEDDINGS = FieldLists(
    ignored={
        "user": Ignored(ABUSE),
        "metadata": Ignored(TRACING, OBJECT),
        "request_id": Ignored("a name in the server's log; `X-Request-Id` comes back", TEXT),
        "service_tier": Ignored(BILLING, TEXT),
    },
    refused={
        "embed_dtype": Refused("vectors are float32", ("float32",)),
        "messages": Refused("send the text as input"),
        "mm_processor_kwargs": Refused("models read text alone", ({},)),
    },
)

GENERATE = FieldLists(
    ignored={
        "options": Ignored("how the hub's own servers cache and wait; a server of one model does not", OBJECT)
    }
)
GENERATE_PARAMETERS = FieldLists(
    refused={
        "adapter_id": Refused("no adapters are loaded", ("",)),
    },
)

LISTS: Mapping[str, FieldLists] = {
    "ChatRequest": CHAT,
    "CompletionRequest": COMPLETIONS,
    "ResponsesRequest": RESPONSES,
    "MessagesRequest": MESSAGES,
    "CountTokensRequest": MESSAGES,
    "EmbeddingRequest": EMBEDDINGS,
    "GenerateBody": GENERATE,
    "GenerateParameters": GENERATE_PARAMETERS,
}
"""By the name of the request's model. Others have no fields but their own."""
