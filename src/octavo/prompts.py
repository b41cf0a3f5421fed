"""Between text and engine: prompts become token ids, tokens become outputs."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from numbers import Integral
from typing import Any

from octavo.engine.output import OutputProcessor
from octavo.engine.request import EngineRequest, Namespace
from octavo.errors import InvalidRequestError
from octavo.params import SampledToken, SamplingParams
from octavo.params.speculative import with_ids
from octavo.params.watermark import WatermarkParams
from octavo.tokenizer import Tokenizer
from octavo.tokenizer.chat import ChatTemplate
from octavo.tokenizer.control import Marker
from octavo.tokenizer.message_calls import as_text
from octavo.tokenizer.messages import plain_messages
from octavo.tokenizer.stop import StopStrings
from octavo.tokenizer.tokenizer import IncrementalDetokenizer

Prompt = str | Sequence[int] | Mapping[str, Any]
"""Text, token ids, or vLLM's {"prompt": text} or {"prompt_token_ids": ids}; for an encoder-decoder model
also vLLM's {"encoder_prompt": prompt, "decoder_prompt": prompt}. An object may hold a cache_salt, too, and
generated_token_ids: the answer's first tokens, if it was begun before, and index: which of n it is."""

_BESIDE = ("cache_salt", "generated_token_ids", "index")


def refuse_chat(max_encoder_len: int) -> None:
    """Raise where the model has an encoder: nobody has trained those to hold conversations."""
    if max_encoder_len:
        raise InvalidRequestError(
            "the model is an encoder-decoder and holds no conversations: send its input as a prompt to be "
            "completed (LLM.generate, /v1/completions)",
            "messages",
        )


class PromptReader:
    """Makes engine requests of what callers give.

    Args:
        tokenizer: the model's.
        decoder_start: what the decoder of an encoder-decoder model begins with: then a plain prompt is
            the encoder's. A decoder_prompt follows the first of these tokens, unless it has it already.
    """

    def __init__(self, tokenizer: Tokenizer, decoder_start: Sequence[int] = ()) -> None:
        self._tokenizer, self._start = tokenizer, decoder_start

    def request(
        self,
        request_id: str,
        prompt: Prompt,
        params: SamplingParams,
        *,
        priority: int = 0,
        cache_salt: str | None = None,
    ) -> EngineRequest:
        """One prompt with its params as the engine takes them.

        Args:
            cache_salt: for a prompt that names none itself.

        Raises:
            InvalidRequestError: the prompt is neither text nor token ids.
        """
        given, beside = _apart(prompt) if isinstance(prompt, Mapping) else (prompt, {})
        own = beside.get("cache_salt")
        if not isinstance(own, (str, type(None))):
            raise InvalidRequestError(f"cache_salt must be text, not {type(own).__name__}", "cache_salt")
        (text, ids), (encoder_text, encoder_ids) = self._read(given)
        if (keep := params.truncate_prompt_tokens) is not None:  # of what the caller wrote, the last tokens
            ids, encoder_ids = (ids, encoder_ids[-keep:]) if encoder_ids else (ids[-keep:], encoder_ids)
        if params.watermark is not None:
            WatermarkParams.of(params.watermark)  # (or it is refused)
        if params.speculative is not None:
            params = params.replace(speculative=with_ids(params.speculative, self._tokenizer.encode))
        return EngineRequest(
            request_id,
            ids,
            params,
            priority,
            text,
            encoder_text,
            tuple(encoder_ids),
            Namespace(own if cache_salt is None else cache_salt, tuple(encoder_ids)),
            generated=_generated(beside.get("generated_token_ids")),
            index=beside.get("index"),
        )

    def _read(self, prompt: Any) -> tuple[tuple[str | None, list[int]], tuple[str | None, list[int]]]:
        """(text, ids) of what is gone on from, and of what an encoder reads."""
        tokenizer = self._tokenizer
        explicit = isinstance(prompt, Mapping) and bool({"encoder_prompt", "decoder_prompt"} & set(prompt))
        if not self._start:
            if explicit:
                raise InvalidRequestError("the model has no encoder: give a plain prompt", "encoder_prompt")
            return prompt_ids(prompt, tokenizer), (None, [])
        source, target = prompt, None
        if explicit:
            unknown = sorted(set(prompt) - {"encoder_prompt", "decoder_prompt"})
            if unknown or prompt.get("encoder_prompt") is None:
                wrong = f"not {unknown[0]!r}" if unknown else "and encoder_prompt must not be missing"
                raise InvalidRequestError(
                    f"a prompt object holds encoder_prompt and decoder_prompt, {wrong}", "encoder_prompt"
                )
            source, target = prompt["encoder_prompt"], prompt.get("decoder_prompt")
        of_encoder = prompt_ids(source, tokenizer)
        text, ids = (None, []) if target is None else prompt_ids(target, tokenizer, add_special_tokens=False)
        if not ids:
            ids = list(self._start)
        elif ids[0] != self._start[0]:
            ids = [self._start[0], *ids]
        return (text, ids), of_encoder


