"""Between text and engine: prompts become token ids, tokens become outputs."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from numbers import Integral
from typing import Any

from octavo.engine.output import OutputProcessor
from octavo.errors import InvalidRequestError
from octavo.params import RequestOutput, SamplingParams
from octavo.tokenizer import Tokenizer
from octavo.tokenizer.chat import ChatTemplate
from octavo.tokenizer.control import Marker
from octavo.tokenizer.detokenizer import IncrementalDetokenizer
from octavo.tokenizer.messages import plain_messages
from octavo.tokenizer.stop import StopMatcher

Prompt = str | Sequence[int] | Mapping[str, Any]
"""Text, token ids, or vLLM's {"prompt": text} or {"prompt_token_ids": ids}; for an encoder-decoder model
also vLLM's {"encoder_prompt": prompt, "decoder_prompt": prompt}. An object may hold a cache_salt, too."""


@dataclass(frozen=True, slots=True)
class TokenPrompt:
    """A prompt as the engine takes it: what is gone on from, and what an encoder reads."""

    text: str | None
    ids: list[int]
    encoder_text: str | None = None
    encoder_ids: tuple[int, ...] = ()
    cache_salt: str | None = None

    def truncated(self, params: SamplingParams) -> TokenPrompt:
        """With the last tokens of what the caller wrote, where params keep only so many."""
        keep = params.truncate_prompt_tokens
        if keep is None:
            return self
        if self.encoder_ids:
            return replace(self, encoder_ids=self.encoder_ids[-keep:])
        return replace(self, ids=self.ids[-keep:])

    def mark(self, output: RequestOutput) -> None:
        """Say in an output what the encoder has read."""
        if self.encoder_ids:
            output.encoder_prompt = self.encoder_text
            output.encoder_prompt_token_ids = list(self.encoder_ids)


def refuse_chat(max_encoder_len: int) -> None:
    """Raise where the model has an encoder: nobody has trained those to hold conversations."""
    if max_encoder_len:
        raise InvalidRequestError(
            "the model is an encoder-decoder and holds no conversations: send its input as a prompt to be "
            "completed (LLM.generate, /v1/completions)",
            "messages",
        )


def read_prompt(prompt: Prompt, tokenizer: Tokenizer, decoder_start: Sequence[int] = ()) -> TokenPrompt:
    """One prompt as token ids.

    Args:
        decoder_start: what the decoder of an encoder-decoder model begins with: then a plain prompt is
            the encoder's. A decoder_prompt follows the first of these tokens, unless it has it already.

    Raises:
        InvalidRequestError: it is neither text nor token ids.
    """
    if isinstance(prompt, Mapping) and "cache_salt" in prompt:
        salt = prompt["cache_salt"]
        if not isinstance(salt, (str, type(None))):
            raise InvalidRequestError(f"cache_salt must be text, not {type(salt).__name__}", "cache_salt")
        rest = {name: value for name, value in prompt.items() if name != "cache_salt"}
        return replace(read_prompt(rest, tokenizer, decoder_start), cache_salt=salt)
    explicit = isinstance(prompt, Mapping) and bool({"encoder_prompt", "decoder_prompt"} & set(prompt))
    if not decoder_start:
        if explicit:
            raise InvalidRequestError("the model has no encoder: give a plain prompt", "encoder_prompt")
        return TokenPrompt(*prompt_ids(prompt, tokenizer))
    source: Any = prompt
    target: Any = None
    if explicit and isinstance(prompt, Mapping):
        unknown = sorted(set(prompt) - {"encoder_prompt", "decoder_prompt"})
        if unknown or prompt.get("encoder_prompt") is None:
            wrong = f"not {unknown[0]!r}" if unknown else "and encoder_prompt must not be missing"
            raise InvalidRequestError(
                f"a prompt object holds encoder_prompt and decoder_prompt, {wrong}", "encoder_prompt"
            )
        source, target = prompt["encoder_prompt"], prompt.get("decoder_prompt")
    encoder_text, encoder_ids = prompt_ids(source, tokenizer)
    text, ids = (None, []) if target is None else prompt_ids(target, tokenizer, add_special_tokens=False)
    if not ids:
        ids = list(decoder_start)
    elif ids[0] != decoder_start[0]:
        ids = [decoder_start[0], *ids]
    return TokenPrompt(text, ids, encoder_text, tuple(encoder_ids))


