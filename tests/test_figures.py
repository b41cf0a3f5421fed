"""scripts/figures.py: pages say what the result files say, and each way to differ is found."""

from __future__ import annotations

import dataclasses
import importlib
import json
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parent.parent
PAGE = "docs/status.md"


@pytest.fixture(autouse=True)
def _on_the_path(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(ROOT / "scripts"))
    monkeypatch.setattr(sys, "path", [*sys.path, str(ROOT / "benchmarks")])


def script(name: str) -> Any:
    return importlib.import_module(name)


@pytest.fixture
def copy(tmp_path: Path) -> Path:
    """Pages and result files of this checkout, without its history."""
    shutil.copytree(ROOT / "docs", tmp_path / "docs")
    shutil.copytree(ROOT / "benchmarks" / "results", tmp_path / "benchmarks" / "results")
    shutil.copy(ROOT / "README.md", tmp_path)
    return tmp_path


def wrong(root: Path) -> list[str]:
    return list(script("figures").check(root))


def test_the_pages_say_what_the_files_say() -> None:
    """`python scripts/figures.py --write` renders them; a row that it does not render names its file."""
    command = [sys.executable, str(ROOT / "scripts" / "figures.py")]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def test_without_a_history_commits_are_not_looked_up(copy: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert wrong(copy) == []
    assert "commits are not looked up" in capsys.readouterr().err


def digits_of_tables() -> list[tuple[int, int]]:
    """(line, column) of the last digit before each table's end, and of one in the middle of each."""
    text = (ROOT / PAGE).read_text(encoding="utf-8")
    found = []
    for block in re.finditer(r"<!-- figures .*?<!-- end -->", text, re.DOTALL):
        rows = [row for row in re.finditer(r"^\|.*$", block[0], re.MULTILINE) if re.search(r"\d", row[0])]
        for row in {rows[0], rows[-1]} if rows else ():
            digit = list(re.finditer(r"\d", row[0]))[len(re.findall(r"\d", row[0])) // 2]
            found.append((text.count("\n", 0, block.start() + row.start()), digit.start()))
    return sorted(set(found))


@pytest.mark.parametrize("place", digits_of_tables())
def test_a_changed_digit(copy: Path, place: tuple[int, int]) -> None:
    (line, column), page = place, copy / PAGE
    lines = page.read_text(encoding="utf-8").split("\n")
    digit = lines[line][column]
    lines[line] = f"{lines[line][:column]}{9 - int(digit)}{lines[line][column + 1 :]}"
    page.write_text("\n".join(lines), encoding="utf-8")
    (problem,) = wrong(copy)
    assert problem.startswith(f"{PAGE}:{line + 1}: the page says")


def newest(root: Path, benchmark: str) -> Path:
    """A file that the page's tables have taken a figure from."""
    page = (root / PAGE).read_text(encoding="utf-8")
    named = re.findall(rf"`results/({benchmark}-[^`*]*\.json)`", page)
    return root / "benchmarks" / "results" / named[0]


def test_a_file_with_another_figure(copy: Path) -> None:
    path = newest(copy, "peers")
    result = json.loads(path.read_text(encoding="utf-8"))
    for row in result["ratios"]:
        row["ratio"] = row["ratio"] and row["ratio"] + 0.01
    path.write_text(json.dumps(result), encoding="utf-8")
    problems = wrong(copy)
    assert any(f"{PAGE}:" in problem for problem in problems)
    assert all(problem.startswith((f"{PAGE}:", f"{path.name}: ")) for problem in problems)


def test_a_ratio_that_is_not_that_of_its_sides(copy: Path) -> None:
    """Files that no page shows count too."""
    paths = sorted((copy / "benchmarks" / "results").glob("peers-*.json"))
    result = json.loads(paths[0].read_text(encoding="utf-8"))
    row = next(row for row in result["ratios"] if row["ratio"])
    row["ratio"] = round(row["ratio"] + 0.01, 2)
    row["reached"] = not row["ratio"] >= row["least"]
    row["with"] += "?"
    paths[0].write_text(json.dumps(result), encoding="utf-8")
    named = [problem for problem in wrong(copy) if problem.startswith(f"{paths[0].name}: {row['row']}: ")]
    assert len(named) == 3
    assert f"no shape has {row['ours']} of {row['with']}" in named[0]
    assert f"the ratio is {row['ratio']}, {row['ours']} over {row['theirs']} are" in named[1]
    assert f"reached is {row['reached']}" in named[2]


BROKEN: dict[str, tuple[bytes, str]] = {
    "empty": (b"", "is no JSON"),
    "cut short": (b'{"date": "2026-1', "is no JSON"),
    "binary": (b"\x89PNG\xff\x00", "is no JSON"),
    "NaN": (b'{"date": "2026-12-01", "a": NaN}', "NaN is no number"),
    "a list": (b"[]", "it holds [], not an object"),
    "no date": (b"{}", '"date" is None, not text'),
    "a number as date": (b'{"date": 3}', '"date" is 3, not text'),
}


@pytest.mark.parametrize("name", BROKEN)
@pytest.mark.parametrize("reader", ["figures", "gallery"])
def test_a_broken_result_file_is_named(
    copy: Path, reader: str, name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    content, text = BROKEN[name]
    path = copy / "benchmarks" / "results" / "broken.json"
    path.write_bytes(content)
    assert script(reader).main(["--root", str(copy)]) == 2
    (line,) = capsys.readouterr().err.replace("figures: no whole history here: commits are not looked up\n",
                                              "").splitlines()  # fmt: skip
    assert line.startswith(f"{reader}: {path} ")
    assert text in line


@pytest.mark.parametrize(
    ("reader", "key", "value"),
    [
        ("figures", "ratios", 3),
        ("figures", "ratios", [3]),
        ("figures", "machine", "some"),
        ("figures", "engines", [1]),
        ("figures", "shapes", 3),
        ("gallery", "shapes", 3),
        ("gallery", "machine", "some"),
    ],
)
def test_a_value_of_another_kind_names_its_file(
    copy: Path, reader: str, key: str, value: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    for path in (copy / "benchmarks" / "results").glob("peers-*.json"):
        result = json.loads(path.read_text(encoding="utf-8"))
        path.write_text(json.dumps({**result, key: value}), encoding="utf-8")
    assert script(reader).main(["--root", str(copy)]) == 2
    line = capsys.readouterr().err.splitlines()[-1]
    assert re.match(rf"{reader}: \S*/peers-[\w-]+\.json", line)
    assert "a value is not as its benchmark writes it" in line


@pytest.mark.parametrize("benchmark", ["pipes", "peers", "gpu"])
def test_a_file_that_is_gone(copy: Path, benchmark: str) -> None:
    path = newest(copy, benchmark)
    path.unlink()
    assert f"{PAGE}: there is no benchmarks/results/{path.name}" in wrong(copy)


def test_a_table_that_no_page_shows(copy: Path) -> None:
    page = copy / PAGE
    page.write_text(page.read_text(encoding="utf-8").replace("<!-- figures gpu -->", ""), encoding="utf-8")
    assert "no page has the table gpu" in wrong(copy)


def test_a_table_that_nobody_declares(copy: Path) -> None:
    (copy / "README.md").write_text("<!-- figures nothing -->\n<!-- end -->\n", encoding="utf-8")
    with pytest.raises(SystemExit, match="no table nothing"):
        wrong(copy)


HEADS = "| claim | figure | command |\n|---|---|---|\n"


@pytest.mark.parametrize(
    ("row", "problem"),
    [
        ("| fast | 7 ms | `make test` |", "no result file for 7"),
        ("| fast | 1.5 times | `make test` |", "no result file for 1.5"),
        ("| mostly | 3 of 4,000 | `make test` |", "no result file for 3"),
        ("| fast | 12 % | `run.py` |", "no result file for 12"),
        ("| fast | all 5 | `run.py` |", "no test proves the row"),
        ("| fast | 34 % (`results/x.json`) | `run.py` |", ""),
        ("| fast | 0.338 (`results/*.json`) | `run.py` |", ""),
        ("| fast | 35 % (`results/x.json`) | `run.py` |", "35 not in x.json"),
        ("| fast | 34 % (`results/y.json`) | `run.py` |", "no result file for 34"),
        ("| in 7 ms | all 5 | `make test ARGS=x` |", ""),
        ("| a | holds | `make test` |\n| b | | the same with `-s` |", ""),
    ],
)
def test_a_row_by_hand(tmp_path: Path, row: str, problem: str) -> None:
    (tmp_path / "x.json").write_text('{"a": [{"share": 0.338}], "b": true}', encoding="utf-8")
    found = list(script("figures").rows_outside("p.md", HEADS + row + "\n\ntext 7 ms\n", tmp_path))
    assert bool(found) is bool(problem)
    assert all(each.startswith(f"p.md:3: {problem}:") for each in found)


def made(commit: str, date: str, value: float, **more: Any) -> Any:
    """A run of the benchmark "x"."""
    machine = {"cpu": "AMD EPYC", "family_model": "25/1", "cores": 2, "flags": ["avx2"]}
    result = {"benchmark": "x", "commit": commit, "date": date, "value": value, "machine": machine, **more}
    return script("figure_runs").Run(Path(f"x-{date}-{commit}-{value}.json"), result)


def row(**more: Any) -> Any:
    runs = script("figure_runs")
    return runs.Row("what", "x", ("value",), ("{0:.2f}",), "x.py", **more)


def test_words_of_several_runs_are_those_that_differ_and_say_something() -> None:
    words = [made("aaa", "2026-11-30", 1.0, machines=each) for each in ("", "one", "one", "two")]
    whole = script("figure_runs").Row("what", "x", ("machines",), ("{0}",), "x.py")
    assert script("figure_runs").medians(whole, words) == ["one / two"]


class NoHistory:
    complete = False

    def lacks(self, commit: str) -> bool:
        return commit.startswith("gone")


def rendered(runs: list[Any], *rows: Any) -> str:
    table = script("figure_runs").Table(rows or (row(),))
    return str(script("figures").render(table, sorted(runs, key=lambda run: run.date), NoHistory()))


def test_a_figure_is_the_median_of_all_runs_of_its_commit() -> None:
    runs = [made("aaaaaaaaa", "2", 1.0), made("aaaaaaaaa", "3", 2.0), made("aaaaaaaaa", "4", 9.0)]
    text = rendered(runs)
    assert "| what | 2.00 | | aaaaaaa [1, 2, 3] | `x.py` |" in text
    assert all(run.path.name in text for run in runs)
    assert "| 1.50 | | aaaaaaa [1, 2] |" in rendered(runs[:2])


def test_the_newest_commit_is_the_one_first_measured_last() -> None:
    """Measuring an old one again does not bring it back; a changed tree is a commit of its own."""
    runs = [made("old", "1", 1.0), made("new", "2", 2.0), made("old", "3", 5.0)]
    assert "| 2.00 | | new [1] |" in rendered(runs)
    assert "| 7.00 | | new+ [1]; changed tree |" in rendered([*runs, made("new+", "4", 7.0)])


def test_what_a_quick_run_says_is_no_figure() -> None:
    runs = [made("old", "1", 1.0), made("new", "2", 2.0, settings={"quick": True})]
    assert "| 1.00 | | old [1] |" in rendered(runs)


def test_machines_and_instructions_stand_apart() -> None:
    other = {"cpu": "AMD EPYC", "family_model": "26/2", "cores": 2, "flags": ["avx512_vnni", "avx2"]}
    runs = [
        made("a", "1", 1.0), made("b", "2", 2.0, machine=other),
        made("c", "3", 3.0, machine=other, settings={"options": {"isa": "avx2"}}),
        made("d", "4", 4.0, engines={"octavo": {"notes": "isa=scalar"}}),
    ]  # fmt: skip
    text = rendered(runs)
    for kind in ("Zen 3, 2 cores, avx2", "Zen 5, 2 cores, avx512vnni", "Zen 5, 2 cores, avx2", "scalar"):
        assert re.search(rf"\*\*AMD EPYC .*{kind}\*\*, commit [abcd]\.", text)


@pytest.mark.parametrize(
    ("given", "bounds", "cell"),
    [
        (1.0, {"least": 1.0}, "| 1.00 | 1 |"),
        (0.99, {"least": 1.0}, "| **0.99** | 1 |"),
        (1.0, {"most": 1.0}, "| 1.00 | at most 1 |"),
        (1.01, {"most": 1.0}, "| **1.01** | at most 1 |"),
        (1.01, {"most": "value"}, "| 1.01 | at most 1.01 |"),
        (1.0, {"least": 0.5, "aim": 2.0}, "| 1.00 | 0.5 | 2 |"),
    ],
)
def test_bold_is_not_reached(given: float, bounds: dict[str, Any], cell: str) -> None:
    assert cell in rendered([made("a", "1", given)], row(**bounds))


@pytest.mark.parametrize(
    ("commit", "more", "marks"),
    [
        ("a", {}, "; unrest not recorded"),
        ("a", {"spread": 1.10}, ""),
        ("a", {"spread": 1.11}, "; noisy"),
        ("a", {"noisy": True}, "; noisy"),
        ("a", {"noisy": False, "spread": 2.0}, ""),
        ("a+", {"spread": 1.0}, "; changed tree"),
        ("a", {"spread": 1.0, "commit_told": True}, "; commit as told"),
        ("a", {"spread": 1.0, "command": "make gpu-check"}, "; commit as told"),
        ("gone", {"spread": 1.0}, "; not in history"),
        ("gone+", {"noisy": True}, "; not in history; changed tree; noisy"),
    ],
)
def test_marks(commit: str, more: dict[str, Any], marks: str) -> None:
    text = rendered([made(commit, "1", 1.0, **more)], row(spread="spread"))
    assert f"| {commit} [1]{marks} |" in text
    assert ("**Noisy machine**" in text) is ("noisy" in marks)


def test_of_several_runs_the_lowest_and_the_highest_stand_beside_the_median() -> None:
    three = [made("a", str(date), value) for date, value in ((1, 2.5), (2, 2.94), (3, 2.77))]
    assert "| 2.77 (2.50 to 2.94) |" in rendered(three, row(range="{0:.2f}"))
    assert "| **2.77** (2.50 to 2.94) |" in rendered(three, row(range="{0:.2f}", least=2.8))
    assert "| 2.77 |" in rendered(three, row())
    assert "| 2.50 |" in rendered(three[:1], row(range="{0:.2f}"))
    alike = [made("a", str(date), value) for date, value in ((1, 2.769), (2, 2.772))]
    assert "| 2.77 |" in rendered(alike, row(range="{0:.2f}")), "as shown they are the same"


def test_a_grammars_arms_that_differ_by_half_the_bound_are_noise() -> None:
    tables = script("figure_tables")
    grammar = tables.grammar(1)
    arm = {"cost": 0.01, "cost_5_95": [0.0, 0.02], "settings": {"temperature": 1}}
    for noise, spread in ((0.02, 1.0), (-0.03, float("inf")), (0.03, float("inf"))):
        assert grammar.spread({**arm, "noise": noise}) == spread
    assert grammar.spread(arm) is None


def test_a_room_of_its_own_is_compared_with_the_fastest_that_was_tried() -> None:
    tables = script("figure_tables")
    tried = {"octavo: a, max_model_len=default": 5.0, "octavo: b, max_model_len=default": 6.0,
             "octavo: a, max_model_len=256": 9.0, "llama-server: a": 2.0, "llama-server: b": 1.0}  # fmt: skip
    assert [tables.default_room(which)({"tried": tried}) for which in range(3)] == [3.0, 6.0, 2.0]
    assert tables.default_room(0)({"tried": {"octavo: a": 1.0, "llama-server: a": 1.0}}) is None
    assert tables.default_room(0)({}) is None


def test_what_is_lost_is_not_resolved_where_a_part_is_negative() -> None:
    rooflines = script("figure_rooflines")
    found = {"pieces_share": 0.8, "least_us": 1.0, "step_us": 2.0, "roofline_share": 0.7}
    *_, lost = rooflines.in_pieces(2048).at
    for within, between, said in (
        (0.02, 0.18, "lost within pieces 2 %, between them 18 %"),
        (-0.01, 0.2, "where the rest is lost is not resolved"),
        (0.2, -0.01, "where the rest is lost is not resolved"),
    ):
        each = {**found, "within": within, "between": between}
        assert lost({"contexts": {"2048": each}}) == said
    assert lost({"contexts": {}}) is None


def test_a_grammars_cost_in_results_of_both_forms() -> None:
    """Of one temperature, or of several under their names."""
    runs, tables = script("figure_runs"), script("figure_tables")
    arm = {"cost": 0.04, "cost_5_95": [0.01, 0.06], "noise": 0.002}
    old = {"benchmark": "grammar_cost", "settings": {"temperature": 1.0}, **arm}
    new = {**old, "settings": {"temperature": [0.0, 1.0]}, "throughput": {"0": {**arm, "cost": 0.03}}}
    for result, temperature, cost in ((old, 1, 0.04), (old, 0, None), (new, 0, 0.03), (new, 1, None)):
        found = runs.Run(Path("x.json"), result).values(tables.grammar(temperature))
        assert found == (None if cost is None else [cost, 0.01, 0.06, 0.002])


def test_a_ratio_has_the_spreads_of_both_sides() -> None:
    tables = script("figure_tables")
    row = next(iter(tables.peers.ROWS))
    engines = {
        name: {row.figure: 4.0, f"{row.figure}_spread": spread}
        for name, spread in (("octavo: a", 1.21), ("llama.cpp: b", 1.3))
    }
    result: dict[str, Any] = {
        "ratios": [{"row": row.name, "with": "octavo: a", "over": "llama.cpp: b", "ratio": 2.0}],
        "shapes": {row.shape: {"engines": engines}},
    }
    ours = tables.spread(row)(result)
    assert (f"{ours:.2f}", f"{tables.spread(row, 'over')(result):.2f}") == ("1.21", "1.30")
    assert (ours.low, ours.high) == (pytest.approx(4.0 / 1.1), pytest.approx(4.0 * 1.1)), "as far up as down"
    assert tables.unrest(row)(result) == pytest.approx(1.21)
    engines["octavo: a"][f"{row.figure}_rates"] = [5.0, 4.0, 3.5]
    kept = tables.spread(row)(result)
    assert (kept.low, kept.high) == (3.5, 5.0), "of files that keep every repetition these count"
    assert kept | ours == script("figure_runs").Span(3.5, 5.0), "of two runs all repetitions"
    assert tables.unrest(row)({**result, "noisy": [row.shape]}) == float("inf")


def test_a_rooflines_line_is_found_by_its_work_size_and_context() -> None:
    find = script("figure_tables").roofline
    lines = [
        {"work": work, "size": size, "context": context, "rate": rate}
        for work, size, context, rate in (
            ("prompt", 1, 20, 1.0), ("decode", 8, 32, 2.0), ("decode", 1, 2064, 3.0), ("decode", 1, 32, 4.0)
        )
    ]  # fmt: skip
    result = {"result": {"lines": lines}}
    assert [
        find("rate")(result), find("rate", size=8)(result), find("rate", context=range(2048, 2112))(result)
    ] == [4.0, 2.0, 3.0]  # fmt: skip
    assert find("rate", size=2)(result) is None


def test_what_was_never_measured_is_said() -> None:
    other = dataclasses.replace(row(), label="missing", at=("nothing",))
    assert "Not measured yet: missing (`x.py`)." in rendered([made("a", "1", 1.0)], row(), other)


def test_the_slowest_machine_comes_first(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(script("figures"), "SPEED", row())
    slow, fast, unknown = ({"cpu": name, "flags": ["avx2"]} for name in ("Z", "A", "B"))
    runs = [
        made("a", "1", 9.0, machine=fast), made("a", "2", 3.0, machine=slow),
        made("a", "3", 1.0, machine=unknown, benchmark="other"),
    ]  # fmt: skip
    kinds = script("figures").kinds(runs)
    assert [kind[0] for kind in kinds] == ["Z", "A", "B"]


def git(root: Path, *words: str) -> str:
    identity = ["-c", "user.name=a", "-c", "user.email=a@b.c", "-c", "commit.gpgsign=false"]
    command = ["git", "-C", str(root), *identity, *words]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()


def test_a_commit_outside_of_the_history(tmp_path: Path) -> None:
    """One that the folder still has, but that HEAD does not come from, is lost to who clones it."""
    if shutil.which("git") is None:
        pytest.skip("git is not installed")
    git(tmp_path, "init", "--quiet")
    commits = []
    for message in ("one", "two"):
        git(tmp_path, "commit", "--allow-empty", "--quiet", "--message", message)
        commits.append(git(tmp_path, "rev-parse", "HEAD"))
    git(tmp_path, "reset", "--quiet", "--hard", commits[0])
    history = script("figure_runs").History(tmp_path)
    assert history.complete
    assert [history.lacks(commit[:7]) for commit in (*commits, "1234567", "unknown")] == [
        False, True, True, False
    ]  # fmt: skip
    assert not history.lacks(commits[0][:7] + "+")
    assert script("figure_runs").History(tmp_path / "none").complete is False


def peers_result(commit: str, date: str, old: bool) -> Any:
    """A result of either form, of one row."""
    mine, theirs = (
        ("octavo Q4_0", "llama.cpp Q4_0") if old else ("octavo: Q4_0", "llama.cpp: Q4_0, flash_attn=0")
    )
    ratio = {
        "row": "SmolLM2, decode, 1 stream", "with": mine, "ours": 300.0, "over": theirs, "theirs": 150.0,
        "ratio": 2.0, "least": 1.6, "aim": None, "reached": True,
    }  # fmt: skip
    engines = {mine: {"prompt": 1.0, "prompt_spread": 1.0, "decode": 300.0, "decode_spread": 1.05}}
    engines[theirs] = {"prompt": 1.0, "prompt_spread": 1.0, "decode": 150.0, "decode_spread": 1.2}
    engines["transformers" if old else "transformers: as shipped"] = {"prompt": 1.0, "decode": 20.0}
    shapes = {"short": {"shape": "s", "engines": engines, "missing": []}}
    more = {} if old else {"noisy": [], "tuned": {"short": {"llama.cpp": {"decode": {}}}}}
    return made(commit, date, 0.0, benchmark="peers", shapes=shapes, ratios=[ratio], **more)


@pytest.mark.parametrize(
    ("old", "settings"), [(True, "Q4_0, flash attention on, untuned"), (False, "Q4_0, flash_attn=0")]
)
def test_results_of_peers_in_both_forms(old: bool, settings: str) -> None:
    figures, table = script("figures"), script("figure_tables").TABLES["peers"]
    text = figures.render(table, [peers_result("a", "1", old)], NoHistory())
    expected = (
        f"| SmolLM2, decode, 1 stream | 300 (1.05) | 150 (1.20) | transformers 20 | 2.00 | 1.75 | "
        f"{settings} | a [1] |"
    )
    assert expected in text
    assert "Not measured here: SmolLM2, prompt of 512;" in text


def test_a_peer_that_failed_is_said() -> None:
    figures, table = script("figures"), script("figure_tables").TABLES["peers"]
    run = peers_result("a", "1", False)
    run.result["ratios"].append(
        {"row": "SmolLM2, prompt of 512", "ratio": None, "why": "llama.cpp is missing or failed"}
    )
    text = figures.render(table, [run], NoHistory())
    assert "SmolLM2, prompt of 512 (llama.cpp is missing or failed);" in " ".join(text.split())


def test_int8_pages_are_compared_with_float16_ones() -> None:
    """Results from before the groups divided them by Octavo's default."""
    table = script("figure_tables").TABLES["peers"]
    (wanted,) = [row for row in table.rows if row.label.endswith("int8 KV over f16")]
    ratio = {
        "row": wanted.label,
        "with": "octavo int8 KV",
        "ours": 3.0,
        "over": "octavo",
        "theirs": 2.0,
        "ratio": 1.5,
    }
    names = ("octavo int8 KV", "octavo", "octavo f16 KV")
    engines = {name: {"decode": 1.0, "decode_spread": 1.0} for name in names}
    shapes = {"context-8k": {"engines": engines}}
    run = made("a", "1", 0.0, benchmark="peers", ratios=[ratio], shapes=shapes)
    assert run.values(wanted) is None
    ratio["over"] = "octavo f16 KV"
    assert run.values(wanted)[0] == 1.5


@pytest.mark.parametrize(("value", "text"), [(0.0, "not resolved"), (None, "not resolved"), (0.031, "3.1 %")])
def test_a_gap_that_the_clocks_do_not_resolve(value: float | None, text: str) -> None:
    work = {"work": "host gap at 64 streams", "value": value, "note": "7 ms"}
    table = script("figure_tables").TABLES["gpu"]
    run = made("a", "1", 0.0, benchmark="gpu", device="cuda", table=[work])
    found = script("figures").render(table, [run], NoHistory())
    assert f"| host gap between steps at 64 streams | {text} | at most 5 % | 7 ms | a [1] |" in found


def test_a_run_that_fails_its_exit_test_says_so() -> None:
    facts = {"bounded": True, "pages_leaked": 0, "grown_mb": 0.0, "rate_of_peak": 1.0501}
    table = script("figure_tables").TABLES["overload"]
    text = script("figures").render(table, [made("a", "1", 0.0, benchmark="overload", **facts)], NoHistory())
    assert "| **1.050, off by 5 %** | at most 5 % | **FAILS its exit test** |" in text
