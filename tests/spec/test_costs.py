"""spec/costs.py: tables with steps, and what later steps say."""

from __future__ import annotations

import random

import pytest

from octavo.spec.costs import FORGOTTEN, CostTable, Load


def one(count: int, pairs: float = 0.0) -> Load:
    return Load(count, count, pairs)


def test_the_table_has_steps() -> None:
    table = CostTable({1: 1.0, 4: 1.3, 5: 2.0, 8: 2.3}, {1: 0.1, 8: 0.8}, 0.001)
    assert table.seconds(Load(1, 1)) == pytest.approx(1.1)
    assert table.seconds(Load(4, 1)) == pytest.approx(1.4)
    assert table.seconds(Load(5, 1)) == pytest.approx(2.1)
    assert table.seconds(Load(2, 1)) == pytest.approx(1.2)  # straight in between
    assert table.seconds(Load(10, 1)) == pytest.approx(2.6)  # and on from the last two
    assert table.seconds(Load(1, 8, 100)) == pytest.approx(1.9)


def test_what_disturbed_a_measurement_is_not_believed() -> None:
    table = CostTable({1: 1.0, 2: 7.0, 4: 1.3, 8: 9.0, 16: 2.0}, {1: 0.0, 2: 3.0, 3: 0.2})
    assert table.seconds(Load(2, 1)) == pytest.approx(1.3)
    assert table.seconds(Load(8, 2)) == pytest.approx(2.2)


@pytest.mark.parametrize("factor", [0.8, 1.25, 2.0])
def test_a_size_that_differs_is_learned(factor: float) -> None:
    table, draw = CostTable({1: 1.0, 8: 2.0}), random.Random(0)
    for _ in range(400):
        table.observe(one(1), draw.uniform(0.95, 1.05))
        table.observe(one(5), table.measured_at_start(one(5)) * factor * draw.uniform(0.95, 1.05))
    ratio = table.seconds(one(5)) / table.seconds(one(1))
    assert ratio == pytest.approx(factor * table.measured_at_start(one(5)), rel=0.08)
    assert 0 < table.error(one(5)) < 0.02


def test_a_machine_that_is_slower_is_so_for_all_sizes() -> None:
    table = CostTable({1: 1.0, 8: 2.0})
    for count in (1, 5, 1, 5, 1, 5, 1, 5) * 5:
        table.observe(one(count), table.measured_at_start(one(count)))
    before = table.seconds(one(5)) / table.seconds(one(1))
    for _ in range(40):
        table.observe(one(1), 1.5)
    assert table.seconds(one(1)) == pytest.approx(1.5, rel=0.05)
    assert table.seconds(one(5)) / table.seconds(one(1)) == pytest.approx(before, rel=0.15)


def test_a_bad_moment_is_forgotten() -> None:
    table = CostTable({1: 1.0, 8: 2.0})
    for _ in range(20):
        table.observe(one(1), 1.0)
    for _ in range(3):
        table.observe(one(3), 40.0)
    worse = table.seconds(one(3))
    assert 1.1 < worse / table.measured_at_start(one(3)) < 2.5  # a step says so much and no more
    for _ in range(4 * FORGOTTEN):
        table.observe(one(1), 1.0)
    assert table.seconds(one(3)) == pytest.approx(table.measured_at_start(one(3)), rel=0.1)


def test_unknown_times_say_nothing() -> None:
    table = CostTable({1: 1.0})
    table.observe(one(1), 0.0)
    assert table.seconds(one(1)) == 1.0
    assert table.error(one(1)) == 0.0
    assert table.seconds(one(7)) == 1.0


def test_growing_loads_are_each_known() -> None:
    """Of no token too, which is of no size that a step has."""
    table = CostTable({1: 1.0, 4: 1.5, 32: 4.0}, {1: 0.1, 32: 2.0}, pair_s=0.01)
    for count in range(200):
        table.observe(one(1 + count % 9), 2.0 + 0.1 * (count % 9))
    loads = [Load(count, count, 3.0 * count) for count in range(40)]
    assert table.growing(loads[0], [load.pairs for load in loads]) == [table.known(load) for load in loads]
    drift, other = (table.seconds(load) / table.measured_at_start(load) for load in (loads[0], loads[39]))
    assert drift == pytest.approx(other)
    assert drift > 1.01
