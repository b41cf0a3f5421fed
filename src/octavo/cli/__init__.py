"""The `octavo` command: one file a command, found by its name, imported when it is called."""

from __future__ import annotations

import sys
from collections.abc import Sequence


def main(argv: Sequence[str] | None = None) -> int:
    """Run a command.

    Args:
        argv: arguments after the program's name; None takes the process's own.

    Returns:
        The exit status: 0, 1 for an error (one line on stderr), 2 for what is wrong as it was asked for (a
        flag, a model's name, an input), 130 for Ctrl-C. `watermark detect` has 1 for "not marked", and 2
        for errors.
    """
    try:
        from octavo.cli._app import run
    except KeyboardInterrupt:
        return 130
    return run(tuple(sys.argv[1:] if argv is None else argv))  # `list` is one of the commands here
