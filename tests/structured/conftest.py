"""For tests of what grammars say: a loaded machine may take as long as it takes."""

from __future__ import annotations

import pytest

from octavo.structured import grammar


@pytest.fixture
def no_clock(monkeypatch: pytest.MonkeyPatch) -> None:
    """No grammar is given up for its time, which test_trial.py and test_grammar.py are about."""
    monkeypatch.setattr(grammar, "CREDIT_S", 1e9)
