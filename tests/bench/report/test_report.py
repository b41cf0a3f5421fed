"""Tables, charts and the files they are written to."""

from __future__ import annotations

import itertools
import json
import re
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path
from xml.etree import ElementTree

import pytest

from octavo.bench.report.chart import Bars, Lines, Mark, Series, finite, powers, ticks
from octavo.bench.report.table import Table, table
from octavo.bench.report.writers import Report, check, find, write_all
from octavo.bench.report.writers.html import page
from octavo.bench.report.writers.svg import Axis, svg
from octavo.errors import InvalidRequestError, UnsupportedError
from support.cli import environment

LINES = Lines(
    "Rates <b>", "batch", "tok/s",
    (Series("one & two", ((1.0, 10.0), (2.0, 20.0), (4.0, 30.0))), Series("none", ())),
    (Mark("knee", 2.0), Mark("limit", 25.0, "y")),
)  # fmt: skip
BARS = Bars("Beside", "tok/s", (("with", 30.0), ("without", 10.0)), (Mark("bound", 20.0),))
REPORT = Report(
    "A <title>", [table(("work", "ms"), [("a", 1.25), ("b", None)])], [LINES, BARS], {"cpu": "x"}, {"a": 1}
)


def test_a_table_has_columns() -> None:
    lines = table(("work", "tok/s", "n"), [("prompt", 1234.56, 3), ("decode", None, 12)]).text().splitlines()
    assert lines == ["work      tok/s   n", "prompt  1,234.6   3", "decode        -  12"]


def test_words_stand_left_and_figures_right() -> None:
    """Where a reason stands in for one figure of a column, the column is still one of figures."""
    rows = [("a", "long words", "12.5 (1.02)", "ms"), ("b", "-", "too long", "tokens/s"), ("c", "x", "-", "")]
    found = Table(("row", "claim", "TPOT", "unit"), tuple(rows))
    assert found.sides == ("<", "<", ">", "<")
    assert found.text().splitlines() == [
        "row  claim              TPOT  unit",
        "a    long words  12.5 (1.02)  ms",
        "b    -              too long  tokens/s",
        "c    x                     -",
    ]
    assert Table(("", "ms"), ()).sides == Table(("", "ms"), (("a", "-"),)).sides == ("<", ">")
    text = page(Report("t", [found], [], {}, {}))
    assert '<th>TPOT</th><th class="words">unit</th>' in text
    assert '<td class="words">long words</td><td>12.5 (1.02)</td>' in text


def test_a_narrow_terminal_gets_a_line_for_each_figure() -> None:
    wide = Table(("milliseconds", "p50", "p99"), (("to the first token", "123.4", "567.8"),), notes=("note",))
    assert wide.text(40).splitlines()[1].split() == ["to", "the", "first", "token", "123.4", "567.8"]
    assert wide.text(24).splitlines() == ["to the first token", "  p50  123.4", "  p99  567.8", "note"]
    assert all(len(line) <= 40 for line in wide.text(40).splitlines())


def test_sentences_go_on_in_the_next_line() -> None:
    words = "a sentence that says in some detail what was measured here"
    found = Table(("row", "claim", "ms"), (("attention", words, "12.5"),), f"{words}\n{words}", (words,))
    lines = found.text(40).splitlines()
    assert all(len(line) <= 40 for line in lines)
    assert " ".join(" ".join(lines).split()).count(words) == 4
    assert lines[-3].split() == ["ms", "12.5"], "figures stand whole"
    assert found.text().splitlines()[:2] == [words, words]


@pytest.mark.parametrize(("low", "high"), [(0.0, 1.0), (0.0, 97.3), (3.0, 3.4), (0.0, 1e6), (1e-4, 2e-4)])
def test_ticks_are_few_and_round(low: float, high: float) -> None:
    found = ticks(low, high)
    assert 2 <= len(found) <= 7
    assert all(low - 1e-12 <= tick <= high + 1e-12 for tick in found)
    steps = {f"{b - a:.9g}" for a, b in itertools.pairwise(found)}
    assert len(steps) == 1
    assert re.fullmatch(r"[125](0*|e.*)|0\.0*[125]|[125]e-0\d", steps.pop().replace(".0", ""))
    assert ticks(5.0, 5.0) == [5.0]


def test_an_axis_places_values() -> None:
    line = Axis.over([0.0, 10.0], 100.0, 200.0, None)
    assert line.at(0.0) == 100.0
    assert line.at(line.high) == 200.0
    assert line.at(line.high / 2) == pytest.approx(150.0)
    log = Axis.over([1.0, 8.0], 0.0, 300.0, 2)
    assert [log.at(value) for value in (1.0, 2.0, 4.0, 8.0)] == pytest.approx([0.0, 100.0, 200.0, 300.0])
    assert powers(3.0, 9.0, 2) == [2.0, 4.0, 8.0, 16.0]
    assert powers(4.0, 4.0, 2) == [4.0, 8.0]