def prompt_ids(
    prompt: Prompt, tokenizer: Tokenizer, add_special_tokens: bool = True
) -> tuple[str | None, list[int]]:
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
        return given, tokenizer.encode(given, add_special_tokens)
    if not isinstance(given, Iterable) or isinstance(given, (bytes, Mapping)):
        raise _wrong(given)
    ids = list(given)
    for wrong in (i for i in ids if type(i) is not int and (type(i) is bool or not isinstance(i, Integral))):
        raise _wrong(wrong)
    return text, [int(i) for i in ids]


def _wrong(given: object) -> InvalidRequestError:
    return InvalidRequestError(f"a prompt must be text or token ids, not {type(given).__name__}", "prompt")


def as_list(prompts: Prompt | Sequence[Prompt]) -> list[Prompt]:
    """One prompt or many, as a list: [1, 2] is one prompt of two ids, [[1, 2]] a list of one."""
    if isinstance(prompts, (str, Mapping)):
        return [prompts]
    if isinstance(prompts, (bytes, bytearray)):
        raise _wrong(prompts)
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
    max_tokens: int | None = None,
    **kwargs: Any,
) -> tuple[str, list[int]]:
    """(text, token ids) of a conversation; control tokens are the template's alone (tokenizer.control).

    A template that knows nothing of tools gets them as a system message, and calls as plain text.

    Args:
        max_tokens: of the context; what it cannot hold is refused before much time is spent on it.
    """
    if tools is not None and not (_is_list(tools) and all(isinstance(tool, Mapping) for tool in tools)):
        raise InvalidRequestError("tools must be a list of objects, as OpenAI spells them", "tools")
    if max_tokens is not None:
        _check_chat(messages, tokenizer, max_tokens)
    if "tools" not in (template.source or ""):
        messages, tools = _tools_as_text(messages, tools), None
    messages = plain_messages(messages, template.source or "")  # no escapes of JSON are left in there
    marker = Marker(tokenizer, messages, tools, kwargs)
    given = marker.marked(kwargs)
    text = template.render(marker.marked(messages), tools=marker.marked(tools), **given)
    if max_tokens is not None:
        check_length(text, tokenizer, max_tokens)
    return marker.encode(text)


def _is_list(value: object) -> bool:
    return isinstance(value, Sequence) and not isinstance(value, (str, bytes))


def _check_chat(messages: Any, tokenizer: Tokenizer, max_tokens: int) -> None:
    """Refuse a conversation that no context of max_tokens holds: by its messages, parts and characters."""
    pieces = 0
    for message in messages if isinstance(messages, Sequence) else ():
        content = message.get("content") if isinstance(message, Mapping) else None
        pieces += len(content) if isinstance(content, list) else 1
        if pieces > max_tokens:
            raise InvalidRequestError(
                f"messages hold more than {max_tokens} texts, more than max_model_len tokens can hold",
                "messages",
            )
        if isinstance(content, str):
            check_length(content, tokenizer, max_tokens)


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


def output_processor(tokenizer: Tokenizer, decoder_start: Sequence[int] = ()) -> OutputProcessor:
    """An OutputProcessor that speaks the model's tokens.

    Args:
        decoder_start: what a decoder begins with; the text after it is no continuation.
    """
    start = list(decoder_start)

    def detokenizer(ids: Sequence[int], params: SamplingParams) -> IncrementalDetokenizer:
        before = () if list(ids) == start else ids
        return IncrementalDetokenizer(tokenizer, before, params.skip_special_tokens)

    def stop_matcher(params: SamplingParams) -> StopMatcher:
        return StopMatcher(params.stop, params.include_stop_str_in_output)

    return OutputProcessor(detokenizer, stop_matcher, tokenizer.token_text)
