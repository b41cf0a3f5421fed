"""Grammars on trial: what runs in the confined process before the server compiles one itself.

A grammar's text is made there (schemas written out, GBNF read), compiled, and followed for some tokens. What
comes through within its limits does not take the server longer: it compiles the same text with the same
vocabulary. Only the spelling of forced texts differs, which costs either side no more than the text's length.
"""

from __future__ import annotations

import random
import resource
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import numpy as np

from octavo.errors import InvalidRequestError
from octavo.params import StructuredOutputsParams
from octavo.params.structured import PARAM
from octavo.sampling.constraints import ConstraintError, full_mask
from octavo.sampling.logits import allowed
from octavo.structured.distinct import Distinct, constraint_of
from octavo.structured.grammar import Grammar, GrammarVocabulary
from octavo.structured.grammar_source import grammar_source

STEPS = 32
STEP_S = 0.008
"""Of a processor, for each token on average: four times what a row is given for each (grammar.MASK_S), as on
the way states are built that are built once."""

_EXAMPLE: Any = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "pattern": "^[a-z]+$", "maxLength": 9},
        "kind": {"enum": ["a", "b", 1]},
        "size": {"type": "integer", "minimum": 1, "maximum": 99},
        "flags": {"type": "array", "items": {"type": "boolean"}, "uniqueItems": True},
        "part": {"anyOf": [{"$ref": "#/$defs/part"}, {"type": ["null", "number"]}]},
        "other": {"oneOf": [{"required": ["a"]}, {"required": ["b"]}], "allOf": [{"$ref": "#/$defs/part"}]},
    },
    "patternProperties": {"^x-": {}},
    "required": ["name"],
    "$defs": {"part": {"type": "object", "properties": {"next": {"$ref": "#/$defs/part"}}}},
}
_ENOUGH_S = 1e6
"""What a row is given goes by the clock of the wall; here the processor's counts."""


def prepare(given: Any) -> Callable[[Any], Any]:
    """The vocabulary, and what tries a grammar.

    Args:
        given: {"tokens": their bytes as latin-1, "special": ids, "ends": ids}.
    """
    made: list[GrammarVocabulary] = []

    def encode(text: str) -> list[int]:  # any spelling will do
        return list(made[0].tokenizer.greedy_tokenize(text)) if made else []

    tokens = [token.encode("latin-1") for token in given["tokens"]]
    made.append(GrammarVocabulary(tokens, given["special"], given["ends"], encode))
    trial = _Trial(made[0])
    with suppress(Exception):  # a vocabulary may not be able to write it, or a busy machine take too long
        trial.warm_up()  # what is imported and remembered by it is there in all forks
    return trial


class _Trial:
    """Tries a grammar."""

    def __init__(self, vocabulary: GrammarVocabulary) -> None:
        self._vocabulary = vocabulary

    def __call__(self, job: Any) -> Any:
        return _try(job, self._vocabulary)

    def warm_up(self) -> None:
        """Try a small one of many parts: a fork has pages of its own then for what others look at too."""
        self({"kind": "json", "value": _EXAMPLE})


def _try(job: Any, vocabulary: GrammarVocabulary) -> Any:
    """{"source": the grammar's text for llguidance, "bytes": memory that it took}.

    Args:
        job: {"kind": of structured outputs, "value": what was wanted}.

    Raises:
        InvalidRequestError: as ConstraintCompiler.compile(), or following it takes too long.
    """
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    source = grammar_source(StructuredOutputsParams(**{job["kind"]: job["value"]}))
    _follow(constraint_of(source, vocabulary, PARAM, originals=1), vocabulary)
    grown = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
    return {"source": source, "bytes": grown << 10}


def _follow(grammar: Grammar | Distinct, vocabulary: GrammarVocabulary) -> None:
    """Take some tokens, any of those that may come."""
    choose = random.Random(0)
    size = vocabulary.tokenizer.vocab_size
    control = sorted(vocabulary.control)
    matcher, began = grammar.start(()), time.process_time()
    for _ in range(STEPS):
        mask = full_mask(1, size)[0]
        matcher.allowance.left_s = _ENOUGH_S
        try:
            matcher.restrict(mask)
        except ConstraintError as error:
            raise InvalidRequestError(f"{PARAM}: {error}", PARAM) from None
        texts = allowed(mask, size)
        texts[control] = False
        may_come = np.flatnonzero(texts)
        if not len(may_come):
            break
        matcher.append([int(choose.choice(may_come))])
    if time.process_time() - began > STEPS * STEP_S:
        raise InvalidRequestError(
            f"{PARAM}: working out what may come next takes too long: simplify it", PARAM
        )
