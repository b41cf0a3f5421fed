"""The targets, and how many inputs of each are tried of a million."""

from __future__ import annotations

from importlib import import_module
from typing import Any

from support.fuzz.target import Target

TARGETS = {
    "gguf": Target(250_000, "support.fuzz.files:GGUF"),
    "safetensors": Target(180_000, "support.fuzz.files:Safetensors"),
    "tokenizer": Target(120_000, "support.fuzz.files:TokenizerFolder"),
    "templates": Target(110_000, "support.fuzz.texts:Templates"),
    "grammars": Target(100_000, "support.fuzz.texts:Grammars", "support.fuzz.texts:contained"),
    "bodies": Target(120_000, "support.fuzz.requests:Bodies"),
    "sockets": Target(100_000, "support.fuzz.requests:Sockets"),
    "loads": Target(20_000, "support.fuzz.files:Loads"),
}
PER = sum(target.share for target in TARGETS.values())


def named(place: str) -> Any:
    """What "module:name" names."""
    module, _, name = place.partition(":")
    return getattr(import_module(module), name)
