"""logit_bias: what a request may add to the logits of single tokens."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from octavo.checks import is_int, plain_number
from octavo.errors import InvalidRequestError

MAX_LOGIT_BIAS = 1024


def logit_bias(bias: Mapping[int, float]) -> dict[int, float]:
    """Token ids to numbers, as Python's own.

    Raises:
        InvalidRequestError: it is something else, or too much.
    """
    if not isinstance(bias, Mapping):
        raise InvalidRequestError(f"logit_bias maps token ids to numbers, and is not {bias!r}", "logit_bias")
    if len(bias) > MAX_LOGIT_BIAS:
        raise InvalidRequestError(f"logit_bias takes at most {MAX_LOGIT_BIAS} tokens", "logit_bias")
    checked: dict[int, float] = {}
    for token, value in bias.items():
        token_id, amount = _token_id(token), plain_number(value)
        if token_id is None or not isinstance(amount, (int, float)) or isinstance(amount, bool):
            raise InvalidRequestError(
                f"logit_bias maps token ids to numbers, not {str(token)[:40]!r} to {str(value)[:40]!r}",
                "logit_bias",
            )
        if token_id < 0 or not -100.0 <= amount <= 100.0:
            raise InvalidRequestError(
                "logit_bias takes token ids >= 0 and values from -100 to 100", "logit_bias"
            )
        checked[token_id] = float(amount)
    return checked


def _token_id(token: Any) -> int | None:
    """A key of logit_bias: an integer, or in JSON, which has only strings, one as it is always written."""
    if isinstance(token, str):
        return int(token) if re.fullmatch(r"0|-?[1-9][0-9]{0,18}", token) else None
    token = plain_number(token)
    return token if is_int(token) else None
