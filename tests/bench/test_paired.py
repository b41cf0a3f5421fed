"""benchmarks/paired.py: what it makes of figures that are made by hand. What it measures is the machine's."""

from __future__ import annotations

import importlib
import json
import math
import random
import sys
from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from support.source_mutants import must_die

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def paired() -> ModuleType:
    """conftest.py has put benchmarks/ on the path."""
    return importlib.import_module("paired")


SLOW_MACHINE = [1.0, 2.0, 4.0, 1.0, 2.0, 4.0, 1.0, 2.0, 4.0]


def check_ratio(paired: Any) -> None:
    """Each pair gives one ratio; medians, not means; B over A; intervals of percentiles."""
    assert paired.ratio_of([2.0] * 9, [3.0] * 9) == (1.5, 1.5, 1.5)
    # A machine that is four times slower in some pairs says nothing about the ratio.
    assert paired.ratio_of(SLOW_MACHINE, [1.1 * a for a in SLOW_MACHINE])[1:] == pytest.approx((1.1, 1.1))
    # Of the ratios 1, 1, 8 the median is 1, their mean and the medians' ratio are not.
    assert paired.ratio_of([1, 4, 1], [1, 4, 8]).median == 1
    spread = [0.9, 0.95, 0.98, 0.99, 1.0, 1.01, 1.02, 1.05, 9.0]
    found = paired.ratio_of([1.0] * 9, spread)
    assert found.median == 1.0
    # The 95 % interval of the median of nine lies, by order statistics, between their second and eighth.
    assert 0.95 <= found.low <= 0.98
    assert 1.02 <= found.high <= 1.05
    few = [paired.ratio_of([1.0] * 9, spread, 20) for _ in range(8)]
    assert few == few[:1] * 8, "the same each time"
    with pytest.raises(ValueError, match="zip"):
        paired.ratio_of([1.0], [1.0, 2.0])


VERDICTS: list[tuple[tuple[float, float, float], tuple[float, float, float], str]] = [
    ((1.000, 0.995, 1.005), (1.0, 0.99, 1.01), "within"),
    ((1.010, 1.005, 1.015), (1.0, 0.99, 1.01), "within"),
    ((1.012, 1.005, 1.020), (1.0, 0.99, 1.01), "apart"),  # further than the control's widest end
    ((1.012, 1.005, 1.020), (1.0, 0.985, 1.01), "within"),  # which may be its lower one
    ((1.020, 1.011, 1.030), (1.0, 0.90, 1.10), "apart"),  # the interval does not reach
    ((1.020, 1.010, 1.030), (1.0, 0.90, 1.10), "within"),
    ((0.980, 0.970, 0.990), (1.0, 0.90, 1.10), "within"),
    ((0.980, 0.970, 0.989), (1.0, 0.90, 1.10), "better"),
    ((0.980, 0.970, 0.995), (1.0, 0.999, 1.001), "better"),
    ((0.990, 0.900, 1.020), (1.0, 0.999, 1.001), "apart"),  # perhaps better, perhaps not
    ((1.000, 0.500, 2.000), (1.0, 1.0, 1.0), "within"),
    ((1.001, 1.001, 1.001), (1.0, 1.0, 1.0), "apart"),
]


def check_verdicts(paired: Any) -> None:
    for ours, control, expected in VERDICTS:
        assert paired.verdict(paired.Ratio(*ours), paired.Ratio(*control)) == expected, (ours, control)


NOISE: list[tuple[tuple[float, float, float], tuple[float, float, float], bool]] = [
    ((1.0, 0.95, 1.05), (1.0, 0.95, 1.05), False),  # as wide as may be
    ((1.0, 0.90, 1.0), (1.0, 1.0, 1.10), False),
    ((1.0, 0.9499, 1.05), (1.0, 1.0, 1.0), True),
    ((1.0, 1.0, 1.0), (1.0, 0.95, 1.0501), True),
    ((1.5, 1.4, 1.6), (1.5, 1.4, 1.6), True),
]


def check_noise(paired: Any) -> None:
    """Either interval, by its width; where it lies does not matter."""
    for ours, control, expected in NOISE:
        found = paired.is_noisy(paired.Ratio(*ours), paired.Ratio(*control))
        assert found == expected, (ours, control)
    # 0.9 and 1.1 in turn, of B or of the control: noisy, and within by the rule.
    wide, still = [0.9, 1.1] * 5, [1.0] * 10
    for ours, control in ((wide, still), (still, wide), (still, still)):
        arms = paired.Arms()
        for turn, values in (("A", still), ("B", ours), ("A'", still), ("C", control)):
            arms.turns[turn] = [dict.fromkeys(paired.FIGURES, value) for value in values]
        judged = arms.judged()
        noisy = ours is wide or control is wide
        assert paired.noisy_of(judged) == (list(paired.FIGURES) if noisy else [])
        assert {found["verdict"] for found in judged.values()} == {"within"}


