"""A tokenizer of words for tiny models, and texts in it."""

from __future__ import annotations

import random
from pathlib import Path

from support.tiny_engine import VOCAB_SIZE


def save_reading_words(folder: Path, count: int = VOCAB_SIZE, shift: int = 0) -> Path:
    """Reads "w5 w6" as 5, 6.

    Args:
        shift: added to the number of each word, so that tokenizers differ.
    """
    from tokenizers import Tokenizer
    from tokenizers.decoders import Metaspace
    from tokenizers.models import WordLevel
    from tokenizers.pre_tokenizers import WhitespaceSplit

    words = {f"w{(i + shift) % count}": i for i in range(count)}
    tokenizer = Tokenizer(WordLevel(words, unk_token="w0"))
    tokenizer.pre_tokenizer = WhitespaceSplit()
    tokenizer.decoder = Metaspace()
    tokenizer.save(str(folder / "tokenizer.json"))
    return folder


def random_ids(count: int, seed: int = 5) -> list[int]:
    """Ids of words that a tiny model knows, no special ones."""
    rng = random.Random(seed)
    return [rng.randrange(3, VOCAB_SIZE) for _ in range(count)]


def text_of(ids: list[int]) -> str:
    return " ".join(f"w{i}" for i in ids)
