"""BeamSearch by itself: against all sequences of a small language, and what ends a search."""

from __future__ import annotations

import itertools
import math
import random
from collections.abc import Callable
from typing import Any

import pytest

from octavo.params import BeamSearchParams
from octavo.sampling.beam import BeamSearch

VOCAB, END = 4, 0
Language = Callable[[tuple[int, ...]], list[float]]


def language(seed: int) -> Language:
    """Log-probabilities of the next token after each prefix, at random."""

    def logprobs(prefix: tuple[int, ...]) -> list[float]:
        rng = random.Random(f"{seed}{prefix}")
        weights = [rng.expovariate(1.0) + 1e-6 for _ in range(VOCAB)]
        return [math.log(w / sum(weights)) for w in weights]

    return logprobs


def find(
    speak: Language, params: BeamSearchParams, keep: int | None = None, ends: tuple[int, ...] = (END,)
) -> list[tuple[tuple[int, ...], float, str]]:
    """What the search finds: tokens, score, reason. keep: so many candidates of each beam are offered."""
    search = BeamSearch(params, frozenset(ends), params.max_tokens)
    keep = keep or search.candidates(params, frozenset(ends))
    beams: list[tuple[int, ...]] = [()]
    while beams:
        likeliest = []
        for beam in beams:
            logprobs = speak(beam)
            order = sorted(range(VOCAB), key=lambda token: (-logprobs[token], token))
            likeliest.append([(token, logprobs[token]) for token in order[:keep]])
        beams = [(*beams[parent], token) for parent, token in search.advance(likeliest)]
        assert len(set(beams)) == len(beams)
    return [(tuple(t.token_id for t in h.tokens), h.score, h.finish_reason) for h in search.hypotheses()]


def every_sequence(speak: Language, length: int, penalty: float) -> list[tuple[float, tuple[int, ...]]]:
    """All that end, or are as long as allowed, with their scores, best first."""
    found = []
    for size in range(1, length + 1):
        for tokens in itertools.product(range(VOCAB), repeat=size):
            if END in tokens[:-1] or (size < length and tokens[-1] != END):
                continue
            total = sum(speak(tokens[:i])[token] for i, token in enumerate(tokens))
            found.append((total / size**penalty, tokens))
    return sorted(found, reverse=True)


@pytest.mark.parametrize("seed", range(20))
def test_a_search_as_wide_as_the_language_finds_the_best_there_is(seed: int) -> None:
    """Two tokens deep, ten beams hold every prefix, so nothing can be missed."""
    speak = language(seed)
    for penalty in (0.0, 1.0, 2.0):
        wanted = BeamSearchParams(10, max_tokens=2, length_penalty=penalty, early_stopping="never")
        best = every_sequence(speak, 2, penalty)[:10]
        found = find(speak, wanted)
        assert [tokens for tokens, _, _ in found] == [tokens for _, tokens in best]
        assert [score for _, score, _ in found] == pytest.approx([score for score, _ in best])


@pytest.mark.parametrize("seed", range(20))
def test_without_length_penalty_never_loses_the_best_it_has_seen(seed: int) -> None:
    speak = language(seed)
    wanted = BeamSearchParams(3, max_tokens=6, length_penalty=0.0, early_stopping="never")
    found = find(speak, wanted)
    assert [score for _, score, _ in found] == sorted((score for _, score, _ in found), reverse=True)
    for tokens, score, reason in found:
        assert score == pytest.approx(sum(speak(tokens[:i])[t] for i, t in enumerate(tokens)))
        assert reason == ("stop" if tokens[-1] == END else "length")


def eager_to_end(prefix: tuple[int, ...]) -> list[float]:
    """The end is the likeliest token after everything."""
    return [math.log(p) for p in (0.7, 0.2, 0.06, 0.04)]


def test_ends_do_not_starve_the_beams() -> None:
    """With B candidates a beam, some would be ends, and fewer than B could go on: so there are 2B."""
    wanted = BeamSearchParams(2, max_tokens=4, length_penalty=5.0, early_stopping="never")
    found = find(eager_to_end, wanted)
    starved = find(eager_to_end, wanted, keep=1)  # what is left when only the best are offered
    assert len(found) == 2
    assert max(len(tokens) for tokens, _, _ in found) == 4
    assert [tokens for tokens, _, _ in starved] != [tokens for tokens, _, _ in found]


def test_several_end_tokens_ask_for_more_candidates() -> None:
    wanted = BeamSearchParams(2, max_tokens=4, early_stopping="never", length_penalty=5.0)
    assert BeamSearch.candidates(wanted, frozenset({0, 1, 2, 3})) == 6
    found = find(eager_to_end, wanted, ends=(0, 1))
    assert len(found) == 2
    assert all(tokens[-1] in (0, 1) or reason == "length" for tokens, _, reason in found)


@pytest.mark.parametrize(("early", "longest"), [(True, 2), (False, 2), ("never", 5)])
def test_early_stopping(early: Any, longest: int) -> None:
    """True: with the first two finished. "never": as long as a longer one could still be better."""
    wanted = BeamSearchParams(2, max_tokens=5, length_penalty=3.0, early_stopping=early)
    seen = 0

    def speak(prefix: tuple[int, ...]) -> list[float]:
        nonlocal seen
        seen = max(seen, len(prefix) + 1)
        return eager_to_end(prefix)

    find(speak, wanted)
    assert seen == longest
