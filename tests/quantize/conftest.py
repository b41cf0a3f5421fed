"""One tiny model, and a text for it."""

from __future__ import annotations

from pathlib import Path

import pytest

from support.small_models import save_model, text


@pytest.fixture(scope="session")
def dense(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of f32."""
    return save_model(tmp_path_factory.mktemp("dense") / "model")


@pytest.fixture(scope="session")
def read(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A calibration text."""
    path = tmp_path_factory.mktemp("text") / "text.txt"
    path.write_text(text())
    return path
