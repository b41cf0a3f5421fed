"""benchmarks/speculation.py: its workloads, and its arithmetic."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import speculation
from speculation import Pair, cell_of, edit, function_of, line_of, opening, rename, tool_says

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