def check_schedule(paired: Any) -> None:
    turns = [turn for pair in range(4) for turn in paired.schedule(pair)]
    assert [turn for turn in turns if turn in "AB"] == list("ABBAABBA")
    assert [turn for turn in turns if turn not in "AB"] == ["A'", "C", "C", "A'"] * 2


def check_arms(paired: Any) -> None:
    """Which turns are divided by which, and that the control judges."""
    arms = paired.Arms()
    for turn, value in (("A", 1.0), ("B", 1.02), ("A'", 1.0), ("C", 1.03)):
        arms.turns[turn] = [dict.fromkeys(paired.FIGURES, value)] * 9
    judged = arms.judged()
    assert set(judged) == set(paired.FIGURES)
    for found in judged.values():
        assert (found["a"], found["b"]) == (1.0, 1.02)
        assert (found["ratio"], found["control"]) == ([1.02] * 3, [1.03] * 3)
        assert found["verdict"] == "apart", "its interval does not reach into 0.99 to 1.01"


CHECKS: list[Callable[[Any], None]] = [check_ratio, check_verdicts, check_noise, check_schedule, check_arms]
MUTANTS = [
    ("[b / a for", "[a / b for"),
    ("statistics.median(rng.choices", "statistics.mean(rng.choices"),
    ("Ratio(statistics.median(ratios)", "Ratio(statistics.mean(ratios)"),
    ("k=len(ratios)", "k=1"),
    ("random.Random(0)", "random.Random()"),
    ("cut = (1 - CONFIDENCE) / 2", "cut = 0.25"),
    ("max(abs(control.low - 1), abs(control.high - 1))", "abs(control.high - 1)"),
    ("max(abs(control.low - 1), abs(control.high - 1))", "max(control.low - 1, control.high - 1)"),
    ("ratio.low <= HIGH and ratio.high >= LOW", "True"),
    ("ratio.low <= HIGH and ratio.high >= LOW", "LOW <= ratio.low and ratio.high <= HIGH"),
    ("abs(ratio.median - 1) <= widest", "abs(ratio.median - 1) <= 0.01"),
    ("abs(ratio.median - 1) <= widest", "True"),
    ("if reaches and abs", "if reaches or abs"),
    ("return BETTER if ratio.median < 1 and ratio.high < HIGH else APART", "return APART"),
    ("ratio.median < 1 and ratio.high < HIGH", "ratio.median < 1"),
    ("round(ratio.high - ratio.low, 4) > WIDEST", "ratio.high - ratio.low > WIDEST"),
    ("round(ratio.high - ratio.low, 4) > WIDEST", "ratio.high - 1 > WIDEST / 2"),
    ("return any(round", "return all(round"),
    ("is_noisy(ours[name], control[name])", "is_noisy(ours[name])"),
    ("is_noisy(ours[name], control[name])", "is_noisy(control[name])"),
    ('if found["noisy"]]', 'if found["verdict"] == APART]'),
    ("if pair % 2 == 0 else", "if True else"),
    ('self.ratios("A", "B")', 'self.ratios("B", "A")'),
    ('self.ratios("A\'", "C")', 'self.ratios("A", "B")'),
]


@pytest.mark.parametrize("check", CHECKS)
def test_rules(paired: ModuleType, check: Callable[[Any], None]) -> None:
    check(paired)


@pytest.mark.parametrize(("right", "wrong"), MUTANTS)
def test_mutants_die(paired: ModuleType, right: str, wrong: str) -> None:
    must_die(paired, right, wrong, CHECKS)


@pytest.mark.parametrize(
    ("looks", "pairs"),
    [
        ([(1.0, False)], 9),
        ([(1.5, False), (1.0, False)], 15),
        ([(1.5, False)] * 9, 27),
        ([(0.5, False)], 9),
        ([(1.0, True), (1.0, False)], 15),
        ([(1.0, True), (1.5, False), (1.0, True), (1.0, True)], 27),
        ([(0.5, True)] * 9, 27),
    ],
    ids=["within", "more pairs help", "stays apart", "better", "noise ends", "one or the other", "noisy"],
)
def test_pairs_are_added_until_it_is_known(
    paired: ModuleType, monkeypatch: pytest.MonkeyPatch, looks: list[tuple[float, bool]], pairs: int
) -> None:
    """B takes looks[i] of A's time after the i-th look, and the figure is noisy or not."""
    arms, left = paired.Arms(), list(looks)
    rng = random.Random(3)

    def turn(tree: str, *_: Any) -> dict[str, float]:
        return dict.fromkeys(paired.FIGURES, 1 + rng.random() / 1e4)

    def judged() -> dict[str, dict[str, Any]]:
        ratio, noisy = left.pop(0)
        told = paired.verdict(paired.Ratio(ratio, ratio, ratio), paired.Ratio(1.0, 0.99, 1.01))
        return {"host_us": {"verdict": told, "noisy": noisy}}

    monkeypatch.setattr(paired, "run_turn", turn)
    monkeypatch.setattr(arms, "judged", judged)
    options = paired.arguments_of(["a", "b"])
    trees = {name: name for name in arms.turns}
    assert paired.compare(options, arms, trees, "") == pairs
    assert {len(turns) for turns in arms.turns.values()} == {pairs}


