"""One server for all clients."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from support.served import KEY, Served, start


@pytest.fixture(scope="session")
def served(smollm2_path: Path) -> Iterator[Served]:
    """A server that wants KEY. Tests share it: other requests may run beside theirs."""
    server = start("--api-key", KEY, "--max-num-seqs", "16", "--max-model-len", "2048")
    yield server
    assert server.end() == 0
    assert server.events[-1] == {"event": "stopped", "finished": True}
