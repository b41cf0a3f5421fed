"""Patterns of names that overlap, as patterns of which each name matches one: llguidance takes no others."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from octavo.structured.schema.expression_nodes import UnreadableError
from octavo.structured.schema.expressions import apart, literal, meet

MAX_PATTERNS = 8
"""Of one place, whose overlaps are looked for."""
MAX_REGIONS = 24


def overlap(patterns: Sequence[str]) -> bool:
    """Whether a name may match two of them, as far as can be told."""
    if not 1 < len(patterns) <= MAX_PATTERNS:
        return False
    try:
        return any(
            not apart(one, other) and meet((one, other)) is not None
            for at, one in enumerate(patterns)
            for other in patterns[:at]
        )
    except (UnreadableError, RecursionError):
        return False


def regions(patterns: Sequence[str]) -> dict[str, frozenset[str]]:
    """Expressions that match no name twice, and which of the patterns match the names of each.

    Raises:
        UnreadableError: they cannot be told apart.
    """
    found: dict[tuple[tuple[str, ...], tuple[str, ...]], str] = {((), ()): ""}
    for pattern in patterns:
        split: dict[tuple[tuple[str, ...], tuple[str, ...]], str] = {}
        for (held, others), known in found.items():
            for key in (((*held, pattern), others), (held, (*others, pattern))):
                if not key[0]:
                    split[key] = ""
                elif key[0] == held and any(apart(pattern, each) for each in held):
                    split[key] = known
                elif (expression := _region(*key)) is not None:
                    split[key] = expression
        if len(split) > MAX_REGIONS:
            raise UnreadableError
        found = split
    return {expression: frozenset(held) for (held, _), expression in found.items() if held}


def _region(held: tuple[str, ...], others: tuple[str, ...]) -> str | None:
    if any(apart(one, other) for at, one in enumerate(held) for other in held[:at]):
        return None
    others = tuple(other for other in others if not any(apart(other, each) for each in held))
    return meet(held, others) if others or len(held) > 1 else held[0]


def without(pattern: str, names: Iterable[str]) -> str | None:
    """The pattern but for these names; None: it matches no others; itself where it cannot be read."""
    try:
        return meet((pattern,), (f"^(?:{'|'.join(map(literal, sorted(names)))})$",))
    except (UnreadableError, RecursionError):
        return pattern
