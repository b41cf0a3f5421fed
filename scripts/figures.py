"""The figures of docs/status.md and README.md, rendered from benchmarks/results.

    figures.py            exit 1 where a page differs from the files, each line of it printed
    figures.py --write    render the pages

Between `<!-- figures NAME -->` and `<!-- end -->` stands what the table NAME of figure_tables.py renders: one
table for each kind of machine (CPU, cores, instructions), the slowest machine first. A figure is the median
of all runs of the newest commit that has it on that kind of machine; a rerun adds to them and replaces none.
[1] names its files, listed below the table. Marked are runs of a changed tree ("+"), of a commit that the
checkout's history lacks (not looked up, and said, where there is no whole history), and of a noisy machine.

Rows outside of the marks follow one rule, where the table has commands; other tables hold notes, as prose
does. A measured number is one with a decimal point, with a unit (%, ms, MB, tok/s, x), or "N of M". A row
with one, apart from its claim and what is wanted, names a file of benchmarks/results in which each stands; a
row without is proved by a test: its command is `make test...`, `make golden`, `make gpu-check`,
`make sanitize`, or "the same" as the row's above. Result files that a page names exist.
"""

from __future__ import annotations

import argparse
import difflib
import json
import re
import statistics
import sys
import textwrap
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import zip_longest
from pathlib import Path

from figure_runs import History, Row, Run, Table, chosen, medians, read, shown, value_at
from figure_tables import SPEED, TABLES
from result_files import ResultError, at_odds, naming

ROOT = Path(__file__).resolve().parent.parent
PAGES = ("docs/status.md", "README.md")
BLOCK = re.compile(r"(<!-- figures ([\w-]+) -->\n)(.*?)(<!-- end -->)", re.DOTALL)
NAMED = re.compile(r"results/([\w.*-]+\.json)")
GONE = "; not in history"
UNITS = r"(?:%|(?:ms|us|s|[kMG]B|[GT]B/s|tok/s|x|times|nats)(?![\w-]))"
MEASURED = re.compile(rf"\d[\d,]*\.\d+|\d[\d,]*(?= ?{UNITS})|\d[\d,]*(?= of [\d,]+)")
CLAIMED = {"#", "claim", "what", "work", "measure", "wanted", "least", "aim", "command"}
"""Heads of columns that say what is claimed, not what was found."""
TESTS = ("`make test", "`make golden", "`make gpu-check", "`make sanitize")


@dataclass(frozen=True, slots=True)
class Line:
    """A row on one kind of machine, rendered."""

    label: str
    cells: list[str]
    bounds: tuple[str, str]
    detail: str
    commit: str
    marks: str
    runs: list[Run]
    command: str


def rendered(row: Row, runs: Sequence[Run], history: History) -> Line:
    if isinstance(row.most, str):
        row = replace(row, most=statistics.median(value_at(run.result, row.most) for run in runs))
    values = medians(row, runs)
    cells = [shown(template, values) for template in row.shown]
    judged = values[0]
    if isinstance(judged, (int, float)) and not within(row, judged):
        cells[-1] = f"**{cells[-1]}**"
    commit = runs[0].commit
    marks = [
        *["changed tree"] * commit.endswith("+"),
        *["commit as told"] * any(run.told for run in runs),
        *["noisy"] * any(run.noisy(row) for run in runs),
        *["unrest not recorded"] * any(run.noisy(row) is None for run in runs),
    ]
    if row.range and len(runs) > 1:
        firsts = [(run.values(row) or [0.0])[0] for run in runs]
        low, high = (shown(row.range, [which(firsts)]) for which in (min, max))
        cells[-1] += f" ({low} to {high})" * (low != high)
    details = (
        () if row.detail is None else dict.fromkeys(str(value_at(run.result, row.detail)) for run in runs)
    )
    return Line(
        row.label, cells, (least_of(row), aim_of(row)), " / ".join(details), commit,
        (GONE if history.lacks(commit) else "") + "".join(f"; {mark}" for mark in marks),
        list(runs), row.command and f"`{row.command}`",
    )  # fmt: skip


def within(row: Row, value: float) -> bool:
    """Whether a value keeps to the row's bounds."""
    assert not isinstance(row.most, str)
    return (row.least is None or value >= row.least) and (row.most is None or value <= row.most)


def least_of(row: Row) -> str:
    if row.most is not None:
        return f"at most {shown(row.bound, [row.most])}"
    return "" if row.least is None else shown(row.bound, [row.least])


def aim_of(row: Row) -> str:
    return "" if row.aim is None else shown(row.bound, [row.aim])


