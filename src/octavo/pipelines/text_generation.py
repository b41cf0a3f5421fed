"""The text-generation pipeline: prompts and chats, continued."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any, overload

from octavo.checks import plain_number, positive
from octavo.errors import InvalidRequestError, UnsupportedError
from octavo.llm import LLM
from octavo.params import DRAWING, BeamSearchParams, CompletionOutput, SamplingParams
from octavo.structured import NoRepeatNgram

Message = Mapping[str, Any]
Chat = Sequence[Message]
Record = dict[str, Any]

# What transformers' text-generation pipeline does where the caller says nothing.
DEFAULT_NEW_TOKENS = 256
DEFAULT_TEMPERATURE = 0.7
DEFAULT_TOP_K = 50

# Without effect by construction: nothing is ever padded, batches form by themselves, decoding is exact.
WITHOUT_EFFECT = frozenset({"pad_token_id", "batch_size", "clean_up_tokenization_spaces"})

NEUTRAL: dict[str, tuple[object, ...]] = {
    "use_cache": (True,),  # keys and values are always kept
    "return_tensors": (False,),
    "handle_long_generation": (),
    "prefix": ("",),
    "streamer": (),
}
"""What transformers' pipeline takes beside, and the values that ask for what happens anyway."""
ADVICE = {"streamer": "AsyncLLM streams", "return_tensors": "LLM.generate returns token ids"}


class TextGenerationPipeline:
    """Continues prompts, or answers chats.

    Calling it returns, for one prompt (str) or one chat (list of messages), a list of
    num_return_sequences records `{"generated_text": ...}`, and for a list of either a list of such
    lists. generated_text is the prompt and its continuation; for a chat, its messages and the
    answer as one more. With return_full_text=False it is the new text alone.
    """

    task = "text-generation"

    def __init__(self, llm: LLM) -> None:
        if llm.max_encoder_len:
            raise InvalidRequestError(
                'an encoder-decoder model continues texts of its own only: use "text2text-generation", '
                '"summarization" or "translation"',
                "task",
            )
        self.llm = llm

    @property
    def tokenizer(self) -> Any:
        return self.llm.get_tokenizer()

    @overload
    def __call__(self, text_inputs: str | Chat, **arguments: Any) -> list[Record]: ...
    @overload
    def __call__(self, text_inputs: list[str] | list[Chat], **arguments: Any) -> list[list[Record]]: ...
    def __call__(
        self,
        text_inputs: str | Chat | list[str] | list[Chat],
        *,
        max_length: int | None = None,
        max_new_tokens: int | None = None,
        return_full_text: bool = True,
        continue_final_message: bool | None = None,
        truncation: bool | None = None,
        no_repeat_ngram_size: int | None = None,
        **generation: Any,
    ) -> list[Record] | list[list[Record]]:
        """Generate.

        Args:
            max_length: most tokens in all, the prompt's included.
            max_new_tokens: most new tokens; 256 where neither is given. Not both.
            continue_final_message: go on inside the last message; None does so where it is the
                assistant's.
            truncation: of prompts that leave no room in the context, keep the first tokens; otherwise
                they are refused.
            no_repeat_ngram_size: no so many tokens come in a row twice, prompt and answer together.
            generation: do_sample (True), temperature (0.7), top_k (50), top_p, min_p, typical_p,
                repetition_penalty, num_return_sequences, min_new_tokens, stop_sequence, eos_token_id, seed,
                watermark; num_beams, length_penalty and early_stopping, which search instead of drawing.

        Raises:
            InvalidRequestError: a value is wrong, or a prompt fills max_length already.
            UnsupportedError: an argument that Octavo does not know; it is named.
        """
        max_length, max_new_tokens = _lengths(max_length, max_new_tokens)
        params = sampling_params(generation)
        prompts, many = _as_list(text_inputs)
        ids = [self._token_ids(prompt, continue_final_message) for prompt in prompts]
        if truncation:
            most = self.llm.max_model_len - (DEFAULT_NEW_TOKENS if max_new_tokens is None else max_new_tokens)
            ids = [i[: max(1, most)] for i in ids]
        limits = [_new_tokens(len(i), max_length, max_new_tokens) for i in ids]
        each = zip(limits, ids, strict=True)
        every = [limited(params, limit, prompt, no_repeat_ngram_size) for limit, prompt in each]
        outputs = self.llm.generate([{"prompt_token_ids": i} for i in ids], every, use_tqdm=False)
        records = [
            [
                {"generated_text": _text(prompt, completion, return_full_text, continue_final_message)}
                for completion in output.outputs
            ]
            for prompt, output in zip(prompts, outputs, strict=True)
        ]
        return records if many else records[0]

    def _token_ids(self, prompt: str | Chat, continue_final: bool | None) -> list[int]:
        if isinstance(prompt, str):
            return list(self.tokenizer.encode(prompt))
        going_on = _goes_on(prompt, continue_final)
        return self.llm.render_chat(
            prompt, add_generation_prompt=not going_on, continue_final_message=going_on
        )


