"""Grammars over a vocabulary of bytes, and every way of writing a JSON value down."""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterator
from typing import Any

import numpy as np

from octavo.params import SamplingParams, StructuredOutputsParams
from octavo.sampling.constraints import Constraint, full_mask
from octavo.sampling.logits import allowed
from octavo.structured import ConstraintCompiler

END, VOCAB = 256, 260


class ByteTokenizer:
    """Token i is the byte i; 256 and 257 end a text; 258 is a word, 259 another control token."""

    vocab_size = 260
    stop_token_ids = (256, 257)

    def encode(self, text: str, add_special_tokens: bool = True) -> list[int]:
        return list(text.encode())

    def token_bytes(self, token_id: int) -> bytes:
        named = {256: b"<end>", 257: b"<eot>", 258: b"bad", 259: b"<pad>"}
        return named.get(token_id, bytes([token_id % 256]))

    def is_special(self, token_id: int) -> bool:
        return token_id in (256, 257, 259)


def compiled(compiler: ConstraintCompiler, **wanted: Any) -> Constraint:
    """The constraint of one kind of structured output."""
    params = SamplingParams(structured_outputs=StructuredOutputsParams(**wanted))
    constraint: Constraint = compiler.compile(params).constraints[0]
    return constraint


def next_tokens(constraint: Constraint, output: list[int], ahead: list[int] | None = None) -> set[int]:
    """Which tokens may follow."""
    mask = full_mask(1, VOCAB)[0]
    constraint.start(output).restrict(mask, ahead or [])
    return set(np.flatnonzero(allowed(mask, VOCAB)).tolist())


def accepts(constraint: Constraint, text: str) -> bool:
    """Whether the text is a whole answer: each byte allowed where it comes, and then the end."""
    matcher = constraint.start([])
    for byte in [*text.encode(), END]:
        mask = full_mask(1, VOCAB)[0]
        matcher.restrict(mask)
        if not allowed(mask, VOCAB)[byte]:
            return False
        matcher.append([byte])
    return True


def spellings(value: Any, most: int = 24) -> Iterator[Any]:
    """The value with its properties in every order (up to a bound), whole floats as integers too."""
    if isinstance(value, dict):
        for names in itertools.islice(itertools.permutations(value), most):
            members = [list(itertools.islice(spellings(value[name]), most)) for name in names]
            for chosen in itertools.islice(itertools.product(*members), most * 8):
                yield dict(zip(names, chosen, strict=True))
    elif isinstance(value, list):
        items = [list(itertools.islice(spellings(item), most)) for item in value]
        yield from map(list, itertools.islice(itertools.product(*items), most * 8))
    else:
        yield value
        if isinstance(value, float) and value == int(value):
            yield int(value)


def reachable(constraint: Constraint, value: Any) -> bool:
    """Whether some spelling of the value is an answer."""
    return any(accepts(constraint, json.dumps(v, ensure_ascii=False)) for v in spellings(value))


class WordTokenizer:
    """96 tokens of one to five bytes, so a text has many spellings; 2 ends a text, 0 and 1 are control."""

    vocab_size = 96
    stop_token_ids = (2,)
    words = (
        *(
            '{"',
            '"}',
            '":',
            '","',
            '":"',
            "name",
            "nam",
            '"name',
            "age",
            "ag",
            "tag",
            "yes",
            "ye",
            "null",
            "true",
        ),
        *(
            "12",
            "123",
            "-1",
            "the",
            "th",
            " a",
            " the",
            "ab",
            "abc",
            "ba",
            "[]",
            "[[",
            "}}",
            "],",
            ", ",
            "  ",
        ),
        *(*'abcdefghijklmnopqrstuvwxyz{}[]":, 0123456789.-+\\é_',)[: 96 - 34],
    )

    def encode(self, text: str, add_special_tokens: bool = True) -> list[int]:
        ids: list[int] = []
        while text:
            word = max((w for w in self.words if text.startswith(w)), key=len, default=None)
            if word is None:
                return ids
            ids.append(3 + self.words.index(word))
            text = text[len(word) :]
        return ids

    def token_bytes(self, token_id: int) -> bytes:
        if token_id < 3:
            return (b"<pad>", b"<s>", b"</s>")[token_id]
        at = token_id - 3
        return self.words[at].encode() if at < len(self.words) else b"#%d" % at

    def is_special(self, token_id: int) -> bool:
        return token_id < 3
