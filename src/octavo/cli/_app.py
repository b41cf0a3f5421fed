"""Finding commands and turning every ending into an exit status.

A command is a file of this folder without a leading underscore; the function of the same name in it
is what typer calls; where it is a typer.Typer it is a group of commands. Adding a file adds a command.
"""

from __future__ import annotations

import contextlib
import errno
import importlib
import itertools
import os
import pkgutil
import sys
import warnings
from collections.abc import Sequence
from typing import TextIO

import typer

import octavo
from octavo import cli
from octavo.cli._help import MOST_COLUMNS, Commands, GroupedCommand
from octavo.errors import InvalidRequestError, OctavoError, UnknownModelError

HELP_FLAGS = ["--help", "-h"]
COMPLETE = "_OCTAVO_COMPLETE"
"""Set where a shell asks for what the line that is typed could go on with, see octavo --show-completion."""
TYPED = ("COMP_WORDS", "_TYPER_COMPLETE_ARGS")
"""Where bash, and other shells, say what that line is."""


TAKING_MEMORY = ("max_num_seqs", "max_num_batched_tokens", "num_pages", "gpu_memory_utilization")
INSTEAD = {
    "collect-env": "octavo env says what this machine has",
    "complete": "octavo generate MODEL PROMPT",
    "completion": "octavo --show-completion",
    "cp": "octavo serve --served-model-name gives a model names",
    "create": "octavo serve takes a file or a folder as it is",
    "download": "octavo pull MODEL",
    "help": "octavo --help",
    "ls": "octavo list",
    "perplexity": "octavo eval perplexity MODEL --text FILE",
    "ps": "octavo list says what is kept, and /v1/models of a server what it serves",
    "push": "models are not published from here",
    "server": "octavo serve MODEL",
    "show": "octavo plan MODEL says what it takes, octavo list what is kept",
    "stop": "Ctrl-C, or SIGTERM, ends a server",
    "version": "octavo --version",
}
"""Commands of Ollama, vLLM and others, and what there is here."""


def command_names() -> list[str]:
    """Every command, in alphabetical order."""
    return sorted(module.name for module in pkgutil.iter_modules(cli.__path__) if module.name[0] != "_")


def build(names: Sequence[str]) -> typer.Typer:
    """The typer application with these commands (importing their files)."""
    app = typer.Typer(
        cls=Commands,
        help="Octavo: an LLM inference engine and server.",
        rich_markup_mode=None,
        pretty_exceptions_enable=False,
        context_settings={"help_option_names": HELP_FLAGS, "max_content_width": MOST_COLUMNS},
    )

    @app.callback(invoke_without_command=False)
    def octavo_command(
        version: bool = typer.Option(False, "--version", help="Print the version.", callback=_version),
    ) -> None:
        """Octavo: an LLM inference engine and server."""

    for name in names:
        module = importlib.import_module(f"octavo.cli.{name}")
        command = getattr(module, name)
        if isinstance(command, typer.Typer):
            for each in command.registered_commands:
                each.cls = GroupedCommand
            app.add_typer(command, name=name.replace("_", "-"))
        else:
            app.command(name.replace("_", "-"), cls=getattr(module, "COMMAND_CLASS", GroupedCommand))(command)
    return app


def _version(wanted: bool) -> None:
    if wanted:
        print(f"octavo {octavo.__version__}")
        raise typer.Exit(0)


