"""Verification is exact: bit for bit in the same-draw mode, in distribution in the rejection mode.

The statistical half plays 200,000 trials of a 16-word Markov model, and plays them again with the
faults that implementations are known for: each of these mutants must be caught.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from octavo.params import SampledToken, SamplingParams
from octavo.sampling import RowError, Sampler, SamplingRows, Stream, uniform, verify
from octavo.sampling.verify import Draft, Verified, categorical, rejection, rejection_noise, same_draw

# -- the shape of drafts ---------------------------------------------------------------------------


def test_paths_are_the_tokens_from_the_root() -> None:
    assert Draft.chain([4, 5, 4]).paths() == [(), (4,), (4, 5), (4, 5, 4)]
    assert Draft((7, 8, 9, 7), (-1, -1, 0, 1)).paths() == [(), (7,), (8,), (7, 9), (8, 7)]
    assert Draft.chain([]).paths() == [()]


def test_the_first_tokens_of_a_draft_are_a_draft() -> None:
    tree = Draft((7, 8, 9, 7), (-1, -1, 0, 1), support=3)
    assert tree.first(3) == Draft((7, 8, 9), (-1, -1, 0))
    assert tree.first(3).support == 3
    assert tree.first(4) is tree.first(9) is tree
    assert tree.first(1).is_chain
    assert Draft.chain([1, 2, 3]).is_chain
    assert not tree.is_chain


@pytest.mark.parametrize(
    ("tokens", "parents"),
    [((1, 1), (-1, -1)), ((1, 2, 2), (-1, 0, 0)), ((1, 2), (0, -1)), ((1, 2), (-1,)), ((1,), (-2,))],
)
def test_malformed_drafts_are_refused(tokens: tuple[int, ...], parents: tuple[int, ...]) -> None:
    with pytest.raises(ValueError, match="draft"):
        Draft(tokens, parents)


# -- same draw -------------------------------------------------------------------------------------

VOCAB = 12
EOS = 3


def toy_logits(sequence: Sequence[int]) -> np.ndarray:
    """A model: logits that depend on the last two tokens and the length."""
    key = sequence[-1] + 31 * sequence[-2] + 977 * len(sequence)
    return np.random.default_rng(key).standard_normal(VOCAB).astype(np.float32) * np.float32(2)


def rows_for(params: SamplingParams, sequence: Sequence[int], prompt: int, seed: int) -> SamplingRows:
    rows = SamplingRows(1, VOCAB, [EOS])
    rows.add(0, params, seed, 0, sequence, prompt)
    return rows


def decode_plain(params: SamplingParams, prompt: list[int], seed: int, count: int) -> list[SampledToken]:
    sequence, drawn = list(prompt), []
    for _ in range(count):
        batch = rows_for(params, sequence, len(prompt), seed).batch([0], [len(sequence)])
        (token,) = Sampler().sample(toy_logits(sequence)[None], batch)
        assert isinstance(token, SampledToken)
        sequence.append(token.token_id)
        drawn.append(token)
    return drawn


def decode_verified(
    params: SamplingParams,
    prompt: list[int],
    seed: int,
    count: int,
    propose: Callable[[list[int]], Draft],
    advance: bool = True,
) -> tuple[list[SampledToken], int]:
    """Tokens, and how many verifications they took. advance=False is a mutant."""
    sequence, drawn, steps = list(prompt), [], 0
    rows = rows_for(params, sequence, len(prompt), seed)
    while len(drawn) < count:
        draft = propose(sequence)
        paths = draft.paths()
        logits = np.stack([toy_logits([*sequence, *path]) for path in paths])
        positions = [len(sequence) + len(path) for path in paths]
        batch = rows.batch([0] * len(paths), positions, ahead=paths if advance else None)
        result = same_draw(draft, Sampler().sample(logits, batch))
        assert len(result.nodes) == len(result.tokens) > 0
        tokens = [token.token_id for token in result.tokens]
        assert paths[result.nodes[-1]] == tuple(tokens[:-1])
        rows.append(0, tokens)
        sequence += tokens
        drawn += result.tokens
        steps += 1
    return drawn[:count], steps


PENALIZED = SamplingParams(
    temperature=0.9,
    top_p=0.95,
    repetition_penalty=1.4,
    frequency_penalty=0.8,
    presence_penalty=0.4,
    min_tokens=12,
    logprobs=3,
)


def clairvoyant(params: SamplingParams, prompt: list[int], seed: int, wrong: float) -> Callable[..., Draft]:
    """Proposes a tree around the plain continuation, spoiling each token with probability `wrong`."""
    truth = [token.token_id for token in decode_plain(params, prompt, seed, 40)]
    rng = np.random.default_rng(seed)

    def propose(sequence: list[int]) -> Draft:
        ahead = truth[len(sequence) - len(prompt) :][: int(rng.integers(0, 5))]
        tokens: list[int] = []
        parents: list[int] = []
        trunk = -1
        for token in ahead:
            spoiled = int((token + rng.integers(1, VOCAB)) % VOCAB)
            siblings = [spoiled] if rng.random() < wrong else [spoiled, token]
            for sibling in siblings:
                tokens.append(sibling)
                parents.append(trunk)
            trunk = len(tokens) - 1
        return Draft(tuple(tokens), tuple(parents))

    return propose


@settings(max_examples=25, deadline=None)
@given(
    seed=st.integers(0, 2**64 - 1),
    wrong=st.sampled_from([0.0, 0.3, 1.0]),
    temperature=st.sampled_from([0.0, 0.9, 1.5]),
    penalties=st.booleans(),
)
def test_trees_give_what_plain_decoding_gives_bit_for_bit(
    seed: int, wrong: float, temperature: float, penalties: bool
) -> None:
    params = PENALIZED if penalties else SamplingParams(logprobs=2)
    params = params.replace(temperature=temperature)
    prompt = [1, 2, 5]
    verified, steps = decode_verified(params, prompt, seed, 20, clairvoyant(params, prompt, seed, wrong))
    assert verified == decode_plain(params, prompt, seed, 20)
    assert steps <= 20


def test_true_drafts_are_accepted_whole() -> None:
    prompt = [1, 2, 5]
    truth = [token.token_id for token in decode_plain(PENALIZED, prompt, 1, 30)]
    chain = lambda sequence: Draft.chain(truth[len(sequence) - 3 :][:5])  # noqa: E731
    drawn, steps = decode_verified(PENALIZED, prompt, 1, 24, chain)
    assert [token.token_id for token in drawn] == truth[:24]
    assert steps == 4  # five accepted drafts give six tokens


def test_mutant_penalties_that_do_not_advance_along_the_draft_are_caught() -> None:
    prompt = [1, 2, 5]
    same = []
    for seed in range(20):
        propose = clairvoyant(PENALIZED, prompt, seed, 0.0)
        drawn, _ = decode_verified(PENALIZED, prompt, seed, 20, propose, advance=False)
        same.append(drawn == decode_plain(PENALIZED, prompt, seed, 20))
    assert not all(same)


def test_an_error_ends_the_walk_where_it_is_met() -> None:
    draft = Draft.chain([4, 5])
    drawn: list[SampledToken | RowError] = [SampledToken(4), RowError("bad"), SampledToken(6)]
    assert same_draw(draft, drawn) == Verified((SampledToken(4),), (0,))
    assert same_draw(draft, [RowError("bad"), *drawn[1:]]) == Verified((), (0,), RowError("bad"))
    off_path: list[SampledToken | RowError] = [SampledToken(9), RowError("bad"), RowError("bad")]
    assert same_draw(draft, off_path) == Verified((SampledToken(9),), (0,))


# -- rejection: the arithmetic of one decision -----------------------------------------------------


def rows_of(*values: Sequence[float]) -> np.ndarray:
    return np.array(values, np.float64)


def one(
    parents: Sequence[int], tokens: Sequence[int], p: np.ndarray, q: np.ndarray | None, u: Sequence[float]
) -> list[int]:
    emitted, _ = rejection(
        parents,
        np.array([tokens], np.int64).reshape(1, -1),
        p[None],
        None if q is None else q[None],
        np.array([u[: len(parents)]]).reshape(1, -1),
        np.array([u[len(parents) :]]),
    )
    return [token for token in emitted[0].tolist() if token >= 0]


def test_five_accepted_drafts_give_six_tokens() -> None:
    p = np.full((6, 4), 0.25)
    assert one(range(-1, 4), [0, 1, 2, 3, 0], p, p, [0.5] * 11) == [0, 1, 2, 3, 0, 2]


def test_a_token_of_probability_zero_is_never_accepted_not_even_at_u_zero() -> None:
    p, q = rows_of([0.0, 1.0], [0.5, 0.5]), rows_of([1.0, 0.0], [0.5, 0.5])
    assert one([-1], [0], p, q, [0.0, 0.0, 0.0]) == [1]
    assert one([-1], [0], p, None, [0.0, 0.0, 0.0]) == [1]


def test_mutant_acceptance_by_less_or_equal_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(verify, "accepts", lambda u, p, q: u * q <= p)
    with pytest.raises(AssertionError):
        test_a_token_of_probability_zero_is_never_accepted_not_even_at_u_zero()


def test_a_rejected_draft_is_replaced_from_the_residual() -> None:
    p, q = rows_of([0.1, 0.2, 0.7], [1, 0, 0]), rows_of([0.8, 0.1, 0.1], [1, 0, 0])
    # max(0, p - q) = [0, 0.1, 0.6]: the border is at 1/7
    assert one([-1], [0], p, q, [0.126, 0.14, 0.0]) == [1]
    assert one([-1], [0], p, q, [0.126, 0.15, 0.0]) == [2]
    assert one([-1], [0], p, q, [0.124, 0.15, 0.0]) == [0, 0]


def test_a_zero_residual_falls_back_to_the_target() -> None:
    p = rows_of([0.25, 0.75], [1, 0])
    assert one([-1], [0], p, p, [1.0, 0.3, 0.0]) == [1]  # u = 1 forces what rounding may do


def test_greedy_targets_accept_their_argmax_alone() -> None:
    p = rows_of([0, 1, 0], [0, 0, 1], [1, 0, 0])
    q = np.full((3, 3), 1 / 3)
    assert one([-1, 0], [1, 2], p, q, [0.99] * 5) == [1, 2, 0]
    assert one([-1, 0], [1, 0], p, q, [0.01] * 5) == [1, 2]
    assert one([-1, 0], [2, 2], p, q, [0.01] * 5) == [1]


def test_no_drafts_is_a_plain_draw() -> None:
    p = np.random.default_rng(0).dirichlet(np.ones(9), 1)
    for u in np.linspace(0, 1, 50, endpoint=False):
        assert one([], [], p, np.ones((1, 9)) / 9, [u]) == [int(np.searchsorted(p[0].cumsum(), u, "right"))]


def test_categorical_never_draws_what_has_no_probability() -> None:
    p = rows_of([0, 0.25, 0, 0.75, 0])
    last = 1 - 2.0**-53
    assert [int(categorical(p, np.array([u]))[0]) for u in (0.0, 0.2499, 0.25, last, 1.0)] == [1, 1, 3, 3, 3]


def test_noise_is_keyed_by_position_and_told_apart_by_sibling_and_stream() -> None:
    parents = [-1, -1, 0, 1, 2]
    accept, last = rejection_noise(parents, [5, 6], [0, 1], [40, 7])
    assert accept.shape == (2, 5)
    assert last.shape == (2, 6)
    assert len({*accept[0].tolist(), *last[0].tolist()}) == 5 + 4 - 1  # cousins share a position's noise
    assert accept[0, 2] == accept[0, 3]
    assert accept[1, 1] == uniform(6, 1, 7, Stream.ACCEPT, 1)[0]
    assert last[1, 5] == uniform(6, 1, 10, Stream.TARGET)[0]


# -- rejection: the distribution -------------------------------------------------------------------

WORDS, TRIALS, START = 16, 200_000, 0
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
    """What a mutant does wrong outside of verify's functions."""

    shared_noise: bool = False
    duplicate_siblings: bool = False


