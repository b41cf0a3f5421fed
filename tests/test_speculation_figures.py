"""scripts/figure_speculation.py: what is read out of the result files of drafts."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path
from typing import Any

import pytest

from octavo.params.drafts import Draft

ROOT = Path(__file__).resolve().parent.parent
MACHINE = {"cpu": "AMD EPYC", "family_model": "25/1", "cores": 2, "flags": ["avx2"]}


@pytest.fixture(autouse=True)
def _on_the_path(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(ROOT / "scripts"))
    monkeypatch.setattr(sys, "path", [*sys.path, str(ROOT / "benchmarks")])


class NoHistory:
    complete = False

    def lacks(self, commit: str) -> bool:
        return False


def rendered(table: str, benchmark: str, **facts: Any) -> str:
    figures, runs = importlib.import_module("figures"), importlib.import_module("figure_runs")
    made = {"benchmark": benchmark, "commit": "a", "date": "1", "machine": MACHINE, **facts}
    known = importlib.import_module("figure_speculation").TABLES[table]
    return str(figures.render(known, [runs.Run(Path("x.json"), made)], NoHistory()))


def cell(streams: int, high: float, unrepeated: list[float] | None, workload: str = "sum") -> dict[str, Any]:
    return {
        "method": "ngram", "workload": workload, "temperature": 0.7, "streams": streams,
        "gain": [high - 0.02, high - 0.04, high], "unrepeated": unrepeated, "drafting_steps": 0.125 * streams,
        "tau": 2.5,
    }  # fmt: skip


SETTINGS = {"settings": {"model": "smollm2", "limit": None}}


def test_answers_that_do_not_loop_decide() -> None:
    text = rendered("speculation", "speculation", cells=[cell(1, 2.02, [1.75, 1.7, 1.8])], **SETTINGS)
    assert "| **1.75 (2.00; 2.50)** | 1.8x | a [1] | `benchmarks/speculation.py FOLDER" in text
    text = rendered("speculation", "speculation", cells=[cell(1, 2.02, None)], **SETTINGS)
    assert "| 2.00 (2.00; 2.50) | 1.8x |" in text


@pytest.mark.parametrize(("high", "worst"), [(1.01, "0.99"), (0.97, "**0.97**")])
def test_a_cell_that_loses_is_bold(high: float, worst: str) -> None:
    cells = [cell(1, 0.99, None), cell(8, high, None)]
    text = rendered("speculation-cells", "speculation", cells=cells, **SETTINGS)
    eight = f"{high - 0.02:.2f} ({high - 0.04:.2f}-{high:.2f}), 100 %"
    assert f"| 0.97 (0.95-0.99), 12 % | | | {eight} | | | {worst} | 0.98 | a [1] |" in text
    assert "suffix, code edits, temperature 0" in " ".join(text.split("Not measured here")[1].split())


def test_what_few_lines_of_the_texts_say_is_no_figure() -> None:
    settings = {"settings": {"model": "smollm2", "limit": 3}}
    text = rendered("speculation-cells", "speculation", cells=[cell(1, 2.0, None)], **settings)
    assert text.startswith("Not measured yet: ngram, summaries")


def test_the_slowest_tree() -> None:
    shapes = {"chain": [1.2, 1.1, 1.3], "bush": [1.05, 1, 1.1], "siblings": [1.124, 1, 1.2]}
    table = {"chain_ms": 4.0, **{name: {"ms": 5.0, "ratio": ratio} for name, ratio in shapes.items()}}
    facts = {"settings": {"kv_dtype": "int16"}, "contexts": {"2048": table}}
    assert "int16 KV (a chain beside a chain) | **1.124 (1.200)** | at most 1.1 |" in rendered(
        "speculation", "trees", **facts
    )


def test_host_time_of_a_step_that_verifies() -> None:
    verify = {"ngram": {"host_share": 0.0612, "drafted": 5.25}}
    assert "| **6.1 % (5.2)** | at most 6 % |" in rendered("speculation", "host_time", verify=verify)


def test_drafts_of_models() -> None:
    fixed = {"row": "draft, 2", "measured": 1.1, "unrepeated": 1.0, "drafting": 1.0, "formula": 1.16,
             "a": 0.75, "c": 0.4, "c_v": 1.2, "gains_from": 0.62}  # fmt: skip
    never = {**fixed, "row": "self, 1", "gains_from": None}
    chosen = {"row": "draft, auto", "measured": 1.0, "unrepeated": 1.0, "drafting": 0.25}
    text = rendered("speculation", "draft_models", rows=[fixed, never, chosen])
    assert (
        "1.10 (1.00 where no answer loops); 1.16 by the formula: a 0.75, c 0.40, c_v 1.20; "
        "gains from a 0.62 on" in text
    )
    assert "gains from no a on" in text
    assert "1.00 (1.00 where no answer loops); 25 % of the steps draft" in text


def test_the_least_time_of_steps_that_copy() -> None:
    """speculation_bound.py, where the answer is seen by eye."""
    bound = importlib.import_module("speculation_bound")
    text = [1, 2, 3, 4, 9, 1, 2, 3, 4, 8]
    assert [bound.longest(text, 5, after) for after in (0, 1)] == [4, 0]
    assert [bound.longest(text, 6, after) for after in (0, 1, 2)] == [3, 3, 0]
    assert bound.longest([7, 7, 7, 7, 7], 2, 0) == 2  # what is copied is known when it is drafted

    def alike(tokens: int, before: int) -> float:
        return 1.0

    def dear(tokens: int, before: int) -> float:
        return 1.0 + 2.0 * (tokens - 1)

    copied = [[bound.longest(text, at, after) for at in range(5, 10)] for after in (0, 1)]
    assert copied == [[4, 3, 2, 1, 0], [0, 3, 2, 1, 0]]
    assert bound.least_seconds(copied[0], 5, alike) == 1  # 1 2 3 4 copied, and 8 drawn
    assert bound.least_seconds(copied[1], 5, alike) == 2  # 1 drawn first
    assert bound.least_seconds(copied[0], 5, dear) == 5  # no draft pays
    proposers = {"ngram": bound.made("ngram", {})}
    assert [each.right for each in bound.drafted(proposers["ngram"], text[:5], text[5:])] == [0, 0, 2, 1, 0]
    drafts = {"ngram": bound.drafted(proposers["ngram"], text[:4], text[4:])[1:]}
    found = bound.gains(text[:4], text[4:], alike, drafts)
    assert found == {"free": 5.0, "copy": 5.0, "after 1": 2.5, "after 2": 5 / 3, "ngram": 5 / 3}
    tree = Draft((8, 9, 4), (-1, -1, 0))
    assert [bound.right_of(tree, each) for each in ([8, 4, 1], [9, 4], [4], [])] == [2, 1, 0, 0]
    assert bound.right_of(None, [8]) == 0


def test_fixed_numbers_for_drafts_of_equal_support() -> None:
    """Of length 2 all three tokens are right, of length 1 none; a token more costs a fifth of a step."""
    bound = importlib.import_module("speculation_bound")

    def cost(tokens: int, before: int) -> float:
        return 0.8 + 0.2 * tokens

    nothing, wrong, right = bound.Drafted(), bound.Drafted(0, 3, 1), bound.Drafted(3, 3, 2)
    drafts = [right, nothing, nothing, nothing, wrong, wrong]
    assert bound.fixed_seconds(drafts, 5, cost, {}) == 6
    assert bound.fixed_seconds(drafts, 5, cost, {2: 3}) == pytest.approx(1.6 + 1 + 1)
    assert bound.fixed_seconds(drafts, 5, cost, {2: 1}) == pytest.approx(1.2 + 1 + 1 + 1 + 1)
    assert bound.fixed_seconds(drafts, 5, cost, {1: 3, 2: 64}) == pytest.approx(
        1.6 + 1.2 + 1
    )  # one token is left
    assert bound.best_counts([(drafts, 5), (drafts[1:], 5)], cost) == {1: 0, 2: 3}
