"""Run a command and keep what it says as a result file: the JSON that it prints, or how its tests ended.

    .venv/bin/python benchmarks/record.py NAME -- COMMAND...           which prints one JSON object
    .venv/bin/python benchmarks/record.py NAME --tests -- COMMAND...   which runs pytest, once or more

The file is benchmarks/results/NAME-*.json, with the machine, the commit and this command; what was said is
its "result". Of tests it holds how many passed, failed and were skipped, by suite and in all, and what they
record (record_testsuite_property). A command that fails writes nothing, and its status is this script's.
"""

from __future__ import annotations

import argparse
import json
import re
import shlex
import subprocess
import sys
import tempfile
import xml.etree.ElementTree as ElementTree
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from harness import commit, report, write

NO_RESULT = 1
NOT_FOUND = 127
NAME = re.compile(r"[a-z0-9][a-z0-9_-]*")
"""What a result may be called: it becomes a file's name."""
COUNTS = ("passed", "failed", "skipped")


class CommandError(Exception):
    """The command ended so, or said nothing that can be kept. Attributes: status: what to exit with."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status


def run(command: Sequence[str], capture: bool) -> str:
    """What a command prints on its standard output, if that is captured.

    Raises:
        CommandError: it cannot be run, or its status is not 0; with that status, 128 + n for signal n.
    """
    try:
        done = subprocess.run(
            command, stdout=subprocess.PIPE if capture else None, text=True, check=False
        )  # what it says of its progress goes to the terminal
    except OSError as error:
        raise CommandError(NOT_FOUND, f"{command[0]} cannot be run: {error.strerror}") from None
    if done.returncode:
        status = done.returncode if done.returncode > 0 else 128 - done.returncode
        raise CommandError(status, f"{shlex.join(command)} ended with status {status}")
    return done.stdout or ""


def said(command: Sequence[str]) -> dict[str, Any]:
    """The JSON object that a command prints.

    Raises:
        CommandError: as run(), or it printed none.
    """
    text = run(command, capture=True)
    try:
        found = json.loads(text)
    except (ValueError, RecursionError):
        found = None
    if not isinstance(found, dict):
        raise CommandError(NO_RESULT, f"{shlex.join(command)} printed no JSON object")
    return found


def tested(command: Sequence[str]) -> dict[str, Any]:
    """Counts of the tests that a command runs, and what they have recorded.

    Each pytest process writes FOLDER/tests.xml; a script that starts several gives each a name of its own in
    $JUNIT_FOLDER (csrc/sanitize.sh does).

    Raises:
        CommandError: as run(), or no test ran.
    """
    with tempfile.TemporaryDirectory(prefix="octavo-record-") as folder:
        told = [f"JUNIT_FOLDER={folder}", f"PYTEST_ADDOPTS=--junitxml={folder}/tests.xml"]
        run(["env", *told, *command], capture=False)
        found = summary(sorted(Path(folder).glob("*.xml")))
    if not found["passed"]:
        raise CommandError(NO_RESULT, f"{shlex.join(command)} passed no test")
    return found


def summary(files: Sequence[Path]) -> dict[str, Any]:
    """Of junit files: suites by file name, their sums, and all recorded properties."""
    suites: dict[str, dict[str, int]] = {}
    properties: dict[str, Any] = {}
    for path in files:
        root = ElementTree.parse(path).getroot()
        of = {name: sum(int(suite.get(name, 0)) for suite in root.iter("testsuite")) for name in
              ("tests", "failures", "errors", "skipped")}  # fmt: skip
        failed = of["failures"] + of["errors"]
        suites[path.stem] = {
            "passed": of["tests"] - failed - of["skipped"], "failed": failed, "skipped": of["skipped"]
        }  # fmt: skip
        for each in root.iter("property"):
            properties[each.get("name", "")] = number(each.get("value", ""))
    sums = {name: sum(suite[name] for suite in suites.values()) for name in COUNTS}
    return {**sums, "suites": suites, "properties": properties}


def number(text: str) -> Any:
    """Properties are text in the file."""
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            continue
    return text


def name(text: str) -> str:
    """argparse's type of a result's name."""
    if not NAME.fullmatch(text):
        raise argparse.ArgumentTypeError(f"{text!r} is not of a-z, 0-9, _ and -, beginning with a-z or 0-9")
    return text


def main(arguments: Sequence[str]) -> int:
    given = list(arguments)
    mine, command = (
        (given[: given.index("--")], given[given.index("--") + 1 :]) if "--" in given else (given, [])
    )
    parser = argparse.ArgumentParser(prog="record", usage="record.py NAME [--tests] -- COMMAND...")
    parser.add_argument("name", type=name, help="of the benchmark: benchmarks/results/NAME-*.json")
    parser.add_argument("--tests", action="store_true", help="count tests instead of reading JSON")
    options = parser.parse_args(mine)
    if not command:
        parser.error("a command must follow --")
    before = commit()  # what runs is the tree as it is now
    try:
        found = tested(command) if options.tests else said(command)
        json.dumps(found, allow_nan=False)  # Python's json reads NaN and Infinity, a result's readers do not
    except ValueError:
        print(f"record: {shlex.join(command)} said NaN or Infinity; nothing is written", file=sys.stderr)
        return NO_RESULT
    except CommandError as error:
        print(f"record: {error}; nothing is written", file=sys.stderr)
        return error.status
    words = shlex.join([sys.argv[0], *given]).replace(str(Path.home()), "~")
    result = report(options.name, [words], {"commit": before, "result": found})
    print(f"wrote {write(result)}", file=sys.stderr)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