def run(argv: Sequence[str]) -> int:
    """Run one command; returns its exit status and never raises for what a user can cause."""
    _open_missing_streams()
    warnings.showwarning = _show_warning
    names = command_names()
    if COMPLETE in os.environ:
        argv = next((os.environ[name].split()[1:] for name in TYPED if name in os.environ), [])
    asked = next((word for word in argv if not word.startswith("-")), "").replace("-", "_")
    try:
        if COMPLETE in os.environ:  # typer answers, and ends the process
            build([asked] if asked in names else names)(args=[], prog_name="octavo")
            return 0
        if not argv:  # as typer does: the help, and the status of wrong usage
            build(names)(args=["--help"], prog_name="octavo", standalone_mode=False)
            return 2
        # Only the file of the command that was asked for is imported; help needs all of them.
        result = build([asked] if asked in names else names)(
            args=list(argv), prog_name="octavo", standalone_mode=False
        )
        sys.stdout.flush()
        return result if isinstance(result, int) else 0
    except (KeyboardInterrupt, typer.Abort):  # 128 and SIGINT's number, as shells report it
        return 130
    except typer.Exit as ending:
        return ending.exit_code
    except (InvalidRequestError, UnknownModelError) as error:
        # Scripts and supervisors try again what has ended with 1; this is as wrong the next time.
        return _fail(said(error, argv), 2)
    except BrokenPipeError:
        # The reader (head, less) has had enough. Nothing more may be written, not even at exit.
        with contextlib.suppress(OSError):
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    except (OctavoError, MemoryError, OSError) as error:
        return _fail(said(error, argv))
    except Exception as error:
        # typer's own errors; which package they live in depends on its version.
        message = getattr(error, "format_message", None)
        if message is None:
            raise
        text = str(message())
        word = next((word for word in argv if not word.startswith("-")), "")
        if "no such command" in text.lower() and word in INSTEAD:
            text = f"there is no command {word!r}: {INSTEAD[word]}"
        if "extra argument" in text:
            text += _hint(argv)
        return _fail(f"{text[:1].lower()}{text[1:]}" if text else "see octavo --help", 2)


def _hint(argv: Sequence[str]) -> str:
    """What to do where a flag that may be given several times has several values behind it; or nothing."""
    from octavo.cli._flags import SEVERAL, flag_of

    for flag in filter(None, map(flag_of, SEVERAL)):
        if flag in argv:
            values = list(itertools.takewhile(lambda word: word[:1] != "-", argv[argv.index(flag) + 1 :]))
            if len(values) > 1:
                return f"; for several values repeat the flag: {' '.join(f'{flag} {v}' for v in values)}"
    return ""


def _open_missing_streams() -> None:
    """A daemon may be started without stdin, stdout or stderr: there is nothing to read, and nobody reads."""
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.devnull, mode))  # noqa: SIM115 (open until the process ends)


def said(error: OctavoError | MemoryError | OSError, words: Sequence[str] = ()) -> str:
    """The error in one line, with the flag that it is about, as it stands among these words."""
    from octavo.cli._flags import flag_of, written

    if isinstance(error, OctavoError):
        text = str(error)
        name = (error.param if isinstance(error, InvalidRequestError) else None) or ""
        flag, own = written(name, words), flag_of(name)
        text = text if flag is None or own is None or own in text else f"{text} ({flag})"
    elif isinstance(error, MemoryError):  # the system refuses what the plan has counted on
        *flags, last = (written(name, words) or "" for name in TAKING_MEMORY)
        text = f"not enough memory ({error}): {', '.join(flags)} and {last} say how much is taken"
    elif error.errno == errno.ENOSPC:
        text = f"no space left on the disk{_where(error)}"
    else:
        text = f"{error.strerror or error}{_where(error)}"
    return " ".join(text.split())


def _where(error: OSError) -> str:
    return f": {error.filename}" if error.filename is not None else ""


def _fail(message: str, status: int = 1) -> int:
    print("octavo: error: " + " ".join(message.split()), file=sys.stderr)
    return status


def _show_warning(
    message: Warning | str,
    category: type[Warning],
    filename: str,
    lineno: int,
    file: TextIO | None = None,
    line: str | None = None,
) -> None:
    """One line; where in our code it came from is of no use to who types commands."""
    if not issubclass(category, (DeprecationWarning, ResourceWarning)):
        print(f"octavo: warning: {message}", file=file or sys.stderr)
