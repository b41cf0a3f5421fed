"""Tokenizer: the `tokenizers` library encodes; decoding is ours, from a table of each token's bytes.

With that table a stream needs O(1) work a token (IncrementalDetokenizer), and streaming and decode() agree
by construction: both are the UTF-8 reading of the same bytes.
"""

from __future__ import annotations

import codecs
import functools
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING

from octavo.errors import CheckpointError, InvalidRequestError
from octavo.tokenizer.token_bytes import TokenDecoder

if TYPE_CHECKING:
    import tokenizers

MAX_VOCABULARY = 1 << 22
"""Ten times the largest that there is; each id takes eight bytes, whether it is used or not."""
UNLOCKED_FROM = 4096
"""Characters from which encoding lets other threads run, which costs short texts more than it is worth."""
_LONGEST_PARTIAL = 3
"""Bytes of a UTF-8 character that lacks its last one."""


class Tokenizer:
    """Text to ids and back.

    Attributes:
        bos_token_id, eos_token_id: None where the model has none.
        stop_token_ids: ids that end a generation: end of text, of turn, of message.
        special_tokens: the named ones as text ("bos_token", "eos_token" ...), for chat templates.
        chat_template: the model's own Jinja template, or None.
    """

    def __init__(
        self,
        backend: tokenizers.Tokenizer,
        *,
        bos_token_id: int | None = None,
        eos_token_id: int | None = None,
        stop_token_ids: Iterable[int] = (),
        special_tokens: Mapping[str, str] | None = None,
        chat_template: str | None = None,
    ) -> None:
        self.backend = backend
        self.bos_token_id = bos_token_id
        self.eos_token_id = eos_token_id
        ends = set(stop_token_ids) | ({eos_token_id} if eos_token_id is not None else set())
        self.stop_token_ids = tuple(sorted(ends))
        self.special_tokens = dict(special_tokens or {})
        self.chat_template = chat_template
        self._added = backend.get_added_tokens_decoder()
        self._special = frozenset(i for i, token in self._added.items() if token.special)
        self._decoder = TokenDecoder.of(backend)

    @property
    def vocab_size(self) -> int:
        """One more than the highest token id."""
        return len(self._table)

    def encode(self, text: str, add_special_tokens: bool = True) -> list[int]:
        """Token ids. Special tokens written out in the text become their ids.

        Args:
            add_special_tokens: put the model's own around it, such as <s>. Not for rendered chats,
                whose template has written them.

        Raises:
            InvalidRequestError: not a str, or one with half of a surrogate pair.
        """
        try:
            if len(text) < UNLOCKED_FROM:
                ids: list[int] = self.backend.encode(text, add_special_tokens=add_special_tokens).ids
            else:  # only batches are encoded without the interpreter's lock
                ids = self.backend.encode_batch_fast([text], add_special_tokens=add_special_tokens)[0].ids
        except (TypeError, UnicodeEncodeError):
            raise InvalidRequestError("the prompt is not valid Unicode text", "prompt") from None
        except BaseException as error:  # of a vocabulary that does not hold what its own model needs
            if not is_foreign(error):
                raise
            raise InvalidRequestError(f"this model's tokenizer: {one_line(error)}", "prompt") from None
        return ids

    def encode_with_offsets(self, text: str) -> list[tuple[int, int, int]]:
        """(token id, start, end): encode() without the model's own around it, and each token's characters.

        Raises:
            InvalidRequestError: see encode().
        """
        try:
            (found,) = self.backend.encode_batch([text], add_special_tokens=False)
        except (TypeError, UnicodeEncodeError):
            raise InvalidRequestError("the prompt is not valid Unicode text", "prompt") from None
        return [(i, *span) for i, span in zip(found.ids, found.offsets, strict=True)]

    @functools.cached_property
    def control_pattern(self) -> re.Pattern[str] | None:
        """Finds control tokens written out in text; None: there are none."""
        control = self._special.union(i for i in self.stop_token_ids if i in self._added)
        texts = {self._added[i].content for i in control if len(self._added[i].content) > 1}
        return re.compile("|".join(map(re.escape, sorted(texts, key=len, reverse=True)))) if texts else None

    def decode(self, ids: Sequence[int], skip_special_tokens: bool = True) -> str:
        """Text of the ids; bytes that are no UTF-8 become U+FFFD. Ids that no token has are nothing."""
        skip = self._special if skip_special_tokens else frozenset()
        data = b"".join([self.token_bytes(i) for i in ids if i not in skip])
        text = data.decode("utf-8", errors="replace")
        return text[1:] if self.strips_leading_space and text.startswith(" ") else text

    def token_bytes(self, token_id: int) -> bytes:
        """The UTF-8 bytes the token stands for; a part of a character for some."""
        return self._table[token_id] if 0 <= token_id < len(self._table) else b""

    def token_text(self, token_id: int) -> str:
        """The token alone, as people read it (U+FFFD for a part of a character)."""
        return self.token_bytes(token_id).decode("utf-8", errors="replace")

    def token_id(self, token: str) -> int | None:
        """The id of a token by its name in the vocabulary, such as "<|im_end|>"."""
        found: int | None = self.backend.token_to_id(token)
        return found

    def is_special(self, token_id: int) -> bool:
        """A control token: left out of text unless asked for."""
        return token_id in self._special

    @property
    def strips_leading_space(self) -> bool:
        """The first space of a text is an artefact of the encoding (SentencePiece's dummy prefix)."""
        return self._decoder.strips_leading_space

    @functools.cached_property
    def longest_token(self) -> int:
        """Bytes of the longest token: n tokens never hold more than n times as many."""
        return max(map(len, self._table), default=1)

    @functools.cached_property
    def _table(self) -> list[bytes]:
        vocabulary = self.backend.get_vocab(with_added_tokens=True)
        size = max(vocabulary.values(), default=-1) + 1
        if size > MAX_VOCABULARY:
            raise CheckpointError(
                f"the tokenizer has a token {size - 1}; ids below {MAX_VOCABULARY} are taken"
            )
        table = [b""] * size
        for token, i in vocabulary.items():
            table[i] = self._decoder.decode(token)
        for i, added in self._added.items():
            table[i] = added.content.encode()
        return table


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


def is_foreign(error: BaseException) -> bool:
    """Whether the `tokenizers` library has raised this: a bare Exception, or a panic, which is none."""
    return isinstance(error, Exception) or type(error).__name__ == "PanicException"


def one_line(error: BaseException, limit: int = 200) -> str:
    """The message of an error, on one line and cut."""
    text = " ".join(str(error).split())
    return text if len(text) <= limit else text[: limit - 1] + "…"
