"""Help in groups, and what shells complete."""

from __future__ import annotations

import os
import re
import subprocess
from typing import Any

import pytest
import typer

from octavo.cli import _app
from octavo.cli._help import DAILY, GROUPS
from support.cli import command, environment

MODEL_COMMANDS = ("chat", "generate", "plan", "quantize", "run", "run_batch", "serve")


def shown(*words: str, columns: int = 80) -> str:
    told = environment() | {"COLUMNS": str(columns)}
    done = subprocess.run(command(*words, "--help"), env=told, capture_output=True, text=True, check=True)
    return done.stdout


def sections(text: str) -> dict[str, str]:
    """What stands under each title."""
    parts = re.split(r"^(\w[\w ]*):\n", text, flags=re.MULTILINE)
    return dict(zip(parts[1::2], parts[2::2], strict=True))


def named(part: str) -> set[str]:
    """The flags that a section has rows for; a row begins with them."""
    heads = re.findall(r"^  (-.*?)(?:   |$)", part, flags=re.MULTILINE)
    return {word for head in heads for word in re.findall(r"--?[\w-]+", head)}


def parameters(name: str) -> list[Any]:
    found: Any = typer.main.get_command(_app.build([name, "env"]))
    return list(found.commands[name.replace("_", "-")].params)


@pytest.mark.parametrize("name", MODEL_COMMANDS)
def test_daily_flags_come_first_and_each_stands_once(name: str) -> None:
    text = shown(name.replace("_", "-"))
    found = sections(text)
    assert list(found)[:2] == ["Arguments", DAILY]
    rest = [title for title in found if title not in ("Arguments", DAILY)]
    assert rest == [title for title in GROUPS if title in rest]
    for parameter in parameters(name):
        flag = max(parameter.opts, key=len)
        if flag.startswith("--"):
            places = [title for title, part in found.items() if flag in named(part)]
            assert len(places) == 1, (flag, places)
    assert len(re.findall(r"^  -", found[DAILY], re.M)) <= 16


def test_the_flags_that_newcomers_look_for_are_among_the_first() -> None:
    daily = sections(shown("serve"))[DAILY]
    for flag in ("--port", "--host", "-c,", "-t,", "-m,", "--api-key-file", "--served-model-name"):
        assert flag in daily
    daily = sections(shown("run"))[DAILY]
    for flag in ("--temperature", "-n,", "--top-p", "--seed", "--system", "--json"):
        assert flag in daily


def test_every_name_in_the_groups_is_a_parameter() -> None:
    known = {parameter.name for name in MODEL_COMMANDS for parameter in parameters(name)}
    assert {name for names in GROUPS.values() for name in names} <= known
    every = [name for names in GROUPS.values() for name in names]
    assert len(every) == len(set(every))


@pytest.mark.parametrize("columns", [40, 80, 160])
def test_no_sentence_is_cut(columns: int) -> None:
    text = shown(columns=columns)
    assert "..." not in text.partition("\n")[2]
    words = " ".join(text.split())
    assert "until Ctrl-C, SIGTERM or SIGHUP." in words
    assert max(map(len, text.splitlines())) <= max(columns, 60)


def test_a_wide_terminal_is_used() -> None:
    assert max(map(len, shown("serve", columns=160).splitlines())) > 100


def completed(line: str) -> list[str]:
    told = environment() | {
        "_OCTAVO_COMPLETE": "complete_bash",
        "COMP_WORDS": line,
        "COMP_CWORD": str(len(line.split(" ")) - 1),
    }
    done = subprocess.run(command(), env=told, capture_output=True, text=True, check=False)
    assert done.stderr == ""
    return done.stdout.split()


def test_shells_complete_commands_and_flags() -> None:
    assert completed("octavo ser") == ["serve"]
    assert {"run", "run-batch", "rm"} == set(completed("octavo r"))
    assert completed("octavo serve --max-num-s") == ["--max-num-seqs"]
    assert "--temperature" in completed("octavo run --te")
    assert completed("octavo nothing-such --a") == []


def test_the_script_is_printed() -> None:
    told = environment() | {"_TYPER_COMPLETE_TEST_DISABLE_SHELL_DETECTION": "1"}
    for shell in ("bash", "zsh", "fish"):
        done = subprocess.run(
            command("--show-completion", shell), env=told, capture_output=True, text=True, check=False
        )
        assert (done.returncode, "_OCTAVO_COMPLETE" in done.stdout) == (0, True)
    assert "_OCTAVO_COMPLETE" not in os.environ
