"""Drafts before anybody has drawn them: their shape, and penalties that count them as if they were drawn.

A step that draws at every node at once, as a recorded one on a device does, gives what plain decoding gives.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from octavo.params import SampledToken, SamplingParams
from octavo.params.drafts import Draft
from octavo.sampling import Sampler, SamplingRows
from support.walks import walked

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
        walk = walked(draft, Sampler().sample(logits, batch))
        assert len(walk.trail) == len(walk.drawn) > 0
        tokens = [token.token_id for token in walk.drawn]
        assert paths[walk.trail[-1]] == tuple(tokens[:-1])
        rows.append(0, tokens)
        sequence += tokens
        drawn += walk.drawn
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
