"""Models on the same windows of a text: sums against their definition, and what ends a comparison."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from octavo.bench.report.chart import Series
from octavo.errors import InvalidRequestError, OctavoError
from octavo.lab import perplexity, quality
from octavo.lab.perplexity import Compared, Measured, charts, compare, cut, rows_of
from octavo.lab.quality import Quality, TextIds
from support.source_mutants import must_die

WINDOWS = [[1, 2, 3, 4, 5, 6], [2, 3, 4, 5, 6, 0], [0, 1, 0, 1, 0, 1]]
VOCAB = 7


class Table:
    """Gives each token's row of a table, and counts; may end, break or be too narrow."""

    bits, weight_bytes = 4.5, 2_000_000

    def __init__(self, seed: int, width: int = VOCAB) -> None:
        self.rows = np.random.default_rng(seed).standard_normal((VOCAB, width)).astype(np.float32)
        self.asked: list[tuple[list[int], int]] = []
        self.ends_at = -1

    def logits(self, ids: Sequence[int], first: int) -> Any:
        if len(self.asked) == self.ends_at:
            raise KeyboardInterrupt
        self.asked.append((list(ids), first))
        return self.rows[list(ids[first:])]


def by_hand(table: Table, other: Table) -> tuple[float, float, float]:
    """Perplexity, KL and agreement over all windows, a position at a time."""
    nll, kl, same, count = 0.0, 0.0, 0, 0
    for window in WINDOWS:
        for position in range(3, 5):  # the second half, but for what is after the end
            q, p = (np.exp(each.rows[window[position]].astype(float)) for each in (table, other))
            q, p = q / q.sum(), p / p.sum()
            nll -= math.log(q[window[position + 1]])
            kl += float((p * np.log(p / q)).sum())
            same += int(q.argmax() == p.argmax())
            count += 1
    return math.exp(nll / count), kl / count, same / count


def test_every_figure_by_hand() -> None:
    a, b = Table(1), Table(2)
    found = compare({"a": a, "b": b}, "b", WINDOWS, None)
    assert a.asked == b.asked == [(window[:-1], 3) for window in WINDOWS]
    first, second = rows_of(found, {"a": a, "b": b}, "b")
    ppl, kl, same = by_hand(a, b)
    assert (first.perplexity, first.kl, first.agreement) == pytest.approx((ppl, kl, same), rel=1e-6)
    assert (second.perplexity, second.kl, second.agreement) == pytest.approx(
        (by_hand(b, b)[0], 0, 1), rel=1e-6
    )
    assert (first.positions, first.bits, first.weights_mb) == (6, 4.5, 2.0)
    assert (found.windows, found.tokens, found.interrupted) == (3, 15, False)


def test_without_a_reference_nothing_is_compared() -> None:
    found = compare({"a": Table(1)}, None, WINDOWS, None)
    (row,) = rows_of(found, {"a": Table(1)}, None)
    assert (row.kl, row.agreement, row.flips) == (None, None, None)
    assert row.perplexity == pytest.approx(by_hand(Table(1), Table(1))[0], rel=1e-6)


def test_what_stands_before_a_text_takes_the_first_place() -> None:
    table = Table(1)
    compare({"a": table}, None, WINDOWS, 6)
    assert [ids[0] for ids, _ in table.asked] == [6, 6, 6]
    assert [ids[1:] for ids, _ in table.asked] == [window[1:-1] for window in WINDOWS]


def test_ctrl_c_leaves_whole_windows_of_all() -> None:
    a, b = Table(1), Table(2)
    b.ends_at = 2  # a has read the third window
    told: list[tuple[int, int]] = []
    found = compare({"a": a, "b": b}, "b", WINDOWS, None, lambda done, total: told.append((done, total)))
    assert (found.windows, found.interrupted, told) == (2, True, [(1, 3), (2, 3)])
    whole = compare({"a": Table(1), "b": Table(2)}, "b", WINDOWS[:2], None)
    assert found.quality == whole.quality
    assert found.tokens == whole.tokens == 10


def test_ctrl_c_before_the_first_window_ends() -> None:
    table = Table(1)
    table.ends_at = 0
    with pytest.raises(KeyboardInterrupt):
        compare({"a": table}, None, WINDOWS, None)


def test_what_cannot_be_compared_is_said() -> None:
    broken = Table(1)
    broken.rows[4] = np.nan
    with pytest.raises(OctavoError, match="a gives logits that are not finite in window 1"):
        compare({"a": broken}, None, WINDOWS, None)
    with pytest.raises(InvalidRequestError, match="a has logits of 7 tokens and b of 8: divergence"):
        compare({"a": Table(1), "b": Table(2, 8)}, "b", WINDOWS, None)
    with pytest.raises(InvalidRequestError, match=r"t\.txt has 3 tokens, and a window 4: give a longer text"):
        cut(TextIds([1, 2, 3], None), 4, None, "t.txt")


