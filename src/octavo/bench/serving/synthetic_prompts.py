"""Prompts of a wanted length: token ids where a server takes them, else words of about a token each."""

from __future__ import annotations

import random

from octavo.bench.serving.exchange import Prompt
from octavo.bench.workload import COMMON_IDS, SPECIAL_IDS

_TEXT = """
    the of and to in that it was for on are with as at be this have from or one had by word but not
    what all were we when your can said there use an each which she do how their if will up other
    about out many then them these so some her would make like him into time has look two more write
    go see number no way could people my than first water been call who oil its now find long down
    day did get come made may part
"""
WORDS = tuple(_TEXT.split())
"""Of most vocabularies each is one token, with the blank before it."""


def length_within(draw: random.Random, length: int, ratio: float) -> int:
    """A length drawn evenly from length * (1 - ratio) to length * (1 + ratio), at least 1."""
    return max(draw.randint(round(length * (1 - ratio)), round(length * (1 + ratio))), 1)


def tokens_of(draw: random.Random, length: int, vocab_size: int = COMMON_IDS) -> list[int]:
    """length random token ids that most vocabularies have, none of control."""
    return [draw.randrange(min(SPECIAL_IDS, vocab_size // 2), vocab_size) for _ in range(length)]


def prompt_of(tokens: list[int], as_ids: bool) -> Prompt:
    """Token ids as they are, or a word for each: equal beginnings stay equal."""
    return tokens if as_ids else " ".join(WORDS[token % len(WORDS)] for token in tokens)
