"""Sweeps over batch and context: the knee of known curves, where memory ends, and the command."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest

from octavo.bench.driver import Driver
from octavo.bench.grid import Cell, curve, knee, sweep_grid
from octavo.cli import main
from octavo.errors import InvalidRequestError


def curve_of(bandwidth_ms: float, token_ms: float, batches: list[int]) -> list[tuple[float, float]]:
    """(TPOT, rate) of a machine whose step takes the longer of the weights' and the tokens' time."""
    tpots = [max(bandwidth_ms, batch * token_ms) for batch in batches]
    return [(tpot, batch / tpot) for tpot, batch in zip(tpots, batches, strict=True)]


@pytest.mark.parametrize("turn", [2, 4, 8, 16])
def test_the_knee_of_a_roofline_is_where_it_turns(turn: int) -> None:
    batches = [1, 2, 4, 8, 16, 32, 64]
    place = knee(curve_of(10.0, 10.0 / turn, batches))
    assert place is not None
    assert batches[place] == turn


@pytest.mark.parametrize(
    "points",
    [
        [],
        [(1.0, 1.0), (2.0, 2.0)],
        [(1.0, 1.0), (2.0, 2.0), (3.0, 3.0), (4.0, 4.0)],  # a line
        [(1.0, 5.0), (2.0, 4.0), (3.0, 3.0)],  # more is worse from the first on
        [(2.0, 1.0), (2.0, 2.0), (2.0, 3.0)],  # latency does not grow
    ],
)
def test_curves_without_a_knee(points: list[tuple[float, float]]) -> None:
    assert knee(points) is None


def test_a_knee_is_a_batch_that_was_measured() -> None:
    found = zip([1, 2, 4, 8, 16], curve_of(10.0, 2.5, [1, 2, 4, 8, 16]), strict=True)
    cells = [Cell(batch, 64, tpot, rate, 1.0, 1.0) for batch, (tpot, rate) in found]
    cells.insert(2, Cell(3, 64, None, None, None, None, "memory ends"))
    assert curve(64, cells, 16).knee == 4


def test_memory_ends_where_it_does(driver: Driver) -> None:
    """64 pages of 16, and 4 rows: of 30 tokens (2 pages) 32 sequences are held, of 130 (9 pages) 7."""
    begun: list[tuple[int, int]] = []
    found = sweep_grid(driver, [1, 4, 8], [20, 120], 10, 1, lambda *cell: begun.append(cell))
    assert [each.memory_ends for each in found.curves] == [64 // 2, 64 // 9]
    assert begun == [(1, 20), (4, 20), (1, 120), (4, 120)]
    why = [[cell.not_measured for cell in each.cells] for each in found.curves]
    assert why == [[None, None, "max_num_seqs"], [None, None, "memory ends"]]
    done = [cell for each in found.curves for cell in each.cells if cell.not_measured is None]
    for cell in done:
        assert cell.tpot is not None
        assert cell.rate == pytest.approx(1e3 * cell.batch / cell.tpot)
    assert all(cell.tpot is None and cell.rate is None for cell in found.curves[1].cells[2:])
    with pytest.raises(InvalidRequestError, match="a context of 250 and 10 new tokens are more than the 256"):
        sweep_grid(driver, [1], [20, 250], 10, 1)


def test_ctrl_c_keeps_what_was_measured(driver: Driver, monkeypatch: pytest.MonkeyPatch) -> None:
    core: Any = driver._core
    step, done = core.step, 0

    def counted() -> Any:
        nonlocal done
        done += 1
        if done == 20:
            raise KeyboardInterrupt
        return step()

    monkeypatch.setattr(core, "step", counted)
    found = sweep_grid(driver, [1, 2, 4], [8], 6, 1)
    assert found.cut == "interrupted"
    assert [cell.not_measured for cell in found.curves[0].cells] == [None, "interrupted", "interrupted"]
    assert found.curves[0].knee is None


def test_as_it_is_typed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    small = ["--max-model-len", "128", "--num-pages", "16", "--num-runs", "1", "--output-len", "4"]
    words = ["bench", "sweep", "--batch-sizes", "1,2,4", "--contexts", "9,60", *small]
    assert (
        main([*words, "--json", "--plot", str(tmp_path / "a.svg"), "--plot", str(tmp_path / "a.html")]) == 0
    )
    found = json.loads(capsys.readouterr().out)
    assert [each["memory_ends"] for each in found["curves"]] == [16, 4]
    assert found["memory"] > 0
    texts = {each.text for each in ElementTree.fromstring((tmp_path / "a.svg").read_text()).iter()}
    assert "KV memory ends, 60 tokens" in texts
    assert main(words) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[1].split() == ["context", "batch", "TPOT", "ms", "tok/s", "TTFT", "ms", "spread"]
    assert lines[-2].endswith("KV memory ends at batch 4")
