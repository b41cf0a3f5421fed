"""What the house weighs: counts on the syntax trees of src/octavo, each with its rule.

    house.py                       the table
    house.py --json                the same as JSON
    house.py --list MEASURE        what was counted, one place a line
    house.py --where WORD...       files that an op, a field, an endpoint or a backend stands in
    house.py --since COMMIT        lines moved, deleted and written since then, apart

The rules are the docstrings of house_rules.py and house_words.py. tests/test_house.py holds the ratchets.
"""

from __future__ import annotations

import argparse
import ast
import json
import re
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path

import house_rules
import house_words

ROOT = Path(__file__).resolve().parent.parent
SOURCE = ROOT / "src" / "octavo"
WORDS = ("rotary_append", "min_p", "/v1/embeddings", "cuda")
"""One op, one sampling field, one endpoint, one backend: what the table shows of `--where`."""


class House:
    """The source files of one tree, read once."""

    def __init__(self, source: Path = SOURCE) -> None:
        self.texts = {
            path.relative_to(source).as_posix(): path.read_text(encoding="utf-8")
            for path in sorted(source.rglob("*.py"))
        }
        self.trees = {name: ast.parse(text) for name, text in self.texts.items()}

    def tests(self) -> list[house_rules.Test]:
        """None and truth tests of attributes that may be None, in engine and runtime."""
        return house_rules.none_tests(self.trees)

    def parameters(self) -> list[house_rules.Function]:
        """Functions with many parameters, most first."""
        return house_rules.many_parameters(self.trees)

    def long(self) -> list[house_rules.Long]:
        """Functions of more than 60 lines, longest first."""
        return house_rules.long_functions(self.trees)

    def ambiguous(self) -> dict[str, list[house_words.Meaning]]:
        """Words with more than one meaning."""
        return house_words.ambiguous(self.trees)

    def doubled(self) -> dict[str, list[house_words.Meaning]]:
        """Names that classes of several files bear."""
        return house_words.doubled_classes(self.trees)

    def request_fields(self) -> dict[str, list[str]]:
        """Fields of Request, and of the objects that it owns."""
        return house_rules.owned_fields(self.trees, "Request", "engine/")

    def rooms(self) -> Counter[str]:
        """Lines of Python by room; a module at the top is a room."""
        lines: Counter[str] = Counter()
        for name, text in self.texts.items():
            lines[name.split("/")[0].removesuffix(".py")] += len(text.splitlines())
        return lines

    def standing(self, word: str) -> list[str]:
        """Files of src/octavo in whose code the word stands."""
        return [name for name, tree in self.trees.items() if house_rules.stands_in(tree, word)]


def native_files(word: str, folder: Path = ROOT / "csrc") -> list[str]:
    """Files of csrc/ with the word, comments included: there is no syntax tree of them here."""
    pattern = re.compile(rf"\b{re.escape(word)}\b")
    return [
        path.relative_to(folder).as_posix()
        for path in sorted(folder.rglob("*"))
        if path.is_file() and pattern.search(path.read_text(encoding="utf-8", errors="ignore"))
    ]


def places_of_an_op(house: House, op: str = WORDS[0]) -> list[str]:
    """Files of kernels/ and csrc/ that an op stands in: where it is specified and where it is computed."""
    return [name for name in house.standing(op) if name.startswith("kernels/")] + native_files(op)


def changes(commit: str, folder: str = "src/octavo") -> house_rules.Changes:
    """Lines moved, deleted and written in a folder from a commit to the working tree."""
    command = ["git", "diff", "--no-renames", "--no-color", "--no-ext-diff", "-U0", commit, "--", folder]
    diff = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout
    return house_rules.moved_and_deleted(diff.splitlines())


def measures(house: House) -> dict[str, object]:
    """Every figure of the table, ready for JSON."""
    tests = house.tests()
    kinds = Counter(test.kind for test in tests)
    fields = house.request_fields()
    return {
        "none_tests": {kind: kinds[kind] for kind in house_rules.KINDS},
        "tests_by_name": dict(
            Counter(t.attribute for t in tests if t.kind in house_rules.SWITCHED).most_common()
        ),
        "functions_with_8_parameters": len(house.parameters()),
        "functions_over_60_lines": len(house.long()),
        "request_fields": len(fields["Request"]),
        "owned_fields": {name: len(names) for name, names in fields.items() if name != "Request"},
        "files_with": {word: len(house.standing(word)) for word in WORDS},
        "ambiguous_words": len(house.ambiguous()),
        "doubled_classes": len(house.doubled()),
        "native_files_with": {word: len(native_files(word)) for word in WORDS},
        "places_of_an_op": len(places_of_an_op(house)),
        "lines": sum(house.rooms().values()),
        "files": len(house.texts),
        "lines_by_room": dict(house.rooms().most_common()),
    }


def table(values: dict[str, object]) -> Iterator[str]:
    """One line a figure, a figure of parts on a line below each other."""
    for name, value in values.items():
        if not isinstance(value, dict):
            yield f"{name:32} {value:>7}"
            continue
        yield name
        yield from (f"    {part:28} {count:>7}" for part, count in value.items())


def listed(house: House, measure: str) -> Iterator[str]:
    """The places behind a figure."""
    if measure == "parameters":
        yield from (f"{f.file}:{f.line}: {f.name} ({f.parameters})" for f in house.parameters())
    elif measure == "long":
        yield from (f"{f.file}:{f.line}: {f.name} ({f.lines})" for f in house.long())
    elif measure in ("words", "classes"):
        found = house.ambiguous() if measure == "words" else house.doubled()
        places = [place for each in found.values() for place in each]
        yield from (f"{p.file}:{p.line}: {p.name} ({p.word}: {p.meaning})" for p in places)
    else:
        yield from (f"{t.file}:{t.line}: {t.text}" for t in house.tests() if t.kind == measure)


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(prog="house", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--list", choices=(*house_rules.KINDS, "parameters", "long", "words", "classes"))
    parser.add_argument("--where", nargs="+", metavar="WORD")
    parser.add_argument("--since", metavar="COMMIT")
    options = parser.parse_args(arguments)
    house = House()
    values: dict[str, object]
    if options.list:
        print("\n".join(listed(house, options.list)))
        return 0
    if options.where:
        found = {word: house.standing(word) + native_files(word) for word in options.where}
        # The table prints a file a line; JSON gives lists.
        values = dict(found) if options.json else {word: dict.fromkeys(found[word], "") for word in found}
    elif options.since:
        values = {"lines": changes(options.since)._asdict()}
    else:
        values = measures(house)
    print(json.dumps(values, indent=1) if options.json else "\n".join(table(values)))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