def render(table: Table, runs: Sequence[Run], history: History) -> str:
    """The tables of all kinds of machines, the slowest first, each with its files."""
    parts, found = [], set[str]()
    for kind in kinds(runs):
        lines, lacking = [], []
        for row in table.rows:
            if having := chosen(row, runs, kind):
                with naming(*(run.path for run in having)):
                    lines.append(rendered(row, having, history))
                found.add(row.label)
            else:
                lacking.append(row.label + reason(row, runs, kind))
        if lines:
            parts.append(one_table(table, kind, lines, lacking if table.whole else []))
    if nowhere := [row for row in table.rows if row.label not in found]:
        words = "; ".join(row.label + (f" (`{row.command}`)" if row.command else "") for row in nowhere)
        parts.append(wrapped(f"Not measured yet: {words}."))
    if table.command:
        parts.append(("\n" if nowhere else "") + wrapped(f"Measured by `{table.command}`."))
    return "\n".join(parts)


def one_table(table: Table, kind: str, lines: Sequence[Line], lacking: Sequence[str]) -> str:
    commits = dict.fromkeys(line.commit for line in lines)
    caption = f"**{kind}**, commit {', '.join(commits)}"
    if noisy := [line.label for line in lines if "noisy" in line.marks]:
        caption += f". **Noisy machine** at {len(noisy)} of {len(lines)} rows"
    files = list(dict.fromkeys(run.path.name for line in lines for run in line.runs))
    aims, commands = any(line.bounds[1] for line in lines), not table.command
    least = "wanted" if any(line.bounds[0].startswith("at most") for line in lines) else "least"
    heads = [table.first, *table.columns, least, *["aim"] * aims, *[table.detail] * bool(table.detail), "run"]
    out = [wrapped(caption + "."), "", cells_of([*heads, *["command"] * commands])]
    out.append("|" + "---|" * (len(heads) + commands))
    for line in lines:
        numbers = ", ".join(str(1 + files.index(run.path.name)) for run in line.runs)
        run = f"{line.commit} [{numbers}]{line.marks}"
        middle = [*line.cells, line.bounds[0], *[line.bounds[1]] * aims, *[line.detail] * bool(table.detail)]
        out.append(cells_of([line.label, *middle, run, *[line.command] * commands]))
    listed = ", ".join(f"[{n}] `results/{name}`" for n, name in enumerate(files, 1))
    out += ["", wrapped(listed + (f". Not measured here: {'; '.join(lacking)}" if lacking else "") + "."), ""]
    return "\n".join(out)


def cells_of(cells: Sequence[str]) -> str:
    return re.sub(r" +", " ", f"| {' | '.join(cells)} |")


def wrapped(text: str) -> str:
    return textwrap.fill(text, 140, break_long_words=False, break_on_hyphens=False)


def reason(row: Row, runs: Sequence[Run], kind: str) -> str:
    """What the latest run says of a figure that it does not have."""
    reasons = []
    for run in runs:
        if row.why and run.kind == kind:
            with naming(run.path):
                reasons += [said] if (said := value_at(run.result, row.why)) else []
    return f" ({reasons[-1]})" if reasons else ""


def kinds(runs: Sequence[Run]) -> list[str]:
    """The machines by one figure of theirs, the slowest first; those that lack it at the end.

    Without it on the same instructions, the machine's slowest on others counts.
    """
    every = dict.fromkeys(run.kind for run in runs)
    having = {kind: found for kind in every if (found := chosen(SPEED, runs, kind))}
    speeds = {}
    for kind, found in having.items():
        with naming(*(run.path for run in found)):
            speeds[kind] = float(medians(SPEED, found)[0])

    def speed(kind: str) -> float:
        machine = kind.rpartition(", ")[0]
        same = [speeds[other] for other in speeds if other.rpartition(", ")[0] == machine]
        return speeds.get(kind, min(same, default=float("inf")))

    return sorted(every, key=lambda kind: (speed(kind), kind))


def page(text: str, tables: Mapping[str, Table], runs: Sequence[Run], history: History) -> str:
    """The page with its tables as they should be.

    Raises:
        SystemExit: it asks for a table that nobody declares.
    """

    def body(match: re.Match[str]) -> str:
        if match[2] not in tables:
            raise SystemExit(f"figures: there is no table {match[2]} in figure_tables.py")
        return f"{match[1]}{render(tables[match[2]], runs, history).rstrip()}\n{match[4]}"

    return BLOCK.sub(body, text)


def differences(name: str, text: str, wanted: str) -> Iterator[str]:
    """Each line of a page that differs from what the files say."""
    here, there = text.splitlines(), wanted.splitlines()
    for what, i, j, k, m in difflib.SequenceMatcher(None, here, there, autojunk=False).get_opcodes():
        if what != "equal":
            for number, (found, asked) in enumerate(zip_longest(here[i:j], there[k:m]), i + 1):
                yield f"{name}:{number}: the page says {found!r}, the files {asked!r}"


