"""Case: what a value of one JSON type must be, as far as schemas have been merged."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any

from octavo.errors import InvalidRequestError, UnsupportedError
from octavo.params.structured import PARAM
from octavo.structured.schema.value import check_number

Conjunction = frozenset[tuple[int, bool]]
"""(number of a subschema, True: it holds; False: it does not)."""


@dataclass(slots=True)
class Case:
    """What a value of one type must be.

    Attributes:
        type: a JSON type, or "integer".
        values: the only ones, if there are only so many.
        bounds: keywords of numbers, strings, and sizes of arrays and objects, as they are.
        expressions: further ones that a string must match, beside the pattern.
        unique: no two items of an array are equal.
        contained: subschemas each of which some item satisfies.
    """

    type: str
    values: list[Any] | None = None
    bounds: dict[str, Any] = field(default_factory=dict)
    expressions: list[str] = field(default_factory=list)
    prefix: list[Conjunction] = field(default_factory=list)
    items: Conjunction = frozenset()
    properties: dict[str, Conjunction] = field(default_factory=dict)
    patterns: dict[str, Conjunction] = field(default_factory=dict)
    additional: Conjunction = frozenset()
    required: dict[str, None] = field(default_factory=dict)
    unique: bool = False
    contained: tuple[int, ...] = ()

    @property
    def is_leaf(self) -> bool:
        return self.values is not None or self.type not in ("array", "object") or self.is_free

    @property
    def is_free(self) -> bool:
        """Any value of the type will do."""
        empty = not (
            self.bounds or self.expressions or self.prefix or self.items or self.properties or self.patterns
        )
        empty = empty and not (self.additional or self.required or self.unique or self.contained)
        return empty and self.values is None

    @property
    def bounds_possible(self) -> bool:
        """Whether each lower bound leaves room below its upper one."""
        bounds = self.bounds
        for size in ("Length", "Items", "Properties"):
            if bounds.get("min" + size, 0) > bounds.get("max" + size, math.inf):
                return False
        low = max(bounds.get("minimum", -math.inf), bounds.get("exclusiveMinimum", -math.inf))
        high = min(bounds.get("maximum", math.inf), bounds.get("exclusiveMaximum", math.inf))
        open_ = low == bounds.get("exclusiveMinimum") or high == bounds.get("exclusiveMaximum")
        return bool(low < high or (low == high and not open_))

    def tighten(self, keyword: str, value: Any) -> None:
        """Tighten a bound."""
        bounds = self.bounds
        if keyword in ("pattern", "format"):
            if not isinstance(value, str):
                raise InvalidRequestError(f"{keyword} must be a string", PARAM)
            if bounds.setdefault(keyword, value) == value:
                return
            if keyword == "format":
                raise UnsupportedError(
                    "JSON schema: two different formats in one place are not supported", PARAM
                )
            self.expressions.append(value)
            return
        check_number(keyword, value)
        if isinstance(value, float) and value == int(value):
            value = int(value)  # sizes may be written 2.0
        if keyword == "multipleOf":
            if bounds.get(keyword, value) != value:
                raise UnsupportedError(
                    "JSON schema: two different multipleOf in one place are not supported", PARAM
                )
            bounds[keyword] = value
        elif keyword not in bounds:
            bounds[keyword] = value
        else:
            tighter = max if keyword.startswith(("min", "exclusiveMin")) else min
            bounds[keyword] = tighter(bounds[keyword], value)
