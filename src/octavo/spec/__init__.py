"""Proposers of drafts: each file of this folder that holds a PROPOSER is one, and nothing else lists them."""

from __future__ import annotations

import importlib
import pkgutil
from functools import lru_cache

from octavo.errors import InvalidRequestError
from octavo.spec.base import Begin, Drafting, Option, Proposer, Registration, Wanted

__all__ = [
    "Begin",
    "Drafting",
    "Option",
    "Proposer",
    "Registration",
    "Wanted",
    "method",
    "methods",
    "table_methods",
]


@lru_cache(maxsize=1)
def methods() -> dict[str, Registration]:
    """The proposers by the names that speculative_config calls them, which are their files'."""
    names = sorted(file.name for file in pkgutil.iter_modules(__path__))
    files = {name: importlib.import_module(f"{__name__}.{name}") for name in names}
    return {name: file.PROPOSER for name, file in files.items() if hasattr(file, "PROPOSER")}


def table_methods() -> dict[str, Registration]:
    """Those whose drafts come from tables on the host, not from a model."""
    return {name: found for name, found in methods().items() if found.drafting is None}


def method(name: object) -> Registration:
    """The proposer of this name.

    Raises:
        InvalidRequestError: there is none.
    """
    found = methods().get(name) if isinstance(name, str) else None
    if found is None:
        raise InvalidRequestError(
            f"speculative_config has the method {name!r}; there are: {', '.join(methods())}",
            "speculative_config",
        )
    return found
