"""Pipelines over encoder-decoder models: text2text-generation, summarization, translation.

What a call does not say the model's files do: generation_config.json, and config.json's
task_specific_params for the task (T5's prefixes and lengths). Members that are not obeyed are
refused by name.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, overload

from octavo.errors import InvalidRequestError, UnsupportedError
from octavo.llm import LLM
from octavo.params import DRAWING, BeamSearchParams, SamplingParams
from octavo.sampling.constraints import Constraint, ForcedTokens
from octavo.structured import NoRepeatNgram

Record = dict[str, Any]

DEFAULT_NEW_TOKENS = 256
"""Where neither the call nor the model's files name a length."""

RESULTS = {
    "text2text-generation": "generated_text",
    "summarization": "summary_text",
    "translation": "translation_text",
}
"""Task -> the member of its records that holds the text."""

# Without effect by construction: nothing is padded, batches form by themselves, inputs are refused or
# read whole, and decoding is exact.
WITHOUT_EFFECT = frozenset(
    {"pad_token_id", "batch_size", "use_cache", "clean_up_tokenization_spaces", "return_text"}
)

NEUTRAL: dict[str, tuple[object, ...]] = {
    "bad_words_ids": (),
    "begin_suppress_tokens": (),
    "diversity_penalty": (0.0,),
    "encoder_no_repeat_ngram_size": (0,),
    "encoder_repetition_penalty": (1.0,),
    "epsilon_cutoff": (0.0,),
    "eta_cutoff": (0.0,),
    "exponential_decay_length_penalty": (),
    "force_words_ids": (),
    "forced_decoder_ids": (),
    "guidance_scale": (1.0,),
    "num_beam_groups": (1,),
    "penalty_alpha": (0.0,),
    "sequence_bias": (),
    "suppress_tokens": (),
}
"""Members of a generation config that change the text and are not obeyed -> values that ask for nothing."""

KNOWN = (
    "do_sample",
    "early_stopping",
    "length_penalty",
    "max_length",
    "max_new_tokens",
    "min_length",
    "min_new_tokens",
    "no_repeat_ngram_size",
    "num_beams",
    "num_return_sequences",
    "repetition_penalty",
    "seed",
    *DRAWING,
)


class Text2TextPipeline:
    """Reads texts, writes others.

    Calling it returns, for one text or a list of texts, a list of records {"generated_text": ...}
    ("summary_text" for summarization, "translation_text" for translation). With num_return_sequences
    above 1 a list of texts gives a list of such lists.
    """

    def __init__(self, llm: LLM, task: str = "text2text-generation") -> None:
        if not llm.max_encoder_len:
            raise InvalidRequestError(
                f"the {task} pipeline needs an encoder-decoder model such as T5 or BART; "
                'this one continues texts: use "text-generation"',
                "task",
            )
        self.llm, self.task = llm, task
        self._member = RESULTS[task.split("_")[0]]
        files = dict(llm.generation_config)
        special = files.get("task_specific_params") or {}
        self._defaults = files | dict(special.get(task) or {} if isinstance(special, Mapping) else {})
        self._prefix = str(self._defaults.get("prefix") or "")

    @overload
    def __call__(self, text_inputs: str, **arguments: Any) -> list[Record]: ...
    @overload
    def __call__(self, text_inputs: list[str], **arguments: Any) -> list[Record] | list[list[Record]]: ...
    def __call__(
        self, text_inputs: str | list[str], *, truncation: bool = False, **generation: Any
    ) -> list[Record] | list[list[Record]]:
        """Generate.

        Args:
            truncation: cut inputs that are longer than the encoder reads; otherwise they are refused.
            generation: transformers' names: max_length and min_length (which count the decoder's start
                token), max_new_tokens, min_new_tokens, num_beams, length_penalty, early_stopping,
                no_repeat_ngram_size, repetition_penalty, do_sample, temperature, top_k, top_p, min_p,
                num_return_sequences; and seed.

        Raises:
            InvalidRequestError: a value is wrong, or contradicts another.
            UnsupportedError: an argument, or a member of the model's files, that is not obeyed; named.
        """
        many = not isinstance(text_inputs, str)
        texts: Sequence[Any] = [text_inputs] if isinstance(text_inputs, str) else text_inputs
        if not isinstance(texts, Sequence) or not all(isinstance(text, str) for text in texts):
            raise InvalidRequestError("text_inputs must be a string or a list of strings", "text_inputs")
        wishes = CallSettings.of(self._defaults, generation, self.llm.decoder_prompt)
        params = wishes.params()
        prompts = [
            {"encoder_prompt": self._ids(text, truncation), "decoder_prompt": wishes.start} for text in texts
        ]
        outputs = self.llm.generate(prompts, params, use_tqdm=False)
        records = [[{self._member: c.text} for c in output.outputs] for output in outputs]
        if not many:
            return records[0]
        return records if params.n > 1 else [each[0] for each in records]

    def _ids(self, text: str, truncation: bool) -> list[int]:
        """As the encoder reads it; what is cut is the text, not the tokens around it."""
        tokenizer, longest = self.llm.get_tokenizer(), self.llm.max_encoder_len
        ids = tokenizer.encode(self._prefix + text)
        if not truncation or len(ids) <= longest:
            return ids
        plain = tokenizer.encode(self._prefix + text, add_special_tokens=False)
        around = len(ids) - len(plain)
        head = next((i for i in range(around) if ids[i : i + len(plain)] == plain), around)
        return [*ids[:head], *plain[: longest - around], *ids[head + len(plain) :]]


