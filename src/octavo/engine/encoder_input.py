"""Inputs of an encoder: which ones are taken, and under what name they are shared."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

from octavo.errors import InvalidRequestError


def check_encoder_input(token_ids: Sequence[int], limit: int, vocab_size: int | None) -> None:
    """Raise InvalidRequestError unless an encoder that reads up to limit tokens (0: none) takes these."""
    if bool(token_ids) is not (limit > 0):
        wrong = "needs at least one token for its encoder" if limit else "has no encoder"
        raise InvalidRequestError(f"the model {wrong}", "encoder_prompt")
    if len(token_ids) > limit:
        raise InvalidRequestError(
            f"the encoder's input has {len(token_ids)} tokens; at most {limit} are computed in one step: "
            "shorten it, or raise max_model_len and max_num_batched_tokens as far as the model allows",
            "encoder_prompt",
        )
    for token in token_ids:
        if token < 0 or (vocab_size is not None and token >= vocab_size):
            raise InvalidRequestError(
                f"token id {token} of the encoder's input is not in the vocabulary", "encoder_prompt"
            )


def salt_of(cache_salt: str | None, encoder_token_ids: tuple[int, ...]) -> str:
    """What a decoder computes depends on the encoder's input too: equal prefixes are shared under both."""
    digest = hashlib.sha256(",".join(map(str, encoder_token_ids)).encode()).hexdigest()
    return f"{cache_salt!r}/{digest}"
