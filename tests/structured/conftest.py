"""For tests of what grammars say: a loaded machine may take as long as it takes."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from octavo.structured import grammar


@pytest.fixture(scope="module")
def no_clock() -> Iterator[None]:
    """No grammar is given up for its time, which test_trial.py is about."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(grammar, "CREDIT_S", 1e9)
        yield
