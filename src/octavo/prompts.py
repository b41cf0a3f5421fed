"""Between text and engine: prompts become token ids, tokens become outputs."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from numbers import Integral
from typing import Any

from octavo.engine.output import OutputProcessor
from octavo.errors import InvalidRequestError
from octavo.params import SamplingParams
from octavo.tokenizer import Tokenizer
from octavo.tokenizer.chat import ChatTemplate
from octavo.tokenizer.control import Marker
from octavo.tokenizer.detokenizer import IncrementalDetokenizer
from octavo.tokenizer.messages import plain_messages
from octavo.tokenizer.stop import StopMatcher

Prompt = str | Sequence[int] | Mapping[str, Any]
"""Text, token ids, or vLLM's {"prompt": text} or {"prompt_token_ids": ids}."""


def prompt_ids(prompt: Prompt, tokenizer: Tokenizer) -> tuple[str | None, list[int]]:
    """(text or None, token ids) of one prompt; the engine checks the ids.

    Raises:
        InvalidRequestError: it is neither text nor token ids.
    """
    given: Any = prompt
    text: str | None = None
    if isinstance(prompt, Mapping):
        unknown = sorted(set(prompt) - {"prompt", "prompt_token_ids"})
        if unknown or not prompt:
            raise InvalidRequestError(
                f"a prompt object holds prompt or prompt_token_ids, not {unknown[:1] or 'nothing'}", "prompt"
            )
        text = prompt.get("prompt")
        given = prompt.get("prompt_token_ids", text)
    if isinstance(given, str):
        return given, tokenizer.encode(given)
    if not isinstance(given, Iterable) or isinstance(given, (bytes, Mapping)):
        raise _wrong(given)
    ids = list(given)
    for wrong in (i for i in ids if type(i) is not int and (type(i) is bool or not isinstance(i, Integral))):
        raise _wrong(wrong)
    return text, [int(i) for i in ids]


def _wrong(given: object) -> InvalidRequestError:
    return InvalidRequestError(f"a prompt must be text or token ids, not {type(given).__name__}", "prompt")


def truncated(ids: list[int], params: SamplingParams) -> list[int]:
    """The prompt's last tokens, where params keep only so many."""
    return ids if params.truncate_prompt_tokens is None else ids[-params.truncate_prompt_tokens :]


def as_list(prompts: Prompt | Sequence[Prompt]) -> list[Prompt]:
    """One prompt or many, as a list: [1, 2] is one prompt of two ids, [[1, 2]] a list of one."""
    if isinstance(prompts, (str, Mapping)):
        return [prompts]
    try:
        every: list[Any] = list(prompts)
    except TypeError:
        raise _wrong(prompts) from None
    if every and all(isinstance(p, Integral) for p in every):
        return [every]
    return every


def check_length(text: str, tokenizer: Tokenizer, max_tokens: int) -> None:
    """Refuse text that no max_tokens tokens can hold, before time is spent on tokenizing it.

    Raises:
        InvalidRequestError: it is too long; what passes may still be too long, as tokens.
    """
    if len(text) > max_tokens * tokenizer.longest_token:
        raise InvalidRequestError(
            f"the prompt has {len(text)} characters, more than max_model_len {max_tokens} tokens can hold",
            "prompt",
        )


def chat_ids(
    template: ChatTemplate,
    tokenizer: Tokenizer,
    messages: Any,
    tools: Sequence[Mapping[str, Any]] | None = None,
    **kwargs: Any,
) -> tuple[str, list[int]]:
    """(text, token ids) of a conversation; control tokens are the template's alone (tokenizer.control).

    A template that knows nothing of tools gets them as a system message, and calls as plain text.
    """
    if "tools" not in (template.source or ""):
        messages, tools = _tools_as_text(messages, tools), None
    messages = plain_messages(messages, template.source or "")  # no escapes of JSON are left in there
    marker = Marker(tokenizer, messages, tools, kwargs)
    given = marker.marked(kwargs)
    return marker.encode(template.render(marker.marked(messages), tools=marker.marked(tools), **given))


def _tools_as_text(messages: Any, tools: Sequence[Mapping[str, Any]] | None) -> Any:
    """The messages with tools, their calls and results written out in the Hermes format."""
    if not isinstance(messages, Sequence) or not all(isinstance(m, Mapping) for m in messages):
        return messages  # the template's room says what is wrong with them
    plain = [_message_as_text(message) for message in messages]
    if not tools:
        return plain
    text = (
        "You can call these functions, given as JSON schemas:\n"
        + "\n".join(json.dumps(dict(tool)) for tool in tools)
        + "\nTo call one, answer with its name and arguments in this form:\n"
        + '<tool_call>\n{"name": "...", "arguments": {...}}\n</tool_call>'
    )
    if plain and plain[0].get("role") in ("system", "developer") and isinstance(plain[0].get("content"), str):
        return [{**plain[0], "content": f"{plain[0]['content']}\n\n{text}"}, *plain[1:]]
    return [{"role": "system", "content": text}, *plain]


def _message_as_text(message: Mapping[str, Any]) -> dict[str, Any]:
    calls, content = message.get("tool_calls"), message.get("content")
    if isinstance(calls, list) and calls and isinstance(content, (str, type(None))):
        written = [
            f"<tool_call>\n{json.dumps(call.get('function'))}\n</tool_call>"
            for call in calls
            if isinstance(call, Mapping)
        ]
        return {**message, "content": "\n".join([*filter(None, [content]), *written])}
    if message.get("role") == "tool" and isinstance(content, str):
        return {"role": "user", "content": f"<tool_response>\n{content}\n</tool_response>"}
    return dict(message)


def output_processor(tokenizer: Tokenizer) -> OutputProcessor:
    """An OutputProcessor that speaks the model's tokens."""

    def detokenizer(ids: Sequence[int], params: SamplingParams) -> IncrementalDetokenizer:
        return IncrementalDetokenizer(tokenizer, ids, params.skip_special_tokens)

    def stop_matcher(params: SamplingParams) -> StopMatcher:
        return StopMatcher(params.stop, params.include_stop_str_in_output)

    return OutputProcessor(detokenizer, stop_matcher, tokenizer.token_text)
