"""Triton's attention under tree masks: each token as the last of its own path."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from octavo.kernels.cuda.buckets import Form, Forms
from octavo.kernels.ops import AttentionSpec, Limits, Rotary, Sight
from support.cuda import REFERENCE, interpreted, run
from support.tree_cases import TreeCase, random_parents

# NumPy warns of infinities under the interpreter; a GPU does not.
pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning")

SLOPES = np.float32([0.1, 0.3, 0.2, 0.05])
BIAS = np.linspace(-1, 1, 4 * 9).reshape(4, 9).astype(np.float32)
SPECS = [
    AttentionSpec(4, 2, 16, 16, 0.25),
    AttentionSpec(4, 2, 16, 16, 0.25, window=5, sinks=SLOPES),
    AttentionSpec(4, 1, 16, 24, 0.25, alibi_slopes=SLOPES, softcap=5.0),
    AttentionSpec(4, 4, 16, 16, 0.25, relative_bias=BIAS),
]


@pytest.mark.parametrize("exact", [False, True])
@pytest.mark.parametrize("which", range(len(SPECS)))
def test_trees_beside_a_plain_chunk(which: int, exact: bool) -> None:
    """Masked, or gathered; in one split and in several; a tree that crosses words and pages."""
    rng = np.random.default_rng(which)
    backend = interpreted(exact=exact, fixed_split=32, sms=(1, 16)[which % 2])
    angles = np.outer(np.arange(200), 0.5 ** np.arange(8)).astype(np.float32)
    trees = [random_parents(rng, 35 if which == 0 else 9), None, [-1], [-1, 0, 0, 1, 2, 2]]
    case = TreeCase(
        which, [5, 40, 0, 37], trees, SPECS[which], 4, ("f32", "int8")[which % 2],
        Rotary(np.cos(angles), np.sin(angles)),
    )  # fmt: skip
    want = case.alone(REFERENCE)
    np.testing.assert_allclose(case.run(backend, run), want, atol=2e-5, rtol=2e-5)


def test_the_sum_is_that_of_the_path_alone() -> None:
    """Bit-exact mode. To 1e-6 here: the BLAS under the interpreter adds by a row's place in its tile.

    `make gpu-check` compares bits.
    """
    spec, backend = SPECS[1], interpreted(exact=True, fixed_split=32)
    case = TreeCase(3, [30], [[-1, 0, 0, 2]], spec, 16, "f16")
    np.testing.assert_allclose(case.run(backend, run), case.alone(backend, run), rtol=0, atol=2e-6)


def test_a_tree_is_no_decode_step() -> None:
    batch, _ = TreeCase(1, [4], [[-1]], SPECS[0]).step
    forms = Forms(Limits(8, 8, 8, 8))
    assert forms.of(batch) == Form(1, 1, words=1)
    assert forms.of(replace(batch, tree_masks=None)) == Form(1, 1)


def test_only_causal_attention_has_trees() -> None:
    case = TreeCase(1, [4], [[-1, 0, 0]], SPECS[0])
    case.spec = replace(case.spec, sight=Sight.WHOLE)
    with pytest.raises(ValueError, match="only causal attention has trees"):
        case.run(interpreted(), run)
