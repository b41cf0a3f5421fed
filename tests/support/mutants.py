"""Whether random engines notice a mistake."""

from __future__ import annotations

from collections.abc import Callable

from octavo.engine.page_pool import IntegrityError
from support.toy_executor import PlanError

NOTICED = (IntegrityError, PlanError, AssertionError, IndexError, ValueError)
"""What a check, a toy executor or a table says of books that are wrong."""


def must_be_noticed(
    drive: Callable[[int], object], seeds: int, also: tuple[type[Exception], ...] = ()
) -> None:
    """Run drive(seed) for up to `seeds` seeds, until one fails in one of these ways, or `also` ones."""
    for seed in range(seeds):
        try:
            drive(seed)
        except (*NOTICED, *also):
            return
    raise AssertionError("no random engine noticed")
