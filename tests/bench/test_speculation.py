"""benchmarks/speculation.py: its workloads, and its arithmetic."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import speculation
from speculation import Cell, Pair, cell_of, edit, function_of, line_of, opening, rename, tool_says

from octavo.bench.speculate import Answers, Verified

PROBLEM = {
    "turns": ['Complete the code I provided.\n\ndef area(a, b):\n    """Of a rectangle."""\n'],
    "reference": ["    return a * b\n"],
}


def test_an_edit_holds_the_whole_function_and_names_the_new_name() -> None:
    code = function_of(PROBLEM)
    assert code == 'def area(a, b):\n    """Of a rectangle."""\n    return a * b'
    assert rename(code) == ("area", "area_of_input")
    (message,) = edit(PROBLEM)
    assert code in message["content"]
    assert "Rename the function area to area_of_input" in message["content"]
    assert rename("x = 1") == ("solution", "solution_of_input")


def test_openings() -> None:
    assert opening("edits", PROBLEM) == edit(PROBLEM)
    for workload in ("sum", "loop", "chat"):
        assert opening(workload, PROBLEM) == [{"role": "user", "content": PROBLEM["turns"][0]}]


def test_no_turn_of_a_loop_is_sent_twice() -> None:
    assert len({tool_says(turn) for turn in range(1, speculation.TURNS + 1)}) == speculation.TURNS


def pair(plain: float, drafted: float, loops: bool = False, count: int = 4) -> Pair:
    ids = ((1, 2, 3),)
    return Pair(
        Answers(ids, (Verified(plain, 1, 0),), 2 * plain),
        Answers(ids, (Verified(drafted, 1, count),), 2 * drafted),
        loops,
    )


@pytest.mark.parametrize(
    ("gains", "aim", "loses", "met"),
    [
        ([2.0] * 9, 1.8, False, True),
        ([1.5] * 9, 1.8, False, False),
        ([0.9] * 9, None, True, True),
        ([0.97] * 9, None, True, True),
        ([0.99] * 9, None, False, True),
        ([0.9, 1.1] * 9, None, False, True),
    ],
)
def test_a_cell(gains: list[float], aim: float | None, loses: bool, met: bool) -> None:
    cell = cell_of([pair(gain, 1.0) for gain in gains], aim)
    assert (cell["loses"], cell["met"]) == (loses, met)
    assert cell["gain"][0] == pytest.approx(sorted(gains)[len(gains) // 2], abs=0.2)
    assert (cell["pairs"], cell["drafting_steps"]) == (len(gains), 1.0)
    about = {"method": "ngram", "workload": "sum", "streams": 1, "temperature": 0.0}
    assert ("LOSES" in line_of({**about, **cell})) is loses
    assert ("NOT MET" in line_of({**about, **cell})) is not met


@pytest.mark.parametrize("streams", [1, 4])
def test_tau_is_of_a_row(streams: int) -> None:
    ids = ((1, 2, 3, 4),) * streams
    plain = Answers(ids, (Verified(1.0, streams, 0),) * 3, 4.0)
    drafted = Answers(ids, (Verified(1.5, 3 * streams, 2 * streams),), 2.0)
    assert cell_of([Pair(plain, drafted, False)] * 9, None)["tau"] == 3


def test_answers_that_do_not_loop_decide() -> None:
    pairs = [pair(3.0, 1.0, loops=True)] * 9 + [pair(1.2, 1.0)] * 9
    cell = cell_of(pairs, 1.8)
    assert cell["gain"][0] > 1.8
    assert cell["unrepeated"][0] == pytest.approx(1.2)
    assert cell["unrepeated_pairs"] == 9
    assert not cell["met"]
    assert cell_of([pair(3.0, 1.0, loops=True)] * 9, 1.8)["unrepeated"] is None


def test_a_folder_without_the_files_is_said(tmp_path: Path) -> None:
    (tmp_path / "sum.jsonl").write_text(json.dumps({"turns": ["x"]}))
    with pytest.raises(SystemExit, match=r"has no humaneval.jsonl, mt_bench.jsonl"):
        speculation.main([str(tmp_path)])


# --- in pieces --------------------------------------------------------------------------------------------


def folder(path: Path) -> Path:
    for name in set(speculation.FILES.values()):
        (path / name).write_text(json.dumps(PROBLEM))
    return path


@pytest.fixture
def cells_measured(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Names of cells, in the order in which they were measured; each takes what is expected of it, twice."""
    names: list[str] = []
    clock = [0.0]

    def measured(arms: object, cell: Cell, options: object) -> dict[str, Any]:
        names.append(cell.name)
        clock[0] += 2 * cell.expected_s
        figures = cell_of([pair(2.0, 1.0)] * 9, None)
        return {**cell._asdict(), **figures, "seconds": 2 * cell.expected_s, "commit": "0" * 12}

    monkeypatch.setattr(speculation, "measured", measured)
    monkeypatch.setattr(speculation, "Arms", lambda *_: object())
    monkeypatch.setattr(speculation.time, "perf_counter", lambda: clock[0])
    return names


