"""SpeculativeParams: what a request asks of speculative decoding, which changes its time and no token."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from octavo.checks import integer, is_int, token_ids
from octavo.errors import InvalidRequestError
from octavo.params.sampling import SamplingParams

MOST_DRAFTED = 64
"""Drafted tokens of one row in one step: a tree mask has a bit for each."""
MAX_PREDICTION = 65_536
"""Characters, or token ids, of a prediction."""


@dataclass(frozen=True, slots=True)
class SpeculativeParams:
    """What a request asks of speculative decoding. An engine that does not speculate only checks it.

    Attributes:
        k: tokens that may be drafted for each step; 0: none. None: as many as the engine may draft. Here and
            among ids 4.0 is 4, as in JSON.
        prediction: what the answer is expected to hold, as text or token ids: proposers look there for what
            follows. OpenAI's {"type": "content", "content": text} is taken, too.
    """

    k: int | None = None
    prediction: Any = ()

    def __post_init__(self) -> None:
        if self.k is not None:
            object.__setattr__(self, "k", _whole(self.k))
            try:
                integer(self, "k", low=0, high=MOST_DRAFTED)
            except InvalidRequestError as error:
                raise InvalidRequestError(f"speculative.{error}", "speculative") from None
        given = predicted_text(self.prediction) if isinstance(self.prediction, Mapping) else self.prediction
        if not isinstance(given, str):
            given = tuple(map(_whole, token_ids("prediction", given)))
            if not all(is_int(one) and 0 <= one < 2**31 for one in given):  # what a table of tokens holds
                raise _wrong("must be text or token ids")
        if len(given) > MAX_PREDICTION:
            raise _wrong(f"takes at most {MAX_PREDICTION} characters or token ids")
        object.__setattr__(self, "prediction", given)

    @classmethod
    def of(cls, given: object) -> SpeculativeParams:
        """What SamplingParams.speculative asks for; None asks for nothing.

        Raises:
            InvalidRequestError: it is neither a SpeculativeParams nor an object with its fields.
        """
        if given is None or isinstance(given, SpeculativeParams):
            return cls() if given is None else given
        if not isinstance(given, Mapping):
            raise InvalidRequestError("speculative must be an object such as {'k': 4}", "speculative")
        for name in given:
            if name not in cls.__slots__:
                raise InvalidRequestError(f"unknown field speculative.{str(name)[:60]}", "speculative")
        return cls(**{name: value for name, value in given.items() if value is not None})

    @property
    def ids(self) -> Sequence[int]:
        """The prediction's tokens; none as long as it is text."""
        return () if isinstance(self.prediction, str) else self.prediction


def predicted_text(prediction: Mapping[str, Any]) -> str:
    """The text of OpenAI's prediction: its content, or that of its text parts.

    Raises:
        InvalidRequestError: it has none.
    """
    content = prediction.get("content")
    if prediction.get("type") != "content" or set(prediction) != {"type", "content"}:
        raise _wrong("must be an object with type (content) and content, and nothing else")
    if isinstance(content, str):
        return content
    texts: list[str] = []
    for part in content if isinstance(content, list) else [None]:
        text = part.get("text") if isinstance(part, Mapping) and part.get("type") == "text" else None
        if not isinstance(text, str):
            raise _wrong("needs content: a text, or a list of text parts")
        texts.append(text)
    return "".join(texts)


def _whole(value: Any) -> Any:
    return int(value) if isinstance(value, float) and value.is_integer() else value


def _wrong(what: str) -> InvalidRequestError:
    return InvalidRequestError(f"prediction {what}", "prediction")


def with_ids(given: object, encode: Callable[..., list[int]]) -> SpeculativeParams:
    """SamplingParams.speculative with a predicted text as token ids, of which encode() makes them.

    Raises:
        InvalidRequestError: as SpeculativeParams.of().
    """
    wanted = SpeculativeParams.of(given)
    if not isinstance(wanted.prediction, str):
        return wanted
    try:
        ids = encode(wanted.prediction, add_special_tokens=False)
    except InvalidRequestError:  # it says so of "the prompt"
        raise _wrong("is not valid Unicode text") from None
    return SpeculativeParams(wanted.k, ids)


def speculates(params: SamplingParams) -> bool:
    """Whether such a request may have drafts: no beams, no pooled prompt, no scores of the prompt."""
    return params.beam_search is None and params.pooling is None and params.prompt_logprobs is None
