"""A byte-level toy vocabulary, as GGUF metadata: every byte, a few merges, control tokens."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from octavo.tokenizer import Tokenizer
from octavo.tokenizer.gguf import from_gguf
from octavo.tokenizer.token_bytes import byte_alphabet

Metadata = dict[str, Any]


@pytest.fixture(scope="session")
def toy_metadata() -> Callable[..., Metadata]:
    """Make metadata; keyword arguments replace "tokenizer.ggml.<name>", None removes it."""

    def make(**changes: Any) -> Metadata:
        tokens = [*byte_alphabet().values(), "he", "ll", "hell", "hello", "Ġhe", "<end>", "<turn>", "{user}"]
        made: Metadata = {
            "model": "gpt2",
            "pre": "gpt-2",
            "tokens": tokens,
            "token_type": [1] * (len(tokens) - 3) + [3, 3, 4],
            "merges": ["h e", "l l", "he ll", "hell o", "Ġ he"],
            "eos_token_id": tokens.index("<end>"),
            "bos_token_id": tokens.index("<turn>"),
        }
        made |= changes
        return {f"tokenizer.ggml.{k}": v for k, v in made.items() if v is not None}

    return make


@pytest.fixture(scope="session")
def toy(toy_metadata: Callable[..., Metadata]) -> Tokenizer:
    return from_gguf(toy_metadata())
