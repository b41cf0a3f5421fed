"""Whether random engines notice a mistake."""

from __future__ import annotations

from collections.abc import Callable

from octavo.engine.page_pool import IntegrityError
from support.toy_executor import PlanError, ToyCrash

NOTICED = (IntegrityError, PlanError, AssertionError)
"""What a check of ours says of books that are wrong: the engine's own, a toy executor's, a test's."""


def must_be_noticed(
    drive: Callable[[int], object], seeds: int, natural: tuple[type[Exception], ...] = ()
) -> None:
    """Run drive(seed) for up to `seeds` seeds, until a check of ours fails.

    Whatever else ends a run is a crash: that another mistake would end in one too, nobody knows.

    Args:
        natural: errors that count nevertheless, because this mistake can only end in them.
    """
    crashes: dict[str, int] = {}
    for seed in range(seeds):
        try:
            drive(seed)
        except (*NOTICED, *natural):
            return
        except (Exception, ToyCrash) as crash:  # not what was waited for, but another seed may show it
            said = f"{type(crash).__name__}: {crash}"
            crashes[said] = crashes.get(said, 0) + 1
    raise AssertionError(f"no check noticed; crashes and how often: {crashes}")