def drafted(
    parents: Sequence[int], drafter: np.ndarray, last_words: np.ndarray, position: np.ndarray, fault: Fault
) -> tuple[np.ndarray, np.ndarray]:
    """Tokens [R, N] drawn from Stream.DRAFT, siblings without their elders, and q [R, N + 1, V]."""
    rows = len(last_words)
    words, depths = [last_words], [0]
    tokens = np.zeros((rows, len(parents)), np.int64)
    for child, parent in enumerate(parents):
        q = drafter[words[parent + 1]].copy()
        elders = [i for i in range(child) if parents[i] == parent]
        if not fault.duplicate_siblings:
            for elder in elders:
                q[np.arange(rows), tokens[:, elder]] = 0
        at = position + depths[parent + 1]
        u = uniform(
            np.arange(rows), 0, at, Stream.TARGET if fault.shared_noise else Stream.DRAFT, len(elders)
        )
        tokens[:, child] = categorical(q, u)
        words.append(tokens[:, child])
        depths.append(depths[parent + 1] + 1)
    return tokens, np.stack([drafter[word] for word in words], axis=1)


def play(parents: Sequence[int], drafter: np.ndarray, fault: Fault = Fault()) -> tuple[np.ndarray, float]:
    """The first three words [TRIALS, 3] after START, and the mean number of words per verification."""
    words = np.full((TRIALS, 12), -1, np.int64)
    length = np.zeros(TRIALS, np.int64)
    emitted_words, verifications = 0, 0
    chosen = np.arange(TRIALS)
    while len(chosen):
        # seeds are row numbers, so that a trial's noise follows from its own positions alone
        last = np.where(length > 0, words[np.arange(TRIALS), np.maximum(length - 1, 0)], START)
        tokens, q = drafted(parents, drafter, last, length, fault)
        p = np.stack([TARGET[last], *(TARGET[tokens[:, i]] for i in range(len(parents)))], axis=1)
        accept, final = rejection_noise(parents, np.arange(TRIALS), np.zeros(TRIALS, np.int64), length)
        emitted, _ = rejection(parents, tokens[chosen], p[chosen], q[chosen], accept[chosen], final[chosen])
        for column in range(emitted.shape[1]):
            rows = chosen[emitted[:, column] >= 0]
            words[rows, length[rows]] = emitted[emitted[:, column] >= 0, column]
            length[rows] += 1
        emitted_words += int((emitted >= 0).sum())
        verifications += len(chosen)
        chosen = np.flatnonzero(length < 3)
    return words[:, :3], emitted_words / verifications