@dataclass(frozen=True, slots=True)
class CallSettings:
    """What a call and the model's files ask for together.

    Attributes:
        values: by transformers' name, of KNOWN. given: those that the call itself named.
        files: the model's own, for what only they say.
        start: what the decoder begins with. A search has only the first token of it given: what is forced
            after it counts as generated there, as in transformers.
    """

    values: Mapping[str, Any]
    given: frozenset[str]
    files: Mapping[str, Any]
    start: tuple[int, ...]

    @staticmethod
    def of(files: Mapping[str, Any], call: Mapping[str, Any], start: tuple[int, ...]) -> CallSettings:
        asked = {k: v for k, v in call.items() if v is not None and k not in WITHOUT_EFFECT}
        for name in asked:
            if name not in KNOWN:
                raise UnsupportedError(f"the pipeline does not take {name!r}", name)
        for name, fine in NEUTRAL.items():
            value = files.get(name)
            if value is not None and value not in fine and value not in ([], {}, False):
                raise UnsupportedError(f"the model's generation_config asks for {name} = {value!r}, which "
                                       "is not supported", name)  # fmt: skip
        values = {name: files[name] for name in KNOWN if name in files} | asked
        if "max_length" in asked and "max_new_tokens" not in asked:
            values.pop("max_new_tokens", None)
        wishes = CallSettings(values, frozenset(asked), files, start)
        return replace(wishes, start=start[:1]) if wishes.beams > 1 else wishes

    @property
    def beams(self) -> int:
        return self._integer("num_beams", 1)

    def params(self) -> SamplingParams:
        """As SamplingParams, constraints included."""
        count = self._integer("num_return_sequences", 1)
        least, most = self._lengths()
        penalty = self.values.get("repetition_penalty", 1.0)
        ngram = self._integer("no_repeat_ngram_size", 0)
        sampled = bool(self.values.get("do_sample", False))
        shaping = self._searching(sampled, most) if self.beams > 1 else self._shaping(sampled, count)
        constraints: list[Constraint] = [NoRepeatNgram(ngram, self.start)] if ngram else []
        if self.beams > 1 and (forced := self._forced(most)):
            constraints.append(ForcedTokens(forced))
        return SamplingParams(
            n=count, max_tokens=most, min_tokens=least, repetition_penalty=penalty,
            seed=self.values.get("seed"), constraints=tuple(constraints), **shaping,
        )  # fmt: skip

    def _searching(self, sampled: bool, most: int) -> dict[str, Any]:
        if sampled:
            raise UnsupportedError(
                f"num_beams = {self.beams} together with do_sample is not supported: pass num_beams=1 or "
                "do_sample=False",
                "num_beams",
            )
        self._refuse_drawing()
        search = BeamSearchParams(
            self.beams, most, length_penalty=self.values.get("length_penalty", 1.0),
            early_stopping=self.values.get("early_stopping", False),
        )  # fmt: skip
        return {"beam_search": search}

    def _refuse_drawing(self) -> None:
        for name in DRAWING:
            if name in self.given:
                raise InvalidRequestError(f"{name} has no effect without do_sample=True", name)

    def _forced(self, most: int) -> dict[int, int]:
        """Place in a search's output -> the token that the model's files want there."""
        places = {"forced_bos_token_id": 0, "forced_eos_token_id": most - 1}
        found = {}
        for name, place in places.items():
            token = self.files.get(name)
            if token is None:
                continue
            if type(token) is not int:
                raise UnsupportedError(f"{name} = {token!r} with num_beams: one token id is supported", name)
            found[place] = token
        return found

    def _shaping(self, sampled: bool, count: int) -> dict[str, Any]:
        if sampled:
            return {"top_k": 50} | {name: self.values[name] for name in DRAWING if name in self.values}
        self._refuse_drawing()
        if count != 1:
            raise InvalidRequestError(
                f"num_return_sequences={count} needs do_sample=True or as many num_beams",
                "num_return_sequences",
            )
        return {"temperature": 0.0}

    def _lengths(self) -> tuple[int, int]:
        """(min_tokens, max_tokens). transformers counts the first token of the start as a prompt, and a
        forced one after it as generated; a forced end takes the last place, where no search puts it."""
        forced = len(self.start) - 1
        if "max_new_tokens" in self.values or "max_length" not in self.values:
            most = self._integer("max_new_tokens", DEFAULT_NEW_TOKENS) - forced
        else:
            most = self._integer("max_length", 0) - len(self.start)
        least = max(
            self._integer("min_length", 0) - len(self.start), self._integer("min_new_tokens", 0) - forced, 0
        )
        end = 1 if self.beams == 1 and self.files.get("forced_eos_token_id") is not None else 0
        if most - end < 1:
            raise InvalidRequestError("max_length or max_new_tokens leaves no room for a token", "max_length")
        if least > most:
            raise InvalidRequestError(
                f"at least {least} tokens are asked for, and at most {most}", "min_length"
            )
        return min(least, most - end), most - end

    def _integer(self, name: str, default: int) -> int:
        value = self.values.get(name, default)
        if isinstance(value, bool) or not isinstance(value, int) or value < 0:
            raise InvalidRequestError(f"{name} must be an integer of at least 0, not {value!r}", name)
        return value
