"""ServerCommand: a command whose line may be written in other engines' flags."""

from __future__ import annotations

import sys
from typing import Any

from octavo.cli._engines import translated
from octavo.cli._help import GroupedCommand


class ServerCommand(GroupedCommand):
    """Takes the flags of other engines' servers for its own (see octavo.cli._engines)."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """
        Raises:
            UnsupportedError: a flag of another engine's asks for what Octavo does not do.
        """
        words, notes = translated(args, self.own())
        for note in notes:
            print(f"octavo: note: {note}", file=sys.stderr)
        return super().parse_args(ctx, words)

    def own(self) -> dict[str, bool]:
        """This command's flags, and whether each has a value."""
        options: list[Any] = [each for each in self.params if each.param_type_name == "option"]
        return {
            name: not each.is_flag and not each.count
            for each in options  # (of a class that depends on typer's version)
            for name in (*each.opts, *each.secondary_opts)
        }