def test_svg_is_xml_and_has_every_point() -> None:
    root = ElementTree.fromstring(svg([LINES, BARS], "title"))
    space = "{http://www.w3.org/2000/svg}"
    circles = [(float(c.get("cx", 0)), float(c.get("cy", 0))) for c in root.iter(f"{space}circle")]
    assert len(circles) == 3
    assert circles == sorted(circles), "x grows to the right"
    assert [y for _, y in circles] == sorted((y for _, y in circles), reverse=True), "y grows upwards"
    texts = {text.text for text in root.iter(f"{space}text")}
    assert {"title", "Rates <b>", "one & two", "knee", "limit", "with", "without", "bound"} <= texts
    bars = [float(r.get("width", 0)) for r in root.iter(f"{space}rect") if r.get("height") == "18"]
    assert bars[0] == pytest.approx(3 * bars[1], rel=0.01)


@pytest.mark.parametrize(
    "chart", [Lines("t", "x", "y", ()), Lines("t", "x", "y", (Series("a", ()),)), Bars("t", "u", ())]
)
def test_what_was_not_measured_is_said(chart: Lines | Bars) -> None:
    assert "not measured" in svg([chart])
    assert finite([(1.0, None), (2.0, float("nan")), (3.0, 4.0)]) == ((3.0, 4.0),)


@pytest.mark.parametrize("values", [[(0.0, 0.0)], [(5.0, 5.0)], [(1.0, -3.0), (2.0, 3.0)], [(0.0, 1e-9)]])
def test_any_numbers_can_be_drawn(values: list[tuple[float, float]]) -> None:
    for log in ("", "x", "y", "xy"):
        text = svg([Lines("t", "x", "y", (Series("a", tuple(values)),), log=log)])
        ElementTree.fromstring(text)
        assert "nan" not in text


class Tags(HTMLParser):
    """Every tag with its attributes, and that they close."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: list[tuple[str, dict[str, str | None]]] = []
        self.open: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.seen.append((tag, dict(attrs)))
        if tag not in ("meta",):
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.seen.append((tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


def test_the_page_needs_nothing_else() -> None:
    text = page(REPORT)
    tags = Tags()
    tags.feed(text)
    assert tags.open == []
    names = {tag for tag, _ in tags.seen}
    assert not names & {"script", "link", "img", "iframe"}
    assert not any(name in ("src", "href") for _, attributes in tags.seen for name in attributes)
    assert [tag for tag, _ in tags.seen].count("svg") == 2
    assert "A &lt;title&gt;" in text
    assert "<td>1.2</td>" in text
    assert "<td>-</td>" in text


def test_each_format_writes_its_file(tmp_path: Path) -> None:
    paths = [tmp_path / f"a{suffix}" for suffix in find()]
    check(paths)
    write_all(REPORT, paths)
    assert (tmp_path / "a.png").read_bytes()[:4] == b"\x89PNG"
    assert (tmp_path / "a.svg").read_text().startswith("<svg")
    assert (tmp_path / "a.html").read_text().startswith("<!doctype html>")
    assert json.loads((tmp_path / "a.json").read_text()) == {"title": "A <title>", "cpu": "x", "a": 1}


def test_no_display_is_needed(tmp_path: Path) -> None:
    """Nor is one asked for, where matplotlib's settings name a backend of windows."""
    code = (
        "from pathlib import Path; from octavo.bench.report.chart import Bars; "
        "from octavo.bench.report.writers import Report, check, write_all; "
        "path = [Path('a.png')]; check(path); "
        "write_all(Report('t', [], [Bars('t', 'u', (('a', 1.0),))], {}, {}), path)"
    )
    hidden = {name: value for name, value in environment().items() if "DISPLAY" not in name}
    command = [sys.executable, "-c", code]
    subprocess.run(command, env={**hidden, "MPLBACKEND": "TkAgg"}, cwd=tmp_path, check=True)
    assert (tmp_path / "a.png").read_bytes()[:4] == b"\x89PNG"


def test_what_is_missing_is_said_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(InvalidRequestError, match=r"a\.gif: a report is one of \.html, \.json, \.png, \.svg"):
        check([tmp_path / "a.gif"])
    with pytest.raises(InvalidRequestError, match="is no folder that one may write to"):
        check([tmp_path / "none" / "a.svg"])
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(UnsupportedError, match=r"a PNG needs matplotlib: .*or write \.svg or \.html"):
        check([tmp_path / "a.png"])
    check([tmp_path / "a.svg", tmp_path / "a.html"])
