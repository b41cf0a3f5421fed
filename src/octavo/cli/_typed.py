"""TypedCommand: run, chat and generate, as llama-cli's users type them for a GPU."""

from __future__ import annotations

import sys
from typing import Any

from octavo.cli._help import GroupedCommand

LAYERS = ("-ngl", "--n-gpu-layers", "--gpu-layers")
"""llama.cpp's; `octavo serve` has them in a table with all of its others (octavo.cli._engines)."""


class TypedCommand(GroupedCommand):
    """Leaves LAYERS out, and says so."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        return super().parse_args(ctx, without_layers(args))


def without_layers(args: list[str]) -> list[str]:
    """A command line without LAYERS and their values."""
    kept: list[str] = []
    for at, word in enumerate(args):
        if word == "--":
            return [*kept, *args[at:]]
        if word.partition("=")[0] in LAYERS:
            why = "a model is on one device as a whole: --device"
            print(f"octavo: note: {word} (llama.cpp) has no effect: {why}", file=sys.stderr)
        elif not (at and args[at - 1] in LAYERS):
            kept.append(word)
    return kept