def deviation(words: np.ndarray) -> float:
    """Standardized chi-square of (word 1, word 2) and of (word 2, word 3) against the target: the larger."""
    first = TARGET[START]
    second = first @ TARGET
    worst = 0.0
    for column, before in ((0, first), (1, second)):
        expected = (before[:, None] * TARGET).reshape(-1) * len(words)
        counts = np.bincount(words[:, column] * WORDS + words[:, column + 1], minlength=WORDS * WORDS)
        big = expected >= 5
        cells = [(counts[big], expected[big]), (counts[~big].sum(), expected[~big].sum())]
        statistic = sum(float(((n - e) ** 2 / e).sum()) for n, e in cells if np.sum(e) > 0)
        degrees = int(big.sum())
        worst = max(worst, (statistic - degrees) / (2 * degrees) ** 0.5)
    return worst


@pytest.mark.parametrize("parents", [CHAIN, TREE], ids=["chain", "tree"])
@pytest.mark.parametrize("drafter", [OPPOSED, SIMILAR], ids=["opposed", "similar"])
def test_rejection_has_the_targets_distribution(parents: tuple[int, ...], drafter: np.ndarray) -> None:
    words, tokens_per_step = play(parents, drafter)
    assert deviation(words) < 4
    assert tokens_per_step > (1.0 if drafter is OPPOSED else 1.8)