def sampling_params(
    generation: Mapping[str, Any], where: str = "the text-generation pipeline"
) -> SamplingParams:
    """transformers' generation arguments as SamplingParams; max_tokens is left to the caller.

    Args:
        where: who takes them, for the words of a refusal.

    Raises:
        InvalidRequestError: values that contradict each other, or are out of range.
        UnsupportedError: a name that is not known here.
    """
    rest = {name: value for name, value in generation.items() if value is not None}
    for name in WITHOUT_EFFECT & rest.keys():
        del rest[name]
    _refuse(rest, where)
    watermark = _mark(rest)
    beams = rest.pop("num_beams", 1)
    search = {n: rest.pop(n) for n in ("length_penalty", "early_stopping") if n in rest}
    do_sample = rest.pop("do_sample", beams == 1)
    shaping = {n: rest.pop(n) for n in DRAWING if n in rest}
    count = rest.pop("num_return_sequences", 1)
    if search and beams == 1:
        raise InvalidRequestError(f"{next(iter(search))} needs num_beams above 1", next(iter(search)))
    if beams != 1 and do_sample:
        raise UnsupportedError(f"num_beams={beams} with do_sample=True is not supported", "num_beams")
    if not do_sample:  # transformers only warns that what shapes draws has no effect then
        if shaping:
            name = next(iter(shaping))
            raise InvalidRequestError(f"{name} has no effect with do_sample=False: drop one of them", name)
        if count != 1 and beams == 1:
            raise InvalidRequestError(
                f"num_return_sequences={count} with do_sample=False would repeat one answer",
                "num_return_sequences",
            )
        shaping = {"temperature": 0.0}
    known: dict[str, Any] = {
        "n": count,
        "repetition_penalty": rest.pop("repetition_penalty", 1.0),
        "min_tokens": rest.pop("min_new_tokens", 0),
        "stop": rest.pop("stop_sequence", ()),
        "stop_token_ids": _ids(rest.pop("eos_token_id", ())),
        "seed": rest.pop("seed", None),
        "watermark": watermark,
    }
    if beams != 1:
        known["beam_search"] = BeamSearchParams(beams, 2**31 - 1, **search)
    for name in rest:
        raise UnsupportedError(f"{where} does not take {name!r}", name)
    defaults: dict[str, Any] = {"temperature": DEFAULT_TEMPERATURE, "top_k": DEFAULT_TOP_K}
    if beams != 1:
        defaults = {}
    return SamplingParams(**known, **(defaults | shaping), max_tokens=None)


def limited(
    params: SamplingParams, most: int, prompt: Sequence[int] = (), no_repeat_ngram_size: int | None = None
) -> SamplingParams:
    """The same with so many new tokens at most, of beams too; no n-gram of prompt and answer comes twice."""
    beams = params.beam_search
    found = None if beams is None else dataclasses.replace(beams, max_tokens=most)
    if no_repeat_ngram_size:
        positive("no_repeat_ngram_size", no_repeat_ngram_size)
        params = params.replace(constraints=(NoRepeatNgram(no_repeat_ngram_size, tuple(prompt)),))
    return params.replace(max_tokens=most, beam_search=found)


