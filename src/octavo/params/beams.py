"""BeamSearchParams: how to search for the likeliest completions."""

from __future__ import annotations

from dataclasses import dataclass

from octavo.checks import booleans, integer, number
from octavo.errors import InvalidRequestError

MAX_LOGPROBS = 20
MAX_BEAM_WIDTH = MAX_LOGPROBS // 2
"""Each beam offers two candidates for every beam, as log-probabilities."""


@dataclass(frozen=True, slots=True)
class BeamSearchParams:
    """How to search for the likeliest completions instead of drawing them. Names as in vLLM.

    Attributes:
        beam_width: beams kept, and completions found; at most MAX_BEAM_WIDTH.
        max_tokens: upper bound of generated tokens.
        ignore_eos: the end of sequence ends nothing.
        temperature: 0 or 1, and means nothing: scores are the model's own log-probabilities.
        length_penalty: score = sum of logprobs / tokens ** length_penalty; above 0 favours long ones.
        include_stop_str_in_output: the token that ended a sequence gives text too.
        early_stopping: transformers' name. True: end with the first beam_width finished ones; False:
            when a better one is unlikely; "never": when none is possible.
    """

    beam_width: int
    max_tokens: int
    ignore_eos: bool = False
    temperature: float = 0.0
    length_penalty: float = 1.0
    include_stop_str_in_output: bool = False
    early_stopping: bool | str = False

    def __post_init__(self) -> None:
        integer(self, "beam_width", 1, MAX_BEAM_WIDTH)
        integer(self, "max_tokens", 1, 2**31 - 1)
        number(self, "length_penalty", -10.0, 10.0)
        booleans(self, "ignore_eos", "include_stop_str_in_output")
        if self.temperature not in (0, 1):
            raise InvalidRequestError(
                f"temperature {self.temperature!r}: a beam search draws nothing; leave it out", "temperature"
            )
        if self.early_stopping not in (True, False, "never"):
            raise InvalidRequestError(
                f'early_stopping must be true, false or "never", not {self.early_stopping!r}',
                "early_stopping",
            )
