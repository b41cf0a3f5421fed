"""ServerCommand: a command whose line may be written in other engines' flags."""

from __future__ import annotations

import itertools
import sys
from collections.abc import Sequence, Set
from typing import Any

from octavo.cli._engines import Mapped, meanings, translated
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
        self._check_once(words, {word.partition("=")[0] for word in args})
        return super().parse_args(ctx, words)

    def _check_once(self, words: Sequence[str], typed: Set[str]) -> None:
        """Of these words, which were typed with other names perhaps.

        Raises:
            InvalidRequestError: two names of one flag have two values. (One name twice: the last one counts.)
        """
        options: list[Any] = [each for each in self.params if each.param_type_name == "option"]
        flags = {
            name: each for each in options if not each.is_flag and not each.multiple for name in each.opts
        }
        met: dict[Any, tuple[str, str]] = {}
        for word, following in itertools.zip_longest(words, words[1:], fillvalue=""):
            if word == "--":
                break
            name, equals, value = word.partition("=")
            if (option := flags.get(name)) is not None:
                value = value if equals else following
                before, other = met.setdefault(option, (name, value))
                if before != name and other != value:
                    one, two = (_typed(each, typed) for each in (before, name))
                    said = f"{one} {other} and {two} {value} are one flag: give one of them"
                    raise InvalidRequestError(said)

    def own(self) -> dict[str, bool]:
        """This command's flags, and whether each has a value."""
        options: list[Any] = [each for each in self.params if each.param_type_name == "option"]
        return {
            name: not each.is_flag and not each.count
            for each in options  # (of a class that depends on typer's version)
            for name in (*each.opts, *each.secondary_opts)
        }


def _typed(flag: str, typed: Set[str]) -> str:
    """The name by which a flag was typed."""
    if flag in typed:
        return flag
    mapped = ((name, meaning) for name, (_, meaning) in meanings().items() if name in typed)
    return next((name for name, each in mapped if isinstance(each, Mapped) and each.flag == flag), flag)
