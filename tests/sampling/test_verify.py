"""The p/q test keeps the target's distribution.

The statistical half plays 200,000 trials of a 16-word Markov model, and plays them again with the
faults that implementations are known for: each of these mutants must be caught.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import numpy as np
import pytest

from octavo.params import SampledToken, SamplingParams
from octavo.sampling import RowError, Sampler, SamplingRows, Stream, uniform, verify
from octavo.sampling.verify import Children, categorical, next_tokens, noise_of, tokens_by_rejection
from support.chi_square import CHANCE, deviation

# --- the arithmetic of one decision -----------------------------------------------------------------------


def one(p: Sequence[float], children: Sequence[int], q: Sequence[float] | None, u: Sequence[float]) -> int:
    """The next token at one node: u has a number for each child, and the one to draw by."""
    return int(
        next_tokens(
            np.array([p], np.float64),
            np.array([children], np.int64).reshape(1, -1),
            None if q is None else np.array([[q] * len(children)], np.float64),
            np.array([u[:-1]]).reshape(1, -1),
            np.array([u[-1]]),
        )[0]
    )


def test_a_token_of_probability_zero_is_never_accepted_not_even_at_u_zero() -> None:
    assert one([0.0, 1.0], [0], [0.5, 0.5], [0.0, 0.0]) == 1
    assert one([0.0, 1.0], [0], None, [0.0, 0.0]) == 1


def test_mutant_acceptance_by_less_or_equal_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(verify, "accepts", lambda u, p, q: u * q <= p)
    with pytest.raises(AssertionError):
        test_a_token_of_probability_zero_is_never_accepted_not_even_at_u_zero()


def test_a_rejected_draft_is_replaced_from_the_residual() -> None:
    p, q = [0.1, 0.2, 0.7], [0.8, 0.1, 0.1]
    # max(0, p - q) = [0, 0.1, 0.6]: the border is at 1/7
    assert one(p, [0], q, [0.126, 0.14]) == 1
    assert one(p, [0], q, [0.126, 0.15]) == 2
    assert one(p, [0], q, [0.124, 0.15]) == 0


def test_of_chosen_siblings_each_is_accepted_as_often_as_it_is_likely() -> None:
    """After the first of three was refused, the second has two thirds of what is left."""
    p = [0.4, 0.4, 0.2]
    assert one(p, [0, 1], None, [0.39, 0.9, 0.9]) == 0
    assert one(p, [0, 1], None, [0.41, 0.66, 0.9]) == 1
    assert one(p, [0, 1], None, [0.41, 0.67, 0.0]) == 2


def test_a_zero_residual_falls_back_to_the_target() -> None:
    p = [0.25, 0.75]
    assert one(p, [0], p, [1.0, 0.3]) == 1  # u = 1 forces what rounding may do


@pytest.mark.parametrize(("child", "u", "token"), [(1, 0.99, 1), (0, 0.01, 1), (2, 0.01, 1)])
def test_greedy_targets_accept_their_argmax_alone(child: int, u: float, token: int) -> None:
    assert one([0, 1, 0], [child], [1 / 3] * 3, [u, 0.5]) == token
    assert one([0, 1, 0], [child], None, [u, 0.5]) == token


def test_no_drafts_is_a_plain_draw() -> None:
    p = np.random.default_rng(0).dirichlet(np.ones(9))
    for u in np.linspace(0, 1, 50, endpoint=False):
        assert one(p.tolist(), [], None, [u]) == int(np.searchsorted(p.cumsum(), u, "right"))


def test_categorical_never_draws_what_has_no_probability() -> None:
    p = np.array([[0, 0.25, 0, 0.75, 0]])
    last = 1 - 2.0**-53
    assert [int(categorical(p, np.array([u]))[0]) for u in (0.0, 0.2499, 0.25, last, 1.0)] == [1, 1, 3, 3, 3]


def test_noise_is_keyed_by_position_and_told_apart_by_sibling_and_stream() -> None:
    accept, last = noise_of([5, 6], [0, 1], [40, 7], 3)
    assert accept.shape == (2, 3)
    assert last.shape == (2,)
    assert len({*accept.reshape(-1).tolist(), *last.tolist()}) == 8
    assert accept[1, 1] == uniform(6, 1, 7, Stream.ACCEPT, 1)[0]
    assert last[1] == uniform(6, 1, 7, Stream.TARGET)[0]


# --- rows of a batch --------------------------------------------------------------------------------------


@pytest.mark.parametrize("sampler", [Sampler()], ids=["reference"])
def test_rows_that_cannot_draw_are_errors_and_scores_are_the_samplers(sampler: Sampler) -> None:
    rows = SamplingRows(3, 4)
    for row in range(3):
        rows.add(row, SamplingParams(temperature=0, logprobs=row - 1 if row else None), 1, 0, [0], 1)
    logits = np.array([[0, 1, 2, 3], [3, 2, 1, 0], [np.nan, 0, 0, 0]], np.float32)
    batch = rows.batch([0, 1, 2], [1, 1, 1])
    chosen: list[Children] = [([1, 3], None), ([0], None), ([2], None)]
    first, second, third = tokens_by_rejection(sampler, logits, batch, chosen)
    assert first == SampledToken(3)
    assert second == sampler.sample(logits, batch)[1]
    assert isinstance(third, RowError)


# --- the distribution -------------------------------------------------------------------------------------

WORDS, TRIALS, START = 16, 200_000, 0
FEW = 20_000
_RNG = np.random.default_rng(42)
_LOGITS = _RNG.standard_normal((WORDS, WORDS)) * 1.5


def softmax(z: np.ndarray) -> np.ndarray:
    weights = np.exp(z - z.max(axis=-1, keepdims=True))
    return weights / weights.sum(axis=-1, keepdims=True)


TARGET = softmax(_LOGITS)  # row w: what follows word w
OPPOSED = softmax(-_LOGITS)  # the worst drafter
SIMILAR = softmax(_LOGITS + _RNG.standard_normal((WORDS, WORDS)))
CHAIN, TREE = (-1, 0, 1), (-1, -1, -1, 0, 0, 1)


@dataclasses.dataclass(frozen=True)
class Fault:
    """What a mutant does wrong outside of verify's functions.

    Attributes:
        shared_noise: the drafter draws by the number that the residual is drawn by.
        duplicate_siblings: a sibling may be drawn again; elders_in_q: q does not say that it may not.
        late: everything is drawn by the noise of a later position.
    """

    shared_noise: bool = False
    duplicate_siblings: bool = False
    elders_in_q: bool = False
    late: int = 0


def depths_of(parents: Sequence[int]) -> list[int]:
    """Of node 0 and each draft."""
    depths = [0]
    for parent in parents:
        depths.append(depths[parent + 1] + 1)
    return depths


def drafted(
    parents: Sequence[int], drafter: np.ndarray, last_words: np.ndarray, position: np.ndarray, fault: Fault
) -> tuple[np.ndarray, np.ndarray]:
    """Tokens [R, N] drawn from Stream.DRAFT, siblings without their elders, and q [R, N, V]."""
    rows, depths = np.arange(len(last_words)), depths_of(parents)
    words, tokens = [last_words], np.zeros((len(rows), len(parents)), np.int64)
    told = np.zeros((len(rows), len(parents), WORDS))
    for child, parent in enumerate(parents):
        whole = drafter[words[parent + 1]]
        elders = [i for i in range(child) if parents[i] == parent]
        rest = whole.copy()
        for elder in elders:
            rest[rows, tokens[:, elder]] = 0
        rest /= rest.sum(axis=1, keepdims=True)
        stream = Stream.TARGET if fault.shared_noise else Stream.DRAFT
        u = uniform(rows, 0, position + depths[parent + 1], stream, len(elders))
        tokens[:, child] = categorical(whole if fault.duplicate_siblings else rest, u)
        told[:, child] = whole if fault.elders_in_q else rest
        words.append(tokens[:, child])
    return tokens, told


def emitted_by(
    parents: Sequence[int], tokens: np.ndarray, p: np.ndarray, q: np.ndarray | None, seeds: np.ndarray,
    position: np.ndarray,
) -> np.ndarray:  # fmt: skip
    """What R rows emit [R, D + 1], -1 after the last, where all have drafts of one shape; p [R, N + 1, V]."""
    depths, at = depths_of(parents), np.zeros(len(tokens), np.int64)
    found = np.full((len(tokens), max(depths) + 1), -1, np.int64)
    for node in range(len(parents) + 1):  # parents come before their children
        here = np.flatnonzero(at == node)
        children = [child for child, parent in enumerate(parents) if parent + 1 == node]
        noise = noise_of(seeds[here], np.zeros_like(here), position[here] + depths[node], len(children))
        drawn_from = None if q is None else q[here][:, children]
        token = verify.next_tokens(p[here, node], tokens[here][:, children], drawn_from, *noise)
        found[here, depths[node]] = token
        for child in reversed(children):
            at[here[tokens[here, child] == token]] = child + 1
        at[here[at[here] == node]] = -1
    return found


def play(
    parents: Sequence[int], drafter: np.ndarray, fault: Fault = Fault(), trials: int = TRIALS
) -> tuple[np.ndarray, float]:
    """The first three words [trials, 3] after START, and the mean number of words per verification."""
    words = np.full((trials, 12), -1, np.int64)
    length = np.zeros(trials, np.int64)
    emitted_words, verifications = 0, 0
    going = np.arange(trials)  # seeds, too: a trial's noise follows from its own positions alone
    while len(going):
        last = np.where(length > 0, words[np.arange(trials), np.maximum(length - 1, 0)], START)
        tokens, q = drafted(parents, drafter, last, length, fault)
        p = np.stack([TARGET[last], *(TARGET[tokens[:, i]] for i in range(len(parents)))], axis=1)
        position = length[going] + fault.late * (length[going] > 0)
        emitted = emitted_by(parents, tokens[going], p[going], q[going], going, position)
        for column in range(emitted.shape[1]):
            rows = going[emitted[:, column] >= 0]
            words[rows, length[rows]] = emitted[emitted[:, column] >= 0, column]
            length[rows] += 1
        emitted_words += int((emitted >= 0).sum())
        verifications += len(going)
        going = np.flatnonzero(length < 3)
    return words[:, :3], emitted_words / verifications


def worst(words: np.ndarray) -> float:
    """Deviation of (word 1, word 2) and of (word 2, word 3) from the target: the larger."""
    first = TARGET[START]
    return max(
        deviation(
            np.bincount(words[:, column] * WORDS + words[:, column + 1], minlength=WORDS * WORDS),
            before[:, None] * TARGET,
        )
        for column, before in ((0, first), (1, first @ TARGET))
    )


@pytest.mark.parametrize("parents", [CHAIN, TREE], ids=["chain", "tree"])
@pytest.mark.parametrize("drafter", [OPPOSED, SIMILAR], ids=["opposed", "similar"])
def test_rejection_has_the_targets_distribution(parents: tuple[int, ...], drafter: np.ndarray) -> None:
    words, tokens_per_step = play(parents, drafter)
    assert worst(words) < CHANCE
    assert tokens_per_step > (1.0 if drafter is OPPOSED else 1.8)


FAULTS = {
    "shared noise": (CHAIN, Fault(shared_noise=True)),
    "duplicate siblings": (TREE, Fault(duplicate_siblings=True)),
    "siblings that keep their elders in q": (TREE, Fault(elders_in_q=True)),
    "the noise of a position that comes again": (CHAIN, Fault(late=-1)),
}


@pytest.mark.parametrize("name", FAULTS)
def test_mutants_of_the_drafter_are_caught(name: str) -> None:
    parents, fault = FAULTS[name]
    words, _ = play(parents, SIMILAR, fault, TRIALS if parents is TREE else FEW)
    assert worst(words) > 10


MUTANTS = {
    "residual": lambda p, q: p,
    "accepts": lambda u, p, q: u < np.minimum(p / np.maximum(q, 1e-300), 1) ** 0.5,
    "categorical": lambda p, u: p.argmax(axis=-1),
}


@pytest.mark.parametrize("name", MUTANTS)
def test_mutants_of_the_test_are_caught(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(verify, name, MUTANTS[name])
    words, _ = play(CHAIN, SIMILAR, trials=FEW)
    assert worst(words) > 10


@pytest.mark.parametrize("parents", [(-1, -1), (-1, 0, -1)], ids=["siblings", "a chain and a sibling"])
def test_chosen_drafts_keep_the_distribution_too(parents: tuple[int, ...]) -> None:
    """Drafts that nobody drew (q is None): the drafter's likeliest words."""
    likeliest = np.argsort(-OPPOSED[START])
    tokens = np.tile(likeliest[: len(parents)], (TRIALS, 1))
    p = np.stack(
        [np.tile(TARGET[START], (TRIALS, 1)), *(TARGET[tokens[:, i]] for i in range(len(parents)))], 1
    )
    emitted = emitted_by(parents, tokens, p, None, np.arange(TRIALS), np.zeros(TRIALS, np.int64))
    assert deviation(np.bincount(emitted[:, 0], minlength=WORDS), TARGET[START]) < CHANCE
    top = [i for i, parent in enumerate(parents) if parent < 0]
    accepted = np.isin(emitted[:, 0], likeliest[top])
    assert (emitted[accepted, 1] >= 0).all()  # one token more
    assert (emitted[~accepted, 1] == -1).all()
    for word in likeliest[top]:
        after = emitted[emitted[:, 0] == word, 1]
        assert deviation(np.bincount(after, minlength=WORDS), TARGET[word]) < CHANCE
