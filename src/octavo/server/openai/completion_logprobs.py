"""Log-probabilities as /v1/completions has them: parallel lists."""

from __future__ import annotations

import codecs
import itertools
from collections.abc import Sequence
from typing import Any

from octavo.server.engine import ServedTokenizer
from octavo.server.openai.logprobs import LogprobsOnePosition, best, finite


class CompletionLogprobs:
    """completions' {"tokens", "token_logprobs", "top_logprobs", "text_offset"}, delta by delta. The likeliest
    are an iterator, for dumps_apart().

    An offset is where the token begins in the text: characters, counted after decoding the bytes so
    far, so that a character of several tokens counts once.
    """

    def __init__(self, tokenizer: ServedTokenizer, top: int, skip_special_tokens: bool) -> None:
        self._tokenizer = tokenizer
        self._top = top
        self._skip_special = skip_special_tokens
        self._offset = 0
        self._decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")

    def echo(
        self, token_ids: Sequence[int], logprobs: Sequence[LogprobsOnePosition | None], text: str
    ) -> dict[str, Any]:
        """The lists for the prompt, echoed as text; the first token has no logprob.

        A special token that the encoding put in front of the text takes no place in it.
        """
        added = 0
        if token_ids and self._tokenizer.is_special(token_ids[0]):
            added = int(not text.encode().startswith(self._tokenizer.token_bytes(token_ids[0])))
        first = self._lists(token_ids[:added], logprobs[:added], False)
        rest = self._lists(token_ids[added:], logprobs[added:], True)
        return join(first, rest)

    def add(self, token_ids: Sequence[int], logprobs: Sequence[LogprobsOnePosition]) -> dict[str, Any]:
        """The four lists for these tokens, which follow those of the calls before."""
        return self._lists(token_ids, logprobs, not self._skip_special)

    def _lists(
        self, token_ids: Sequence[int], logprobs: Sequence[LogprobsOnePosition | None], special_shows: bool
    ) -> dict[str, Any]:
        offsets: list[int] = []
        for token_id in token_ids:
            offsets.append(self._offset)
            if special_shows or not self._tokenizer.is_special(token_id):
                self._offset += len(self._decoder.decode(self._tokenizer.token_bytes(token_id)))
        return {
            "tokens": [self._name(token_id) for token_id in token_ids],
            "token_logprobs": [
                None if at is None else finite(at[token_id].logprob)
                for token_id, at in zip(token_ids, logprobs, strict=True)
            ],
            "top_logprobs": (
                None if at is None else self._likeliest(token_id, at)
                for token_id, at in zip(token_ids, logprobs, strict=True)
            ),
            "text_offset": offsets,
        }

    def _likeliest(self, chosen: int, at: LogprobsOnePosition) -> dict[str, float]:
        """The top ones, and the chosen one behind them where it is none of these: up to top + 1."""
        ranked = best(at, self._top)
        if all(token_id != chosen for token_id, _ in ranked):
            ranked.append((chosen, at[chosen].logprob))
        return {self._name(token_id): finite(value) for token_id, value in ranked}

    def _name(self, token_id: int) -> str:
        """The token's text; a part of a character as `bytes:\\xe2\\x80`, so that names stay distinct."""
        data = self._tokenizer.token_bytes(token_id)
        try:
            return data.decode()
        except UnicodeDecodeError:
            return "bytes:" + "".join(f"\\x{byte:02x}" for byte in data)


def join(one: dict[str, Any], other: dict[str, Any]) -> dict[str, Any]:
    """Two dicts of lists, end to end."""
    top = itertools.chain(one["top_logprobs"], other["top_logprobs"])
    return {name: top if name == "top_logprobs" else one[name] + other[name] for name in one}