def _apart(prompt: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """(what names the tokens, what is said beside them) of a prompt object."""
    beside = {name: value for name, value in prompt.items() if name in _BESIDE}
    return {name: value for name, value in prompt.items() if name not in _BESIDE}, beside


def _generated(given: Any) -> tuple[SampledToken, ...]:
    """Ids of tokens that were generated before; tokens, if their log-probabilities are known."""
    if not isinstance(given, Iterable) or isinstance(given, (str, bytes, Mapping)):
        if given is None:
            return ()
        raise InvalidRequestError("generated_token_ids must be a list of token ids", "generated_token_ids")
    tokens = [token if isinstance(token, SampledToken) else _sampled(token) for token in given]
    return tuple(tokens)


def _sampled(token_id: object) -> SampledToken:
    if isinstance(token_id, bool) or not isinstance(token_id, Integral):
        kind = type(token_id).__name__
        raise InvalidRequestError(
            f"generated_token_ids must hold token ids, not {kind}", "generated_token_ids"
        )
    return SampledToken(int(token_id))


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
        unknown = [repr(name) for name in prompt if name not in ("prompt", "prompt_token_ids")]
        if unknown or not prompt:
            may = f"prompt or prompt_token_ids, and beside it may hold {', '.join(_BESIDE)}"
            found = (*unknown, "nothing")[0]
            raise InvalidRequestError(f"a prompt object holds {may}; not {found}", "prompt")
        text = prompt.get("prompt")
        given = prompt.get("prompt_token_ids", text)
    if isinstance(given, str):
        return given, tokenizer.encode(given, add_special_tokens)
    if not isinstance(given, Iterable) or isinstance(given, (bytes, Mapping)):
        raise wrong_prompt(given)
    ids = list(given)
    kinds = set(map(type, ids))
    if kinds <= {int}:
        return text, ids
    for wrong in (i for i in ids if type(i) is bool or not isinstance(i, Integral)):
        raise wrong_prompt(wrong)
    return text, [int(i) for i in ids]  # NumPy's, say


def wrong_prompt(given: object) -> InvalidRequestError:
    return InvalidRequestError(f"a prompt must be text or token ids, not {type(given).__name__}", "prompt")


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
    if "tools" not in (template.source or "") and (tools or _speak_of_tools(messages)):
        messages, tools = as_text(messages, tools), None
    try:
        messages = plain_messages(messages, template.source or "")  # no escapes of JSON are left in there
        marker = Marker(tokenizer, messages, tools, kwargs)
        given = dict(marker.marked(kwargs))
        messages, tools = marker.marked(messages), marker.marked(tools)
    except RecursionError:  # JSON in the text of a call's arguments: nobody has parsed that before
        raise InvalidRequestError("messages hold values that are nested too deeply", "messages") from None
    add, go_on = given.pop("add_generation_prompt", True), given.pop("continue_final_message", False)
    text = template.render_plain(messages, tools, add, go_on, given)
    if max_tokens is not None:
        check_length(text, tokenizer, max_tokens)
    return marker.encode(text)


def _is_list(value: object) -> bool:
    return isinstance(value, Sequence) and not isinstance(value, (str, bytes))


def _speak_of_tools(messages: Any) -> bool:
    return isinstance(messages, Sequence) and any(
        isinstance(message, Mapping) and (message.get("tool_calls") or message.get("role") == "tool")
        for message in messages
    )


def _check_chat(messages: Any, tokenizer: Tokenizer, max_tokens: int) -> None:
    """Refuse a conversation that no context of max_tokens holds: by its messages, parts and characters."""
    pieces = 0
    for message in messages if isinstance(messages, Sequence) else ():
        content = message.get("content") if isinstance(message, Mapping) else None
        pieces += len(content) if isinstance(content, list) else 1
        calls = message.get("tool_calls") if isinstance(message, Mapping) else None
        pieces += len(calls) if isinstance(calls, list) else 0
        if pieces > max_tokens:
            raise InvalidRequestError(
                f"messages hold more than {max_tokens} texts and calls, which no max_model_len tokens hold",
                "messages",
            )
        if isinstance(content, str):
            check_length(content, tokenizer, max_tokens)


def output_processor(tokenizer: Tokenizer, decoder_start: Sequence[int] = ()) -> OutputProcessor:
    """An OutputProcessor that speaks the model's tokens.

    Args:
        decoder_start: what a decoder begins with; the text after it is no continuation.
    """
    start = list(decoder_start)

    def detokenizer(ids: Sequence[int], params: SamplingParams) -> IncrementalDetokenizer:
        before = () if list(ids) == start else ids
        return IncrementalDetokenizer(tokenizer, before, params.skip_special_tokens)

    def stop_matcher(params: SamplingParams) -> StopStrings:
        return StopStrings(params.stop, params.include_stop_str_in_output)

    return OutputProcessor(detokenizer, stop_matcher, tokenizer.token_text)