def test_the_rate_is_of_each_one_s_own_time() -> None:
    found = Compared(2, 100, {"a": Quality(), "b": Quality()}, {"a": 2.0, "b": 0.5})
    assert (found.rate("a"), found.rate("b")) == (50.0, 200.0)


def test_the_error_is_that_of_a_mean() -> None:
    """exp(x) of a mean x of four known numbers: by the definition of a standard error."""
    each = np.array([1.0, 2.0, 4.0, 5.0])
    found = Quality(4, float(each.sum()), float((each * each).sum()))
    expected = math.exp(3.0) * float(each.std(ddof=1)) / 2
    assert found.perplexity_error == pytest.approx(expected, rel=1e-12)
    assert Quality(1, 1.0, 1.0).perplexity_error == math.inf


def check_given_and_scored(module: Any) -> None:
    """The second half is scored, each row by the id after it."""
    assert module.given_and_scored([3, 4, 5, 6], 2, None) == ([3, 4, 5], [6])
    assert module.given_and_scored([3, 4, 5, 6, 7, 8], 3, 1) == ([1, 4, 5, 6, 7], [7, 8])


def check_sums(module: Any) -> None:
    a, b = Table(1), Table(2)
    found = module.Quality()
    for window in WINDOWS:
        found.add(a.rows[window[3:5]], b.rows[window[3:5]], window[4:])
    assert (found.perplexity, found.mean_kl, found.agreement) == pytest.approx(by_hand(a, b), rel=1e-6)
    more = differences(a, b)
    assert found.over == pytest.approx(math.exp(more.mean()), rel=1e-6)
    assert found.over_error == pytest.approx(found.over * more.std(ddof=1) / math.sqrt(len(more)), rel=1e-6)
    twice = found + found
    assert (twice.positions, twice.perplexity, twice.mean_kl) == (
        12, pytest.approx(found.perplexity), pytest.approx(found.mean_kl),
    )  # fmt: skip


def differences(a: Any, b: Any) -> Any:
    """What a finds less likely than b, of each scored position, in nats."""
    found = []
    for window in WINDOWS:
        for row, target in ((window[3], window[4]), (window[4], window[5])):
            pair = [table.rows[row] - np.log(np.exp(table.rows[row]).sum()) for table in (a, b)]
            found.append(pair[1][target] - pair[0][target])
    return np.array(found)


def test_checks_pass_on_the_module_itself() -> None:
    check_given_and_scored(quality)
    check_sums(quality)


@pytest.mark.parametrize(
    ("right", "wrong"),
    [
        ("given[first + 1 :]", "given[first:]"),
        ("given[first + 1 :]", "given[first + 1 :][1:]"),
        ("given[:-1], given", "given, given"),
        ("[before, *window[1:]]", "[before, *window]"),
        ("np.exp(p) * (p - q)", "np.exp(q) * (q - p)"),
        ("np.exp(self.nll / self.positions)", "np.exp2(self.nll / self.positions)"),
        ("chosen == reference.argmax(axis=1)", "chosen != reference.argmax(axis=1)"),
        ("self.kl / self.positions", "self.kl"),
        ("more = each + p[", "more = each - p["),
        ("(more * more).sum()", "more.sum()"),
        ("self._error(self.beside, self.beside_squares)", "self._error(self.nll, self.squares)"),
    ],
)
def test_mutants_die(right: str, wrong: str) -> None:
    must_die(quality, right, wrong, [check_given_and_scored, check_sums])


def test_charts_of_the_table() -> None:
    row = Measured("m", 4.5, 1.0, 6, 9.0, 0.1, 1.01, 0.01, 0.02, 0.9, 1, 50.0)
    exact = Measured("m, float32", 32.0, 8.0, 6, 8.9, 0.1, 1.0, 0.0, 0.0, 1.0, 0, 9.0)
    size, speed = charts([row, exact])
    assert (size.series, size.log) == ((Series("m", ((4.5, 0.02),)),), "y")
    assert speed.series == (Series("m", ((50.0, 0.02),)),)
    alone = [replace(row, kl=None), replace(exact, kl=None)]
    assert charts(alone)[0].series == (Series("m", ((4.5, 9.0),)), Series("m, float32", ((32.0, 8.9),)))


def test_the_command_and_the_benchmark_share_the_loop() -> None:
    """The windows' definition stands once: whoever measures calls it."""
    assert perplexity.given_and_scored is quality.given_and_scored
