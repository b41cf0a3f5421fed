"""The benchmarks' own folder, importable as the scripts there see it."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from octavo.bench.driver import Driver

sys.path.append(str(Path(__file__).parents[2] / "benchmarks"))


@pytest.fixture(scope="session")
def driver() -> Driver:
    """The real model, a small engine."""
    return Driver("smollm2", max_model_len=256, max_num_seqs=4, num_pages=64)
