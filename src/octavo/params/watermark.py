"""WatermarkParams: tokens that a request favours, so that whoever knows the key can tell its text."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass

from octavo.checks import integer, need, number, plain_number
from octavo.errors import InvalidRequestError

DEFAULT_KEY = 15_485_863
"""TGI's and transformers' key: the millionth prime."""


@dataclass(frozen=True, slots=True)
class WatermarkParams:
    """The watermark of Kirchenbauer et al. ("A Watermark for Large Language Models", ICML 2023, algorithm 2).

    Before each draw the token before it seeds a permutation of the vocabulary; its first part is the green
    list, and delta is added to the logits of the tokens on it.

    Attributes:
        gamma: the green list's share of the vocabulary. 0.5 is TGI's; transformers' default is 0.25.
        delta: what is added to the logits. 2 is the default of both.
        hashing_key: times the token before it is the seed. Whoever has it can detect the mark, and forge it.
    """

    gamma: float = 0.5
    delta: float = 2.0
    hashing_key: int = DEFAULT_KEY

    def __post_init__(self) -> None:
        for each in dataclasses.fields(self):
            object.__setattr__(self, each.name, plain_number(getattr(self, each.name)))
        try:
            for name in ("gamma", "delta"):
                value = getattr(self, name)
                need(type(value) in (int, float), f"must be a number, not {value!r}", name)
            number(self, "gamma", low=0.01, high=0.99)
            number(self, "delta", low=-100, high=100)
            integer(self, "hashing_key", low=1, high=2**31 - 1)
        except InvalidRequestError as error:
            raise InvalidRequestError(f"watermark.{error}", "watermark") from None

    @classmethod
    def of(cls, given: object) -> WatermarkParams | None:
        """What SamplingParams.watermark asks for: None and False for nothing, True for the defaults.

        Raises:
            InvalidRequestError: it is none of these, nor an object with the fields of this class.
        """
        if given is None or given is False:
            return None
        if given is True or isinstance(given, cls):
            return cls() if given is True else given
        if not isinstance(given, Mapping):
            raise InvalidRequestError(
                "watermark must be true, false, or an object such as {'gamma': 0.5, 'delta': 2}", "watermark"
            )
        for name in given:
            if name not in cls.__slots__:
                raise InvalidRequestError(f"unknown field watermark.{str(name)[:60]}", "watermark")
        return cls(**{name: value for name, value in given.items() if value is not None})
