"""Regular expressions without look-ahead, and expressions of what another one does not match.

llguidance's expressions have neither look-ahead nor complement. Both are regular all the same: an expression
is read, turned into an automaton by derivatives (Brzozowski, "Derivatives of regular expressions", 1964), in
which conjunction and complement cost nothing, and the automaton is written as an expression, state by state.

What is read is what schemas write: characters and sets, groups, repetitions, ^, $, \\b, \\B, look-ahead that
is not repeated (but for (?:(?!word).)*, which forbids a word anywhere), and look-behind for one character.
The rest stays. What looks behind asks which character stands before it, so a state of the automaton knows
what it is like where there is such a part left.
"""

from __future__ import annotations

import re
from functools import lru_cache
from typing import Literal

from octavo.structured.schema.expression_nodes import NONE, NothingError, UnreadableError, both, other_than
from octavo.structured.schema.expression_reader import Reader, read, splits
from octavo.structured.schema.expression_writer import written

_TOKEN = re.compile(
    r"\\[pP]\{[^{}]*\}|\\.|\[\^?(?:\\.|[^\]\\])*+\]|\{[0-9]*,?[0-9]*\}|\(\?<?[=!]|.", re.DOTALL
)
_LOOKS = frozenset(["(?=", "(?!", "(?<=", "(?<!", r"\b", r"\B"])
_BEGINNING = re.compile(r"\^((?:[A-Za-z0-9 _/:-](?![*?{]))+)(.*)", re.DOTALL)
_COUNT = re.compile(r"\{(?:[0-9]+(?:,[0-9]*)?|,[0-9]+)\}")


def has_lookahead(pattern: str) -> bool:
    """Whether it looks around: ahead, behind, for the edge of a word, or an end of the text in its middle."""
    if not any(sign in pattern for sign in ("(?", r"\b", r"\B")) and not (
        "^" in pattern[1:] or "$" in pattern[:-1]
    ):
        return False
    return any(
        token[0] in _LOOKS
        or (token[0] == "^" and token.start())
        or (token[0] == "$" and token.end() < len(pattern))
        for token in _TOKEN.finditer(pattern)
    )


def with_escaped_braces(pattern: str) -> str:
    """The same with a backslash before each brace that counts nothing, as ECMA-262 allows: ${name}."""
    if "{" not in pattern:
        return pattern
    return "".join(
        token[0].replace("{", r"\{").replace("}", r"\}")
        if token[0][0] in "{}" and not _COUNT.fullmatch(token[0])
        else token[0]
        for token in _TOKEN.finditer(pattern)
    )


@lru_cache(256)
def without_lookahead(pattern: str) -> tuple[str, ...]:
    """Expressions that all match what this one does: one if possible; itself if it cannot be read.

    None: no string matches.
    """
    try:
        return (written(read(pattern)),)
    except NothingError:
        return ()
    except (UnreadableError, RecursionError):
        pass
    try:  # what stands behind a first look-ahead may be large, and stays as it is
        ahead, rest = _first_ahead(pattern)
        return (*without_lookahead("^" + rest), written(read(ahead)))
    except (UnreadableError, RecursionError):
        return (pattern,)


@lru_cache(256)
def complement(pattern: str) -> str | None:
    """An expression of the strings in which this one finds nothing; None: it cannot be read."""
    try:
        return written(other_than(read(pattern)))
    except (UnreadableError, RecursionError):
        return None


def meet(patterns: tuple[str, ...], others: tuple[str, ...] = ()) -> str | None:
    """An expression of the strings in which all of these find something, and none of the others; or None.

    Raises:
        UnreadableError: they cannot be read, or are too large together.
    """
    if any(apart(one, other) for at, one in enumerate(patterns) for other in patterns[:at]):
        return None
    found = _met(patterns, others)
    if found is False:
        raise UnreadableError
    return found


@lru_cache(512)
def _met(patterns: tuple[str, ...], others: tuple[str, ...]) -> str | Literal[False] | None:
    """meet(); False: it raises, which is remembered too."""
    try:
        found = both(*map(read, patterns), *(other_than(read(other)) for other in others))
        return None if found == NONE else written(found)
    except NothingError:
        return None
    except (UnreadableError, RecursionError):
        return False


@lru_cache(256)
def is_endless(pattern: str) -> bool:
    """Whether it is known that there is no end of the strings that match it."""
    try:
        return "*" in written(read(pattern))  # of what leads to an end; a character is never written as *
    except (UnreadableError, RecursionError):
        return False


def apart(one: str, other: str) -> bool:
    """Whether no text matches both, as their beginnings tell: ^table and ^view."""
    mine, its = beginning(one), beginning(other)
    return not (mine.startswith(its) or its.startswith(mine))


@lru_cache(256)
def beginning(pattern: str) -> str:
    """Characters that each text begins with in which it finds something; none: they are not known."""
    found = _BEGINNING.fullmatch(pattern)
    return found[1] if found is not None and "|" not in found[2] else ""


def literal(text: str) -> str:
    """An expression of this text alone; of one character, in brackets too."""
    return re.sub(r"[-\[\]\\^$.|?*+(){}&~#]", r"\\\g<0>", text)


def _first_ahead(pattern: str) -> tuple[str, str]:
    """(an expression that is the look-ahead which an expression begins with, the rest)."""
    if not pattern.startswith(("^(?!", "^(?=")) or splits(pattern):
        raise UnreadableError
    reader = Reader(pattern, 1)
    reader.atom()
    return pattern[: reader.at], pattern[reader.at :]
