"""Weights cut between columns: what each of several devices would hold of a projection."""

from __future__ import annotations

import numpy as np
import pytest

from octavo.errors import CheckpointError
from octavo.kernels.weight import Weight
from support.kernels import CODED, LAYOUTS, grouped_weight, random_weight

KINDS = [kind for kind in (*LAYOUTS, *CODED) if "order" not in kind]


@pytest.mark.parametrize("kind", KINDS)
def test_columns_of_every_layout(kind: str) -> None:
    w = random_weight(np.random.default_rng(1), kind, 9, 384)
    dense = w.dequantize()
    for start, stop in ((0, 128), (128, 384), (256, 384)):
        part = w.columns(start, stop)
        assert part.layout is w.layout
        np.testing.assert_array_equal(part.dequantize(), dense[:, start:stop])
        np.testing.assert_array_equal(part.rows(slice(2, 5)).dequantize(), dense[2:5, start:stop])


@pytest.mark.parametrize(
    ("kind", "group", "start"),
    [("u4-zero", 64, 32), ("s8", 128, 64), ("nf4", 64, 32), ("f8-blocks", 128, 64)],
)
def test_a_group_is_not_cut(kind: str, group: int, start: int) -> None:
    rng = np.random.default_rng(1)
    w = random_weight(rng, kind, 9, 384) if kind in CODED else grouped_weight(rng, kind, 9, 384, group)
    with pytest.raises(CheckpointError, match=f"columns {start} to 384 cut a group of {group}"):
        w.columns(start, 384)


def test_an_order_is_not_cut() -> None:
    w: Weight = random_weight(np.random.default_rng(1), "u4-zero-order", 9, 384)
    with pytest.raises(CheckpointError, match=r"an order of their own \(act-order\) cannot be cut apart"):
        w.columns(0, 128)


def test_an_order_names_each_column_once() -> None:
    w = random_weight(np.random.default_rng(1), "u4-zero-order", 9, 64)
    assert w.order is not None
    order = w.order.copy()
    order[0] = order[1]
    with pytest.raises(CheckpointError, match="an order that does not name each column once"):
        Weight(w.layout, w.shape, w.values, w.scale, zero=w.zero, order=order)
