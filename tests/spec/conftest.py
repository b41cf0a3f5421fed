"""Texts of drafts: the extension's, or Python's."""

from __future__ import annotations

import pytest

from octavo.spec import text_index


@pytest.fixture
def python_texts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Texts are Python's, whose lines can be counted."""
    monkeypatch.setattr(text_index, "native_class", lambda name: None)
