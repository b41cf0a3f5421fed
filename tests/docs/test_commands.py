"""Commands that pages tell readers to type: each is one of octavo's, and takes the flags that stand there."""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import typer.main
from typer.core import TyperGroup

from docs.test_docs import PAGES, ROOT, name_of
from octavo.cli import _engines
from octavo.cli._app import HELP_FLAGS, build, command_names
from octavo.cli.bench import DEFAULT

TYPED = re.compile(r"(?:^ {4}|`)(?:PATH=\S+ |\.venv/bin/)?octavo ([a-z][^`\n]*)", re.MULTILINE)
"""A line of code or a span of it."""
END = re.compile(r"\s(?:[|&>#]|2>|--(?=\s))")
"""What the shell takes for itself, what another program is given, and comments."""
OLD = ("CHANGELOG.md", "docs/decisions/")
"""What they show was so at its time."""


def typed(text: str) -> Iterator[list[str]]:
    """The words behind `octavo` of each command in a page."""
    for match in TYPED.finditer(text.replace("\\\n", " ")):
        yield END.split(match[1])[0].split()


@cache
def octavo() -> TyperGroup:
    found = typer.main.get_command(build(command_names()))
    assert isinstance(found, TyperGroup)
    return found


def flags_of(command: Any) -> set[str]:
    return {flag for each in command.params for flag in (*each.opts, *each.secondary_opts)}


def wrong(words: list[str]) -> list[str]:
    """What octavo does not know of a command: its name, or flags."""
    group: Any = octavo()
    command: Any = None
    for word in words:
        if word.startswith("-"):
            break
        command = group.commands.get(word)
        if command is None and group.name == "bench":
            command = group.commands[DEFAULT]
        if not isinstance(command, TyperGroup):
            break
        group = command
    if command is None:
        return words[:1]
    known = {*flags_of(command), *HELP_FLAGS}
    if words[0] == "serve":  # the lines of other engines' launchers too
        known |= set(_engines.meanings())
    given = {word.split("=")[0].rstrip(",.;:)") for word in words if re.match(r"--?[a-z]", word)}
    return sorted(given - known)


@pytest.mark.parametrize("page", [page for page in PAGES if not name_of(page).startswith(OLD)], ids=name_of)
def test_what_is_to_be_typed_is_taken(page: Path) -> None:
    found = [(words, wrong(words)) for words in typed(page.read_text(encoding="utf-8"))]
    assert [each for each in found if each[1]] == []


def test_pages_have_commands() -> None:
    page = (ROOT / "docs" / "how-to" / "measure.md").read_text(encoding="utf-8")
    assert ["bench", "ablate", "--list"] in typed(page)
    assert len(list(typed(page))) > 10


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("    octavo serve M --port 1 | cat --no-flag", []),
        ("    octavo serve M --model-id M --hf-path X", ["--hf-path"]),
        ("    .venv/bin/octavo bench M --batch-sizes 1 --batches 1", ["--batches"]),
        ("`octavo bench serve URL --request-rate=4`", []),
        ("`octavo measure M`", ["measure"]),
    ],
)
def test_the_judge_can_convict(line: str, said: list[str]) -> None:
    assert [each for words in typed(line) for each in wrong(words)] == said