def test_cells_have_names_that_patterns_take(tmp_path: Path, cells_measured: list[str]) -> None:
    assert speculation.main([str(folder(tmp_path)), "--cells", "ngram/sum/*/1,suffix/loop/0.7/[12]"]) == 0
    assert cells_measured == ["ngram/sum/0/1", "ngram/sum/0.7/1", "suffix/loop/0.7/1", "suffix/loop/0.7/2"]
    with pytest.raises(SystemExit, match="no cell is called 'ngram/sums"):
        speculation.main([str(tmp_path), "--cells", "ngram/sums/*"])


def test_the_required_cells_are_there() -> None:
    options = speculation.arguments_of(["."])
    names = {cell.name for cell in speculation.cells_of(options)}
    grid = {f"{w}/0/{s}" for w in ("sum", "edits", "loop", "chat") for s in (1, 2, 4, 8, 16, 32)}
    assert len(grid) == 24
    for method in ("ngram", "suffix"):
        assert {f"{method}/{name}" for name in grid} <= names
        assert {f"{method}/{name.replace('/0/', '/0.7/')}" for name in grid} <= names
    assert set(speculation.AIMS) == {("sum", "ngram"), ("edits", "ngram"), ("loop", "suffix")}


def test_a_run_in_pieces_measures_each_cell_once(
    tmp_path: Path, cells_measured: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    """Each piece ends in time, as soon as it is known how long cells take."""
    state = str(tmp_path / "state.jsonl")
    options = [str(folder(tmp_path)), "--state", state, "--methods", "ngram", "--minutes", "25"]
    statuses = []
    while not statuses or statuses[-1] == speculation.LEFT:
        begin = speculation.time.perf_counter()
        statuses.append(speculation.main(options))
        assert len(statuses) == 1 or speculation.time.perf_counter() - begin <= 25 * 60
    assert len(statuses) > 2
    assert statuses[-1] == 0
    assert len(cells_measured) == len({*cells_measured}) == 48
    capsys.readouterr()
    assert speculation.main([*options, "--list"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[-1] == "0 of 48 cells are left: about 0 minutes"
    assert all("done in" in line for line in lines[:-1])


def test_cells_of_other_settings_are_not_mixed(tmp_path: Path, cells_measured: list[str]) -> None:
    state = tmp_path / "state.jsonl"
    options = [str(folder(tmp_path)), "--state", str(state), "--cells", "ngram/sum/0/1"]
    assert speculation.main(options) == 0
    with pytest.raises(SystemExit, match="cells of other settings"):
        speculation.main([*options, "--max-tokens", "64"])
    assert speculation.main(options) == 0
    assert cells_measured == ["ngram/sum/0/1"]
