"""An engine for commands that need no model."""

from __future__ import annotations

import pytest

from octavo.cli import _load
from support.fake_engine import FakeEngine


@pytest.fixture
def engine(monkeypatch: pytest.MonkeyPatch) -> FakeEngine:
    """What every command loads, whatever it is asked to."""
    fake = FakeEngine(reply="Hello")
    monkeypatch.setattr(_load, "load", lambda choice, progress=None: fake)
    monkeypatch.setattr(_load, "fetch", lambda model, quiet=False: None)
    return fake
