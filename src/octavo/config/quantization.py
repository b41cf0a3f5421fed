"""In which format weights are computed: EngineConfig.quantization, by vLLM's names."""

from __future__ import annotations

from octavo.errors import UnsupportedError

METHODS: tuple[str | None, ...] = (None, "gguf")
"""What a checkpoint is made of shows in its files; its own format may be named, and no other."""


def check_quantization(method: str | None) -> None:
    """Weights keep the format that they are stored in; none is made while they are loaded.

    Raises:
        UnsupportedError: another method is asked for.
    """
    if method not in METHODS:
        raise UnsupportedError(f"quantization {method!r} is not supported yet", "quantization")