def test_mutant_residual_equal_to_the_target_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(verify, "residual", lambda p, q: p)
    words, _ = play(CHAIN, SIMILAR)
    assert deviation(words) > 20


def test_mutant_shared_noise_is_caught() -> None:
    words, _ = play(CHAIN, SIMILAR, Fault(shared_noise=True))
    assert deviation(words) > 20


def test_mutant_duplicate_siblings_are_caught() -> None:
    words, _ = play(TREE, SIMILAR, Fault(duplicate_siblings=True))
    assert deviation(words) > 20


def test_mutant_siblings_that_keep_their_elders_in_q_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(verify, "without", lambda q, token: q)
    words, _ = play(TREE, SIMILAR)
    assert deviation(words) > 20


def test_mutant_without_the_bonus_token_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    """It biases nothing, it wastes: so its mark is the number of tokens."""
    bonus = verify.rejection

    def no_bonus(parents: Sequence[int], *arrays: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        emitted, at = bonus(parents, *arrays)
        leaf = np.array([node - 1 not in parents for node in range(len(parents) + 1)])[at]
        emitted[leaf, (emitted[leaf] >= 0).sum(axis=1) - 1] = -1
        return emitted, at

    monkeypatch.setitem(globals(), "rejection", no_bonus)
    with pytest.raises(AssertionError):
        test_five_accepted_drafts_give_six_tokens()


def test_chosen_drafts_keep_the_distribution_too() -> None:
    """Drafts that nobody drew (q is None): the drafter's two likeliest words at the root."""
    tokens = np.tile(np.argsort(-OPPOSED[START])[:2], (TRIALS, 1))
    p = np.stack([np.tile(TARGET[START], (TRIALS, 1)), TARGET[tokens[:, 0]], TARGET[tokens[:, 1]]], axis=1)
    accept, last = rejection_noise((-1, -1), np.arange(TRIALS), np.zeros(TRIALS, np.int64), np.zeros(TRIALS))
    emitted, at = rejection((-1, -1), tokens, p, None, accept, last)
    counts = np.bincount(emitted[:, 0], minlength=WORDS)
    expected = TARGET[START] * TRIALS
    assert (((counts - expected) ** 2 / expected).sum() - 15) / 30**0.5 < 4
    accepted = at > 0
    assert (emitted[accepted, 1] >= 0).all()
    assert (emitted[~accepted, 1] == -1).all()
