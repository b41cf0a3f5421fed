"""Trees of drafts on the native kernels: bit for bit each path alone, and near the reference."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from octavo.kernels.cpu import CpuBackend, instruction_sets
from octavo.kernels.forward_batch import ForwardBatch
from octavo.kernels.ops import F32, AttentionSpec, Inputs, Rotary, Rows, Sight
from octavo.kernels.program import Buffer
from octavo.kernels.reference import ReferenceBackend
from octavo.kernels.trees import masks_of
from support.kernels import limits_of
from support.tree_cases import TreeCase, random_parents

BACKENDS = {f"{isa}-{threads}": CpuBackend(threads, isa) for isa in instruction_sets() for threads in (1, 2)}
REFERENCE = ReferenceBackend()
SLOPES = np.linspace(0.02, 0.3, 6).astype(np.float32)
BIAS = np.linspace(-1, 1, 6 * 9).reshape(6, 9).astype(np.float32)
SPECS = [
    AttentionSpec(6, 2, 32, 32, 0.2),
    AttentionSpec(6, 2, 32, 48, 0.2, window=7, softcap=5.0),
    AttentionSpec(6, 1, 32, 16, 0.2, window=90, alibi_slopes=SLOPES, sinks=SLOPES),
    AttentionSpec(6, 6, 24, 40, 0.2, relative_bias=BIAS),
]


def rotary() -> Rotary:
    angles = np.outer(np.arange(900), 0.1 ** (np.arange(12) / 12)).astype(np.float32)
    return Rotary(np.cos(angles), np.sin(angles))


def native(backend: CpuBackend, batch: ForwardBatch, apply: Any, qkv: F32) -> F32:
    ops = backend.eager(batch, limits_of(batch))
    return ops.value(apply(ops, Inputs(batch), [ops.tensor(qkv, Buffer(Rows.TOKENS, qkv.shape[1]))])).copy()


@given(
    st.integers(0, 2**32),
    st.sampled_from(list(BACKENDS)),
    st.sampled_from(SPECS),
    st.sampled_from([1, 3, 16, 32]),
    st.sampled_from(["f32", "f16", "bf16", "int8", "int16"]),
)
@settings(max_examples=60, deadline=None)
def test_a_token_of_a_tree_is_the_last_of_its_path(
    seed: int, name: str, spec: AttentionSpec, page: int, dtype: str
) -> None:
    rng = np.random.default_rng(seed)
    trees = [random_parents(rng, int(rng.integers(1, 12))), None, random_parents(rng, 3)]
    case = TreeCase(seed, rng.integers(0, 290, 3).tolist(), trees, spec, page, dtype, rotary())
    got = case.run(BACKENDS[name], native)
    np.testing.assert_array_equal(got, case.alone(BACKENDS[name], native))
    near = 3e-4 if dtype.startswith("int") else 1e-4  # the reference rounds neither queries nor weights
    np.testing.assert_allclose(got, case.run(REFERENCE), atol=near, rtol=near)


@pytest.mark.parametrize("backend", BACKENDS.values(), ids=BACKENDS)
def test_trees_of_more_than_a_word(backend: CpuBackend) -> None:
    """Chains beyond 64 tokens, bushes, and a tree that begins with its sequence."""
    for parents in ([-1, *range(99)], [-1] * 70, [t - 2 if t > 1 else -1 for t in range(140)]):
        case = TreeCase(7, [250, 0], [parents, parents], SPECS[0], dtype="f16")
        np.testing.assert_allclose(case.run(backend, native), case.run(REFERENCE), atol=1e-5)


def test_what_the_kernels_cannot_follow_is_refused() -> None:
    backend = next(iter(BACKENDS.values()))
    case = TreeCase(1, [4], [[-1, 0, 0]], SPECS[0])
    layer = backend.kv_cache([case.kv], case.num_pages, case.page).layer(0)
    batch, qkv = case.step
    case.spec = replace(case.spec, sight=Sight.WHOLE)
    with pytest.raises(ValueError, match="only causal attention has trees"):
        native(backend, batch, case.apply(layer), qkv)
    case.spec = replace(case.spec, sight=Sight.CAUSAL)
    for masks, message in (
        (np.uint64([[1], [3], [9]]), "names a token that its step lacks"),
        (np.uint64([[1], [3], [7]]), "its position disagree"),
        (masks_of([-1, 0]), "a row of words for each token"),
    ):
        object.__setattr__(batch, "tree_masks", masks)  # past the batch's own check
        with pytest.raises(ValueError, match=message):
            native(backend, batch, case.apply(layer), qkv)
