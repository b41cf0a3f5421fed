"""Token ids to text while they arrive."""

from __future__ import annotations

import codecs
from collections.abc import Sequence

from octavo.tokenizer.tokenizer import Tokenizer

_LONGEST_PARTIAL = 3  # bytes of a UTF-8 character that lacks its last one


class IncrementalDetokenizer:
    """push(id) returns the text that the token completes; flush() what is still open at the end.

    The deltas add up to tokenizer.decode(all ids), however the ids arrive, in O(1) a token: a
    character whose bytes span tokens appears with the token that ends it.

    Args:
        prompt_ids: what came before. If it ends within a character, the first tokens may complete
            it, and that character is then part of the output.
    """

    def __init__(
        self, tokenizer: Tokenizer, prompt_ids: Sequence[int] = (), skip_special_tokens: bool = True
    ) -> None:
        self._tokenizer = tokenizer
        self._skips = skip_special_tokens
        self._utf8 = codecs.getincrementaldecoder("utf-8")(errors="replace")
        self._strip = tokenizer.strips_leading_space and not prompt_ids
        self._utf8.decode(self._tail(prompt_ids))

    def _tail(self, prompt_ids: Sequence[int]) -> bytes:
        """The prompt's last bytes: enough of them to hold an unfinished character."""
        tail = b""
        for token_id in reversed(prompt_ids):
            if len(tail) > _LONGEST_PARTIAL:
                break
            tail = self._bytes(token_id) + tail
        return tail

    def _bytes(self, token_id: int) -> bytes:
        if self._skips and self._tokenizer.is_special(token_id):
            return b""
        return self._tokenizer.token_bytes(token_id)

    def push(self, token_id: int) -> str:
        """The text that this token adds; "" while a character is unfinished."""
        return self._begin(self._utf8.decode(self._bytes(token_id)))

    def flush(self) -> str:
        """End of the sequence: an unfinished character becomes U+FFFD."""
        return self._begin(self._utf8.decode(b"", final=True))

    def _begin(self, text: str) -> str:
        if self._strip and text:
            self._strip = False
            return text[1:] if text.startswith(" ") else text
        return text
