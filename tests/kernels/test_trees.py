"""Tree masks: what they say, what is refused, and the reference's attention under them."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from octavo.kernels.ops import AttentionSpec, Rotary, Sight
from octavo.kernels.reference import ReferenceBackend
from octavo.kernels.trees import masks_of, seen
from support.tree_cases import TreeCase, random_parents

BACKEND = ReferenceBackend()
SLOPES = np.float32([0.1, 0.3, 0.2, 0.05])
BIAS = np.linspace(-1, 1, 4 * 9).reshape(4, 9).astype(np.float32)
SPECS = [
    AttentionSpec(4, 2, 8, 8, 0.3),
    AttentionSpec(4, 2, 8, 12, 0.3, window=4, softcap=5.0),
    AttentionSpec(4, 1, 8, 8, 0.3, alibi_slopes=SLOPES, sinks=SLOPES),
    AttentionSpec(4, 4, 8, 8, 0.3, relative_bias=BIAS),
]


def rotary() -> Rotary:
    angles = np.outer(np.arange(200), [1.0, 0.3, 0.1, 0.01]).astype(np.float32)
    return Rotary(np.cos(angles), np.sin(angles))


def test_masks() -> None:
    assert masks_of([-1, 0, 0, 1])[:, 0].tolist() == [0b1, 0b11, 0b101, 0b1011]
    deep = masks_of([-1, *range(69)])
    assert deep.shape == (70, 2)
    assert deep[69].tolist() == [2**64 - 1, 0b111111]
    np.testing.assert_array_equal(seen(deep, 70), np.tril(np.ones((70, 70), bool)))
    assert seen(masks_of([-1, 0]), 70)[:, 2:].any() == False  # noqa: E712
    with pytest.raises(ValueError, match="token 1 of a tree has the parent 1"):
        masks_of([-1, 1])
    with pytest.raises(ValueError, match="need 2 words, not 1"):
        masks_of([-1] * 65, 1)


@given(st.integers(0, 2**32), st.sampled_from(SPECS))
@settings(max_examples=40, deadline=None)
def test_a_token_of_a_tree_is_the_last_of_its_path(seed: int, spec: AttentionSpec) -> None:
    rng = np.random.default_rng(seed)
    trees = [random_parents(rng, int(rng.integers(1, 12))), None, random_parents(rng, 3)]
    case = TreeCase(seed, rng.integers(0, 30, 3).tolist(), trees, spec, 4, "int8", rotary())
    np.testing.assert_allclose(case.run(BACKEND), case.alone(BACKEND), atol=2e-6, rtol=2e-5)


@given(st.integers(0, 2**32))
@settings(max_examples=20, deadline=None)
def test_equals_a_dense_mask(seed: int) -> None:
    """softmax over everything stored, in f64, with a matrix of what each token may see."""
    rng = np.random.default_rng(seed)
    parents, length = random_parents(rng, int(rng.integers(1, 70))), int(rng.integers(0, 20))
    case = TreeCase(seed, [length], [parents], AttentionSpec(2, 1, 8, 8, 0.3))
    rows = np.concatenate([*case.before, *case.after]).astype(np.float64)
    q, k, v = np.split(rows, [16, 24], axis=1)
    allowed = np.tril(np.ones((len(rows), len(rows)), bool))
    allowed[length:, length:] = False
    for token, path in enumerate(case.paths[0]):
        allowed[length + token, [length + t for t in path]] = True
    scores = np.where(allowed, q.reshape(-1, 2, 8).transpose(1, 0, 2) @ k.T * 0.3, -np.inf)
    weights = np.exp(scores - scores.max(axis=2, keepdims=True))
    want = (weights / weights.sum(axis=2, keepdims=True) @ v).transpose(1, 0, 2).reshape(len(rows), -1)
    np.testing.assert_allclose(case.run(BACKEND), want[length:], atol=1e-5)


def test_the_test_sees_a_forgotten_mask() -> None:
    """The mutant: siblings in each other's sight; and one whose keys lie at their slots' positions."""
    case = TreeCase(1, [10], [[-1, 0, 0, 0, 1]], SPECS[2])
    want, (batch, rows) = case.alone(BACKEND), case.step
    chain = np.arange(10, 15, dtype=np.int32)
    for wrong in (
        replace(batch, tree_masks=None),
        replace(batch, positions=chain, tree_masks=masks_of([-1, 0, 1, 2, 3])),
    ):
        case.step = wrong, rows
        assert np.abs(case.run(BACKEND) - want).max() > 1e-2


@pytest.mark.parametrize(
    ("masks", "positions", "message"),
    [
        ([[1], [3], [5]], [4, 5, 6], "sequence 0: a tree's token is one position after its parent"),
        ([[1], [3], [5]], [5, 6, 6], "one position after its parent"),
        ([[1], [1], [5]], [4, 5, 5], "sees itself, its parent"),
        ([[1], [3], [6]], [4, 5, 6], "what its parent sees"),
        ([[1], [3], [13]], [4, 5, 5], "what its parent sees"),
        ([[3], [3], [5]], [4, 5, 5], "what its parent sees"),
        ([[0], [3], [5]], [4, 5, 5], "what its parent sees"),
        ([[0], [0], [0]], [4, 5, 5], "has no tree, and positions that are not consecutive"),
        ([[1], [3]], [4, 5, 5], r"must be uint64 \[tokens, words\]"),
        (np.zeros((3, 0)), [4, 5, 5], r"must be uint64 \[tokens, words\]"),
    ],
)
def test_what_is_no_tree_is_refused(masks: object, positions: list[int], message: str) -> None:
    batch, _ = TreeCase(1, [4], [[-1, 0, 0]], SPECS[0]).step
    replace(batch, tree_masks=np.array([[1], [3], [5]], np.uint64), positions=np.int32([4, 5, 5]))
    with pytest.raises(ValueError, match=message):
        replace(batch, tree_masks=np.array(masks, np.uint64), positions=np.array(positions, np.int32))


def test_too_few_bits_are_refused() -> None:
    batch, _ = TreeCase(1, [4], [[-1] * 65], SPECS[0]).step
    assert batch.tree_masks is not None
    with pytest.raises(ValueError, match="has 65 tokens, its tree masks 64 bits"):
        replace(batch, tree_masks=np.ascontiguousarray(batch.tree_masks[:, :1]))
    with pytest.raises(ValueError, match="not int32"):
        replace(batch, tree_masks=batch.tree_masks.astype(np.int32))


def test_only_causal_attention_has_trees() -> None:
    case = TreeCase(1, [4], [[-1, 0, 0]], SPECS[0])
    case.spec = replace(case.spec, sight=Sight.WHOLE)
    with pytest.raises(ValueError, match="only causal attention has trees"):
        case.run(BACKEND)
