"""ServerCommand: a command whose line may be written in other engines' flags."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from typing import Any

from octavo.cli._engines import Piece, pieces, translated
from octavo.cli._help import GroupedCommand
from octavo.errors import InvalidRequestError


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
        self._check_once(pieces(args, self.own()))
        return super().parse_args(ctx, words)

    def _check_once(self, line: Iterable[Piece]) -> None:
        """
        Raises:
            InvalidRequestError: two names of one flag have two values. (One name twice: the last one counts.)
        """
        options: list[Any] = [each for each in self.params if each.param_type_name == "option"]
        flags = {
            name: each for each in options if not each.is_flag and not each.multiple for name in each.opts
        }
        met: dict[Any, tuple[str, str]] = {}
        for piece in line:
            head, *rest = piece.made or [""]
            name, _, value = head.partition("=")
            value = rest[0] if rest else value
            if piece.typed and (option := flags.get(name)) is not None:
                before, other = met.setdefault(option, (piece.typed, value))
                if before != piece.typed and other != value:
                    said = f"{before} {other} and {piece.typed} {value} are one flag: give one of them"
                    raise InvalidRequestError(said)

    def own(self) -> dict[str, bool]:
        """This command's flags, and whether each has a value."""
        options: list[Any] = [each for each in self.params if each.param_type_name == "option"]
        return {
            name: not each.is_flag and not each.count
            for each in options  # (of a class that depends on typer's version)
            for name in (*each.opts, *each.secondary_opts)
        }
