"""Drafts that the model verifies: EngineConfig.speculative_config, vLLM's mapping of names to values."""

from __future__ import annotations

from collections.abc import Mapping

from octavo.errors import UnsupportedError


def check_speculation(given: Mapping[str, object] | None) -> None:
    """Nothing drafts so far.

    Raises:
        UnsupportedError: speculation is asked for.
    """
    if given is not None:
        raise UnsupportedError("speculative_config is not supported yet", "speculative_config")