def test_fewer_pairs_than_nine_stay_fewer(paired: ModuleType) -> None:
    assert paired.arguments_of(["a", "b", "--pairs", "1"]).max_pairs == 1
    assert paired.arguments_of(["a", "b", "--pairs", "30"]).max_pairs == 30


def test_another_tree_is_refused(paired: ModuleType, tmp_path: Path) -> None:
    tree = paired.Tree(tmp_path, "abc")
    tree.check({"octavo": str(tmp_path / "src" / "octavo" / "__init__.py")})
    with pytest.raises(RuntimeError, match=r"octavo came from .*, not from"):
        tree.check({"octavo": str(ROOT / "src" / "octavo" / "__init__.py")})
    assert tree.environment["PYTHONPATH"] == f"{tmp_path}/tests/support/checkout:{tmp_path}/src"


def test_a_commit_that_is_none(paired: ModuleType) -> None:
    with pytest.raises(RuntimeError, match="git worktree add"), paired.tree_of("no-such-commit"):
        pass


def test_the_control_needs_a_commit(paired: ModuleType, tmp_path: Path) -> None:
    with pytest.raises(RuntimeError, match="has changes"), paired.copy_of(paired.Tree(tmp_path, "abc+")):
        pass


def test_an_extension_of_the_same_sources_is_taken(
    paired: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made: list[list[str]] = []
    heads = {"one": "1", "same": "1", "other": "2"}
    for name in heads:
        (tmp_path / name / "src" / "octavo" / "kernels").mkdir(parents=True)
        library = tmp_path / name / "src" / "octavo" / "kernels" / "_native.so"
        if name != "one":
            library.write_text(name)
    monkeypatch.setattr(
        paired, "git", lambda folder, *words: heads[folder.name] if words[0] == "rev-parse" else ""
    )
    monkeypatch.setattr(paired, "subprocess", SimpleNamespace(run=lambda command, **_: made.append(command)))
    one = paired.Tree(tmp_path / "one", "1")
    paired.built(one, [tmp_path / "other"])
    assert made == [["make", "-C", str(one.folder), "ext"]]
    paired.built(one, [tmp_path / "other", tmp_path / "same"])
    paired.built(one, [tmp_path / "other"])  # its own
    assert len(made) == 1
    assert (one.folder / "src" / "octavo" / "kernels" / "_native.so").read_text() == "same"


def test_a_turn(paired: ModuleType, smollm2_path: Path) -> None:
    """Every figure is there, and is of this checkout."""
    tree, settings = paired.Tree(ROOT, "here"), {"threads": 1, "quick": True}
    with TemporaryDirectory() as tiny:
        paired.golden_models.save("llama", Path(tiny))
        figures = paired.run_turn(tree, sys.executable, str(smollm2_path), tiny, settings)
        assert set(figures) == set(paired.FIGURES)
        assert all(value > 0 for value in figures.values())
        assert figures["host_us"] < 1e3 * figures["decode_32_ms"]
        with pytest.raises(RuntimeError, match="max_model_len 1024 is above the model's 512"):
            paired.run_turn(tree, sys.executable, tiny, tiny, settings)


def test_table_and_json(paired: ModuleType) -> None:
    arms = paired.Arms()
    for turn in arms.turns:
        arms.turns[turn] = [dict.fromkeys(paired.FIGURES, 2.0)] * 9
    lines = list(paired.table(arms.judged()))
    assert len(lines) == 1 + len(paired.FIGURES)
    assert all(line.endswith("within") and "1.0000 (1.0000-1.0000)" in line for line in lines[1:])
    assert json.loads(json.dumps(arms.judged())) == arms.judged()
    arms.turns["C"] = [{**figures, "host_us": 2.0 + i % 2} for i, figures in enumerate(arms.turns["C"])]
    lines = list(paired.table(arms.judged()))
    assert [line.split()[0] for line in lines if line.endswith("within, noisy")] == ["host_us"]
    assert lines[-1].startswith("NOISY: wider than 0.10 in host_us: ")
    assert math.isfinite(paired.resident(1) if Path("/proc/1/status").exists() else 0)
