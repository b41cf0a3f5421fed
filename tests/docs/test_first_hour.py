"""scripts/first_hour.py finds the pages' commands; here each is parsed (make first-hour runs them)."""

from __future__ import annotations

import re
import shlex
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import typer

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "scripts"))
import first_hour

from octavo.cli import _app

EVERY: list[Any] = [command for _, found in first_hour.every("") for command in found]


def octavos() -> Iterator[tuple[str, list[str]]]:
    """(where it stands, its words) of each octavo command, be it behind a pipe."""
    for command in EVERY:
        for part in command.text.split(" | "):
            words = shlex.split(part)
            if words[0] == "octavo":
                yield f"{command.page}:{command.line}", words[1:]


def test_there_are_many_and_of_most_pages() -> None:
    assert len(EVERY) > 60
    assert len({command.page for command in EVERY}) > 12
    assert sum(not command.elsewhere for command in EVERY) > 35


@pytest.mark.parametrize(("where", "words"), list(octavos()), ids=lambda value: str(value)[-50:])
def test_each_parses(where: str, words: list[str]) -> None:
    """The command is there, and so is each of its flags, with a value of its type."""
    name, *rest = words
    group: Any = typer.main.get_command(_app.build([name.replace("-", "_")]))
    command = group.commands[name]
    if hasattr(command, "commands"):
        command, rest = command.commands[rest[0]], rest[1:]
    if "--" in rest:
        rest = rest[: rest.index("--")]
    command.make_context(name, list(rest))


def test_every_exception_is_used() -> None:
    for pattern in first_hour.ELSEWHERE:
        assert any(re.search(pattern, command.text) for command in EVERY), pattern


PAGE = """# A page

    octavo run smollm2 "What's # this?"     # one answer
    curl http://127.0.0.1:8000/v1/models -H 'A: b' \\
      -d '{"a": 1,
           "b": 2}'
    print("no command")

```python
    octavo.run()
```

```sh
make env
```
"""


def test_what_is_a_command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(first_hour, "ROOT", tmp_path)
    page = tmp_path / "page.md"
    page.write_text(PAGE, encoding="utf-8")
    found = [(command.line, command.text) for command in first_hour.commands(page)]
    assert found == [
        (3, 'octavo run smollm2 "What\'s # this?"'),
        (4, """curl http://127.0.0.1:8000/v1/models -H 'A: b'  -d '{"a": 1, "b": 2}'"""),
        (14, "make env"),
    ]


def test_failures_are_named(tmp_path: Path) -> None:
    typist = first_hour.Typist(tmp_path, tmp_path, None)
    assert typist.type(first_hour.Command("a.md", 3, "git --version"))
    assert not typist.type(first_hour.Command("a.md", 4, "echo no | cat; false"))
    assert not typist.type(first_hour.Command("a.md", 5, "ls /no/such/folder"))
    assert [each.split(": ")[0] for each in typist.failures] == ["a.md:4", "a.md:5"]
    assert "status 1: no" in typist.failures[0]
