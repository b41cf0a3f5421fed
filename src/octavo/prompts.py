"""Between text and engine: prompts become token ids, tokens become outputs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from octavo.engine.output import OutputProcessor
from octavo.errors import InvalidRequestError
from octavo.params import SamplingParams
from octavo.tokenizer import Tokenizer
from octavo.tokenizer.chat import ChatTemplate
from octavo.tokenizer.detokenizer import IncrementalDetokenizer
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
    if isinstance(given, Sequence) and all(type(i) is int for i in given):
        return text, list(given)
    raise InvalidRequestError("a prompt must be text or token ids", "prompt")


def truncated(ids: list[int], params: SamplingParams) -> list[int]:
    """The prompt's last tokens, where params keep only so many."""
    return ids if params.truncate_prompt_tokens is None else ids[-params.truncate_prompt_tokens :]


def as_list(prompts: Prompt | Sequence[Prompt]) -> list[Prompt]:
    """One prompt or many, as a list: [1, 2] is one prompt of two ids, [[1, 2]] a list of one."""
    if isinstance(prompts, (str, Mapping)):
        return [prompts]
    every: list[Any] = list(prompts)
    if every and all(type(p) is int for p in every):
        return [every]
    return every


def chat_ids(
    template: ChatTemplate, tokenizer: Tokenizer, messages: Any, **kwargs: Any
) -> tuple[str, list[int]]:
    """(text, token ids) of a conversation; special tokens are the template's business."""
    text = template.render(messages, **kwargs)
    return text, tokenizer.encode(text, add_special_tokens=False)


def output_processor(tokenizer: Tokenizer) -> OutputProcessor:
    """An OutputProcessor that speaks the model's tokens."""

    def detokenizer(ids: Sequence[int], params: SamplingParams) -> IncrementalDetokenizer:
        return IncrementalDetokenizer(tokenizer, ids, params.skip_special_tokens)

    def stop_matcher(params: SamplingParams) -> StopMatcher:
        return StopMatcher(params.stop, params.include_stop_str_in_output)

    return OutputProcessor(detokenizer, stop_matcher, tokenizer.token_text)
