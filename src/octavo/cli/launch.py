"""octavo launch: another program, with an Octavo server behind it."""

from __future__ import annotations

import json
import os
import shlex
import sys
from typing import TYPE_CHECKING

import typer

from octavo.errors import InvalidRequestError
from octavo.launch import TOOLS

if TYPE_CHECKING:
    from octavo.launch import Settings

MASKED = "$OCTAVO_API_KEY"
TOOL = typer.Argument(help=f"The program: {', '.join(TOOLS)}.")
ARGUMENTS = typer.Argument(
    None, help="What it is given behind its settings; -- before what begins with a dash.", metavar="ARGS"
)


def launch(
    tool: str = TOOL,
    arguments: list[str] = ARGUMENTS,
    url: str = typer.Option("http://127.0.0.1:8000", "--url", help="Where the server is."),
    model: str = typer.Option(
        None, "--model", "-m", help="Which of its models.  [default: the first]", show_default=False
    ),
    show: bool = typer.Option(False, "--print", help="Print what would be set and started; start nothing."),
    as_json: bool = typer.Option(False, "--json", help="The same as one JSON object."),
) -> int:
    """Start an agent such as codex with URL, key (OCTAVO_API_KEY), model and context set to a server's."""
    from octavo.launch import served_at

    if tool not in TOOLS:
        raise InvalidRequestError(f"there is no program {tool!r} to launch; there are {', '.join(TOOLS)}")
    chosen = TOOLS[tool]
    program = chosen.program if show or as_json else chosen.find()
    served = served_at(url, model, os.environ.get("OCTAVO_API_KEY", "").strip() or None)
    settings = chosen.settings(served)
    if served.context < 2 * chosen.first_prompt:
        print(
            f"octavo: warning: the context is {served.context} tokens, and {tool}'s own instructions take "
            f"some {chosen.first_prompt}: octavo serve --max-model-len says how long it is",
            file=sys.stderr,
        )
    words = [program, *settings.arguments, *(arguments or ())]
    if show or as_json:
        _print(words, settings, served.key, as_json)
        return 0
    sys.stdout.flush()
    os.execve(program, [chosen.program, *words[1:]], {**os.environ, **settings.environment})


def _print(words: list[str], settings: Settings, key: str | None, as_json: bool) -> None:
    """What would be started, as JSON or as a shell takes it; a key is named, not shown."""
    secret = settings.secret if key is not None else frozenset()
    shown = {name: MASKED if name in secret else value for name, value in settings.environment.items()}
    if as_json:
        print(json.dumps({"command": words, "environment": shown}))
        return
    for name, value in shown.items():
        print(f"export {name}=" + (f'"{value}"' if name in secret else shlex.quote(value)))
    print(shlex.join(words))