def rows_outside(name: str, text: str, folder: Path) -> Iterator[str]:
    """Rows of hand-written tables that break the rule above."""
    heads: list[str] = []
    command = ""
    for number, line in enumerate(BLOCK.sub(blank, text).splitlines(), 1):
        if not line.startswith("|"):
            heads = []
            continue
        cells = [cell.strip() for cell in line.strip()[1:-1].split("|")]
        if not heads:
            heads, command = cells, ""
            continue
        if set(line) <= set("|- "):
            continue
        if "command" not in heads:  # notes, as prose is: what bounds a row, how it is measured
            continue
        row = dict(zip(heads, cells, strict=False))
        command = command if row.get("command", "").startswith("the same") else row.get("command", "")
        found = " ".join(cell for head, cell in row.items() if head not in CLAIMED)
        if problem := broken(found, line, command, folder):
            yield f"{name}:{number}: {problem}: {line[:80]}"


def blank(match: re.Match[str]) -> str:
    """As many empty lines."""
    return "\n" * match[0].count("\n")


def broken(found: str, line: str, command: str, folder: Path) -> str:
    """What is wrong with a hand-written row, if anything is."""
    numbers = MEASURED.findall(NAMED.sub("", found))
    if not numbers:
        return "" if any(test in command for test in TESTS) else "no test proves the row"
    files = [path for name in NAMED.findall(line) for path in folder.glob(name)]
    if not files:
        return f"no result file for {', '.join(numbers)}"
    held = [value for path in files for value in numbers_in(json.loads(path.read_text("utf-8")))]
    missing = [number for number in numbers if not any(stands_for(number, value) for value in held)]
    return f"{', '.join(missing)} not in {', '.join(path.name for path in files)}" if missing else ""


def numbers_in(value: object) -> Iterator[float]:
    if isinstance(value, Mapping):
        for each in value.values():
            yield from numbers_in(each)
    elif isinstance(value, list):
        for each in value:
            yield from numbers_in(each)
    elif isinstance(value, (int, float)) and not isinstance(value, bool):
        yield float(value)


def stands_for(text: str, value: float) -> bool:
    """Whether a value is shown so: rounded, perhaps as percent or in a unit a thousand times as large."""
    number, places = float(text.replace(",", "")), len(text.partition(".")[2])
    return any(round(scale * value, places) == number for scale in (1, 100, 1e-3, 1e-6, 1e3))


def files_named(root: Path) -> Iterator[str]:
    """Result files that a page names and that are not there."""
    for path in sorted([*root.glob("docs/**/*.md"), *root.glob("*.md"), *root.glob("benchmarks/*.md")]):
        for name in dict.fromkeys(NAMED.findall(path.read_text("utf-8"))):
            if not any((root / "benchmarks" / "results").glob(name)):
                yield f"{path.relative_to(root)}: there is no benchmarks/results/{name}"


def check(root: Path, write: bool = False) -> list[str]:
    """What is wrong with the pages of a checkout; with write they are rendered first."""
    folder, history = root / "benchmarks" / "results", History(root)
    runs, asked = read(folder), set[str]()
    wrong = [problem for run in runs for problem in at_odds(run.path, run.result)]
    if not history.complete:
        print("figures: no whole history here: commits are not looked up", file=sys.stderr)
    for name in PAGES:
        if not (root / name).exists():
            continue
        text = (root / name).read_text("utf-8")
        asked |= {match[2] for match in BLOCK.finditer(text)}
        wanted = page(text, TABLES, runs, history)
        if write and wanted != text:
            (root / name).write_text(wanted, "utf-8")
            text = wanted
        if not history.complete:
            text, wanted = text.replace(GONE, ""), wanted.replace(GONE, "")
        wrong += differences(name, text, wanted)
    wrong += rows_outside(PAGES[0], (root / PAGES[0]).read_text("utf-8"), folder)
    wrong += [f"no page has the table {name}" for name in TABLES if name not in asked]
    return [*wrong, *files_named(root)]


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(prog="figures.py", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--write", action="store_true", help="render the pages")
    parser.add_argument("--check", action="store_true", help="say what differs (the default)")
    parser.add_argument("--root", type=Path, default=ROOT, help="another checkout")
    options = parser.parse_args(arguments)
    try:
        wrong = check(options.root, options.write)
    except ResultError as error:
        print(f"figures: {error}", file=sys.stderr)
        return 2
    print("\n".join(wrong), end="\n" * bool(wrong))
    return int(bool(wrong))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
