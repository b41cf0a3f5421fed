"""Mistakes made in a module's source: a check must fail by an assertion of its own, not by a crash."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from types import ModuleType
from typing import Any

import pytest

Check = Callable[[Any], None]
"""Asserts what is right of a module that it is given."""
Cases = Mapping[str, tuple[Sequence[Check], Sequence[tuple[str, str]]]]
"""A module -> who checks it, and mistakes (right, wrong) of its source."""


def checked(cases: Cases) -> pytest.MarkDecorator:
    """The test takes each module's name with each of its checks."""
    every = [
        pytest.param(name, each, id=each.__name__) for name, (checks, _) in cases.items() for each in checks
    ]
    return pytest.mark.parametrize(("name", "check"), every)


def mistaken(cases: Cases) -> pytest.MarkDecorator:
    """The test takes each module's name with each of its mistakes."""
    every = [(name, *mistake) for name, (_, mistakes) in cases.items() for mistake in mistakes]
    return pytest.mark.parametrize(("name", "right", "wrong"), every)


def mutant_of(module: ModuleType, right: str, wrong: str) -> ModuleType:
    """The module once more, with another text in the one place where its source says `right`.

    Who calls takes "mutant" out of sys.modules, where dataclasses look for their module.
    """
    source = inspect.getsource(module)
    assert source.count(right) == 1, f"{module.__name__} says {right!r} {source.count(right)} times"
    mutant = ModuleType("mutant")
    mutant.__file__ = module.__file__
    sys.modules["mutant"] = mutant
    exec(compile(source.replace(right, wrong), "mutant", "exec"), mutant.__dict__)
    return mutant


def must_die(module: ModuleType, right: str, wrong: str, checks: Iterable[Check]) -> None:
    """Raise unless a check asserts that the mutant is wrong. What else a check raises is not caught."""
    try:
        mutant = mutant_of(module, right, wrong)
        for check in checks:
            try:
                check(mutant)
            except AssertionError:
                return
    finally:
        sys.modules.pop("mutant", None)
    raise AssertionError(f"{module.__name__}: nobody noticed {wrong!r} for {right!r}")
