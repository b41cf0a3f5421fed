"""Control tokens written out in messages: what a user types stays text.

A chat template writes control tokens such as <|im_end|> as text, and so might a user, who could then
end his turn and speak as the system. So before rendering, each such text in the messages gets a mark
inside, which keeps it from being read as the token; after encoding, the mark's own tokens are taken out:

    "<|im_end|>"   ->   "<MARK|im_end|>"   ->   ids of "<", MARK, "|im", ...   ->   "<", "|im", ...

Where nobody writes control tokens nothing is changed. Prompts that are no chats are the caller's own,
and may hold them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from octavo.errors import InvalidRequestError
from octavo.tokenizer.tokenizer import Tokenizer

_MARKS = [chr(code) for code in range(0xFDD0, 0xFDF0)]
"""Unicode's noncharacters: no text that is interchanged should have them."""


class Marker:
    """Marks control tokens in what one conversation brings, and encodes what a template made of it.

    Args:
        given: the messages, tools and so on, as a template gets them.
    """

    def __init__(self, tokenizer: Tokenizer, *given: Any) -> None:
        self._tokenizer = tokenizer
        self._mark = ""
        pattern = tokenizer.control_pattern
        texts = [text for each in given for text in _texts(each)]
        if pattern is None or not any(map(pattern.search, texts)):
            return
        self._pattern = pattern
        self._mark = next((mark for mark in _MARKS if not any(mark in text for text in texts)), "")
        if not self._mark:
            raise InvalidRequestError("messages hold control tokens and every noncharacter", "messages")

    def marked(self, value: Any) -> Any:
        """The same value with all control tokens in its texts marked."""
        if not self._mark:
            return value
        if isinstance(value, str):
            return self._pattern.sub(lambda found: found[0][:1] + self._mark + found[0][1:], value)
        if isinstance(value, Mapping):
            return {self.marked(key): self.marked(each) for key, each in value.items()}
        if isinstance(value, Sequence) and not isinstance(value, bytes):
            return [self.marked(each) for each in value]
        return value

    def encode(self, text: str) -> tuple[str, list[int]]:
        """(text without marks, its token ids); control tokens are only those that the template wrote.

        Raises:
            InvalidRequestError: this model's tokenizer joins the mark with the text around it.
        """
        if not self._mark or self._mark not in text:
            return text, self._tokenizer.encode(text, add_special_tokens=False)
        ids: list[int] = []
        for token, start, end in self._tokenizer.encode_with_offsets(text):
            piece = text[start:end]
            if self._mark not in piece:
                ids.append(token)
            elif piece != self._mark:
                raise InvalidRequestError(
                    "messages hold text that this model's tokenizer cannot tell from a control token",
                    "messages",
                )
        return text.replace(self._mark, ""), ids


def _texts(value: Any) -> list[str]:
    """All strings in a JSON value, keys too."""
    if isinstance(value, str):
        return [value]
    if isinstance(value, Mapping):
        return [text for pair in value.items() for each in pair for text in _texts(each)]
    if isinstance(value, Sequence) and not isinstance(value, bytes):
        return [text for each in value for text in _texts(each)]
    return []
