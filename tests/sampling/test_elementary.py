"""exp and log: close to the truth, and the same bits however they are called."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from octavo.sampling.elementary import LOWEST, exp_negative, log


def test_exp_is_within_two_units_in_the_last_place() -> None:
    x = -np.random.default_rng(0).random(500_000).astype(np.float32) * -LOWEST
    x[:1000] = -np.logspace(-30, 0, 1000, dtype=np.float32)
    exact = np.exp(x.astype(np.float64))
    assert (np.abs(exp_negative(x) - exact) / np.spacing(exact.astype(np.float32))).max() < 2


def test_exp_at_its_ends() -> None:
    below = np.nextafter(LOWEST, np.float32(-100))
    x = np.array([0.0, -0.0, LOWEST, below, -1e30, -np.inf], np.float32)
    y = exp_negative(x)
    assert y[[0, 1, 3, 4, 5]].tolist() == [1, 1, 0, 0, 0]
    assert y[2] >= np.finfo(np.float32).tiny  # no denormals, which some machines flush


def test_log_is_within_three_units_in_the_last_place() -> None:
    u = np.random.default_rng(0).random(200_000)
    x = np.concatenate([1 - u, 1 - 2.0 ** -np.linspace(1, 53, 50_000), 1e9 * (1 + u), [1.0, 2.0, 2.0**-53]])
    exact = np.log(x.astype(np.longdouble))
    error = np.abs(log(x) - exact)
    unit = np.spacing(np.abs(exact.astype(np.float64)))
    assert (error <= 3 * unit).all()
    assert log(np.ones(1)).tolist() == [0.0]


def test_pinned_bits_so_that_every_machine_draws_alike() -> None:
    x = np.array([-1.0, -10.5, -0.3, -80.25], np.float32)
    assert exp_negative(x).view(np.uint32).tolist() == [1052531378, 937885203, 1061004867, 93681819]
    values = log(np.array([0.1, 3.7, 1e5, 0.9999])).tolist()
    assert [value.hex() for value in values] == [
        "-0x1.26bb1bbb55515p+1",
        "0x1.4eeee650ae550p+0",
        "0x1.7069e2aa2aa5bp+3",
        "-0x1.a3738d2cf1cc2p-14",
    ]


@pytest.mark.parametrize("size", [1, 3, 17, 1000])
def test_an_element_has_the_same_bits_in_any_array(size: int) -> None:
    """Libraries' exp and log take other ways for vectors and for their tails."""
    x = -np.random.default_rng(size).random(size).astype(np.float32) * 50
    assert exp_negative(x).tolist() == [float(exp_negative(x[i : i + 1])[0]) for i in range(size)]
    z = -x.astype(np.float64) + 1
    assert log(z).tolist() == [float(log(z[i : i + 1])[0]) for i in range(size)]


@given(st.floats(1e-300, 1e300))
def test_log_inverts_exp(x: float) -> None:
    assert float(log(np.array([x]))[0]) == pytest.approx(math.log(x), rel=1e-15, abs=1e-15)
