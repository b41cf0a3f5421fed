"""Which bytes a token of the vocabulary stands for, by the decoder its tokenizer names."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from octavo.errors import CheckpointError

if TYPE_CHECKING:
    import tokenizers

SPACE = "▁"  # U+2581: how SentencePiece vocabularies write a space

_BYTE_TOKEN = re.compile(r"<0x([0-9A-Fa-f]{2})>")


def byte_alphabet() -> dict[int, str]:
    """Byte -> the printable character that GPT-2's vocabulary writes for it.

    Printable Latin-1 stands for itself; the other 68 bytes take U+0100 and up, in order.
    Source: GPT-2, encoder.py, bytes_to_unicode.
    """
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [b for b in range(256) if b not in printable]
    return {b: chr(b) for b in printable} | {b: chr(256 + i) for i, b in enumerate(others)}


# What is outside the alphabet maps to a character that Latin-1 lacks, so that encoding refuses it.
_TO_LATIN1 = dict.fromkeys(range(256), "\uffff") | {ord(c): chr(b) for b, c in byte_alphabet().items()}


def byte_level(token: str) -> bytes:
    """Bytes of a byte-level token; one outside the alphabet stands for its own UTF-8."""
    try:
        return token.translate(_TO_LATIN1).encode("latin-1")
    except UnicodeEncodeError:
        return token.encode()


def sentencepiece(token: str) -> bytes:
    """Bytes of a SentencePiece token: "▁" is a space."""
    return token.replace(SPACE, " ").encode()


def sentencepiece_bytes(token: str) -> bytes:
    """The same, where "<0x0A>" is a byte."""
    found = _BYTE_TOKEN.fullmatch(token)
    return bytes([int(found[1], 16)]) if found else sentencepiece(token)


@dataclass(frozen=True, slots=True)
class TokenDecoder:
    """Token -> bytes, and whether the first space of a text is dropped."""

    decode: Callable[[str], bytes]
    strips_leading_space: bool = False

    @staticmethod
    def of(backend: tokenizers.Tokenizer) -> TokenDecoder:
        """The decoder that the tokenizer names.

        Raises:
            CheckpointError: it is none of ByteLevel, Metaspace and the Llama family's sequence.
        """
        state = {} if backend.decoder is None else json.loads(backend.decoder.__getstate__())
        steps = state["decoders"] if state.get("type") == "Sequence" else [state]
        kinds = [step.get("type") for step in steps]
        if kinds == ["ByteLevel"]:
            return TokenDecoder(byte_level)
        if kinds == ["Metaspace"] and steps[0]["replacement"] == SPACE:
            return TokenDecoder(sentencepiece, steps[0].get("prepend_scheme") != "never")
        if "Replace" in kinds and all(_llama_step(step) for step in steps):
            decode = sentencepiece_bytes if "ByteFallback" in kinds else sentencepiece
            return TokenDecoder(decode, "Strip" in kinds)
        names = " + ".join(str(kind) for kind in kinds)
        raise CheckpointError(f"the tokenizer's decoder {names} is not supported")


def _llama_step(step: dict[str, Any]) -> bool:
    """One of the steps: Replace "▁" by " ", ByteFallback, Fuse, Strip one space on the left."""
    kind = step.get("type")
    if kind == "Replace":
        return step.get("pattern") == {"String": SPACE} and step.get("content") == " "
    if kind == "Strip":
        return (step.get("content"), step.get("start"), step.get("stop")) == (" ", 1, 0)
    return kind in ("ByteFallback", "Fuse")