def _mark(rest: dict[str, Any]) -> Any:
    """Take out `watermark`, or transformers' watermarking_config, which is the same by other names.

    Raises:
        InvalidRequestError: both are given. UnsupportedError: it is another mark than is made here.
    """
    given, mark = rest.pop("watermarking_config", None), rest.pop("watermark", None)
    if given is None:
        return mark
    name = "watermarking_config"
    if mark is not None:
        raise InvalidRequestError("give watermark or watermarking_config, not both", name)
    members = given if isinstance(given, Mapping) else getattr(given, "to_dict", lambda: vars(given))()
    known = {"greenlist_ratio": "gamma", "bias": "delta", "hashing_key": "hashing_key"}
    only = {"seeding_scheme": "lefthash", "context_width": 1}
    for each, value in members.items():
        if each not in known and (each not in only or value != only[each]):
            said = f"watermarking_config.{each}={value!r} is not supported: watermark= is lefthash of width 1"
            raise UnsupportedError(said[:200], name)
    # transformers' own default of the share is another one than TGI's, which is ours.
    return {"gamma": 0.25, **{ours: members[each] for each, ours in known.items() if each in members}}


def _refuse(rest: dict[str, Any], where: str) -> None:
    """Take out what asks for what happens anyway; refuse what asks for more, with what does it."""
    for name, fine in NEUTRAL.items():
        if rest.pop(name, None) not in (None, *fine):
            advice = f": {ADVICE[name]}" if name in ADVICE else ""
            raise UnsupportedError(f"{where} does not take {name!r}{advice}", name)


def _ids(given: int | Sequence[int]) -> Sequence[int]:
    return (given,) if isinstance(given, int) else given


def _lengths(max_length: Any, max_new_tokens: Any) -> tuple[int | None, int | None]:
    """Both, checked.

    Raises:
        InvalidRequestError: one is no length, or both are given.
    """
    if max_length is not None and max_new_tokens is not None:
        raise InvalidRequestError("give max_length or max_new_tokens, not both", "max_length")
    given = {"max_length": plain_number(max_length), "max_new_tokens": plain_number(max_new_tokens)}
    for name, length in given.items():
        if length is not None:
            positive(name, length)
    return given["max_length"], given["max_new_tokens"]


def _new_tokens(prompt_tokens: int, max_length: int | None, max_new_tokens: int | None) -> int:
    if max_length is None:
        return DEFAULT_NEW_TOKENS if max_new_tokens is None else max_new_tokens
    if max_length <= prompt_tokens:
        raise InvalidRequestError(
            f"max_length {max_length} counts the prompt, which has {prompt_tokens} tokens: "
            "raise it, or give max_new_tokens",
            "max_length",
        )
    return max_length - prompt_tokens


def _is_chat(value: object) -> bool:
    return isinstance(value, Sequence) and bool(value) and isinstance(value[0], Mapping)


def _as_list(inputs: Any) -> tuple[list[str | Chat], bool]:
    """The prompts, and whether the caller gave a list of them."""
    if isinstance(inputs, str) or _is_chat(inputs):
        return [inputs], False
    if isinstance(inputs, Sequence) and all(isinstance(one, str) or _is_chat(one) for one in inputs):
        return list(inputs), True
    raise InvalidRequestError(
        "text_inputs must be a string, a chat (a list of messages), or a list of either", "text_inputs"
    )


def _goes_on(chat: Chat, continue_final: bool | None) -> bool:
    return chat[-1].get("role") == "assistant" if continue_final is None else continue_final


def _text(
    prompt: str | Chat, completion: CompletionOutput, full: bool, continue_final: bool | None
) -> str | list[Message]:
    if not full:
        return completion.text
    if isinstance(prompt, str):
        return prompt + completion.text
    messages = list(prompt)
    if _goes_on(prompt, continue_final):
        last = messages[-1]
        return [*messages[:-1], {**last, "content": str(last["content"]) + completion.text}]
    return [*messages, {"role": "assistant", "content": completion.text}]
