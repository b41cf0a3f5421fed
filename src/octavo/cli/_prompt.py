"""A prompt as people give it: by position, by -p, or on standard input."""

from __future__ import annotations

import sys

import typer

from octavo.errors import InvalidRequestError

PROMPT_FLAG = typer.Option(None, "--prompt", "-p", help="The same as PROMPT.", show_default=False)


def prompt_text(argument: str | None, flag: str | None, usage: str) -> str:
    """The prompt that was typed; - stands for standard input, of which one newline at the end is dropped.

    (What echo, a heredoc and a file end with is none of the prompt: a model would go on behind it.)

    Args:
        usage: how to give one, for who gave none.

    Raises:
        InvalidRequestError: two that differ, or an empty one.
        typer.BadParameter: none.
    """
    if argument is not None and flag is not None and argument != flag:
        raise InvalidRequestError(
            f"PROMPT {argument[:40]!r} and --prompt {flag[:40]!r} differ: give one of them"
        )
    given = flag if argument is None else argument
    if given is None:
        raise typer.BadParameter(f"there is none: {usage}", param_hint="PROMPT or --prompt")
    text = sys.stdin.read().removesuffix("\n") if given == "-" else given
    if not text:
        raise InvalidRequestError("the prompt is empty", "prompt")
    return text
