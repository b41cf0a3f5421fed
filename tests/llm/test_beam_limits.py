"""Beams under limits: against transformers' processors, and against all answers of a small grammar."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from llm.test_beam_search import TOLERANCE, same, their_beams, tiny_llama, transformers_model
from octavo import BeamSearchParams, SamplingParams
from octavo.sampling.beam import Lineage, normalized
from octavo.sampling.constraints import Constraint, ForcedTokens, Matcher, full_mask
from octavo.sampling.logits import allowed
from octavo.structured.bad_words import BadWords, Vocabulary
from octavo.structured.grammar import Grammar, GrammarVocabulary
from octavo.structured.no_repeat_ngram import NoRepeatNgram
from support.tiny_engine import BACKENDS, EOS, VOCAB_SIZE, Answers, run, tiny_engine

__all__ = ["tiny_llama"]  # the fixture

TEXTS = {90: b"ab", 91: b"abc", 92: b"true", 93: b"ca", 94: b"12", 95: b"[["}
TOKENS = [b"<special>"] * 3 + [TEXTS.get(i, bytes([29 + i])) for i in range(3, VOCAB_SIZE)]
LETTERS = "".join(chr(29 + i) for i in range(3, 90))


@cache
def vocabulary() -> GrammarVocabulary:
    return GrammarVocabulary(TOKENS, [0, 1, 2], [EOS], lambda text: [ord(c) - 29 for c in text])


def grammar(lark: str) -> Grammar:
    return Grammar(f"%llguidance {{}}\nstart: {lark}\n", vocabulary(), "grammar")


def may_follow(constraint: Constraint, output: Sequence[int]) -> list[int]:
    mask = full_mask(1, VOCAB_SIZE)[0]
    constraint.start(output).restrict(mask)
    return np.flatnonzero(allowed(mask, VOCAB_SIZE)).tolist()


def text_of(ids: Sequence[int]) -> str:
    return b"".join(TOKENS[i] for i in ids if i != EOS).decode()


def ours(
    folder: Path, prompt: list[int], wanted: BeamSearchParams, backend: str = BACKENDS[0], **limits: Any
) -> list[tuple[list[int], float]]:
    """Ids and scores, best first; those that do not exist have no score."""
    params = SamplingParams(
        n=wanted.beam_width, max_tokens=wanted.max_tokens, beam_search=wanted, logprobs=0, **limits
    )
    found = run(tiny_engine(folder, backend), prompt, params)
    return [
        (ids, normalized(sum(logprobs), len(ids), wanted.length_penalty))
        for ids, logprobs, reason in found
        if reason != "absent"
    ]


def theirs(
    folder: Path, prompt: list[int], wanted: BeamSearchParams, **limits: Any
) -> list[tuple[list[int], float]]:
    beams = their_beams(transformers_model(folder), prompt, wanted, **limits)
    return [(ids, score) for ids, score in beams if score > -1e6]  # it fills up with impossible ones


@pytest.mark.parametrize(
    ("limits", "their_limits"),
    [
        ({"min_tokens": 9}, {"min_new_tokens": 9}),
        ({"repetition_penalty": 1.4}, {"repetition_penalty": 1.4}),
        ({"logit_bias": {EOS: 6.0, 17: -9.5, 40: 2.0}},
         {"sequence_bias": [[[EOS], 6.0], [[17], -9.5], [[40], 2.0]]}),
        ({"ngram": 2}, {"no_repeat_ngram_size": 2}),
        ({"forced": {11: EOS}}, {"forced_eos_token_id": EOS}),
        ({"forced": {0: 33}}, {"forced_bos": 33}),
        ({"forced": {0: 33, 11: EOS}, "ngram": 3, "min_tokens": 6},
         {"forced_bos": 33, "forced_eos_token_id": EOS, "no_repeat_ngram_size": 3, "min_new_tokens": 6}),
        ({"allowed_token_ids": [EOS, *range(10, 20)]}, {"allow": [EOS, *range(10, 20)]}),
    ],
    ids=["min", "repetition", "bias", "ngram", "forced end", "forced begin", "bart", "allowed"],
)  # fmt: skip
@pytest.mark.parametrize("backend", BACKENDS)
def test_limits_change_the_candidates_as_processors_of_transformers_do(
    tiny_llama: Path, backend: str, limits: dict[str, Any], their_limits: dict[str, Any]
) -> None:
    limits, their_limits = dict(limits), dict(their_limits)
    rng = np.random.default_rng(len(str(limits)))
    allow, begin = their_limits.pop("allow", None), their_limits.pop("forced_bos", None)
    forced, ngram = limits.pop("forced", None), limits.pop("ngram", None)
    for width, penalty, early in ((2, 1.0, False), (4, 2.0, True), (5, 0.5, "never")):
        prompt = [int(i) for i in rng.integers(3, VOCAB_SIZE, rng.integers(3, 30))]
        wanted = BeamSearchParams(width, max_tokens=12, length_penalty=penalty, early_stopping=early)
        constraints: list[Constraint] = [NoRepeatNgram(ngram, prompt)] if ngram else []
        constraints += [ForcedTokens(forced)] if forced else []
        if begin is not None:
            their_limits["logits_processor"] = [_begin_with(begin, len(prompt))]
        if allow is not None:
            their_limits["prefix_allowed_tokens_fn"] = lambda _, ids: allow
        found = ours(tiny_llama, prompt, wanted, backend, constraints=tuple(constraints), **limits)
        same(found, theirs(tiny_llama, prompt, wanted, **their_limits))


def _begin_with(token: int, length: int) -> Any:
    """ForcedBOSTokenLogitsProcessor counts from the beginning of the sequence: here from the prompt's end."""

    def force(ids: Any, scores: Any) -> Any:
        if ids.shape[1] == length:
            scores = scores.new_full(scores.shape, -math.inf)
            scores[:, token] = 0
        return scores

    return force


@pytest.mark.parametrize(
    "lark", [r"/[a-c]{2,6}/", r'"[" /[0-9]+/ ("," /[0-9]+/)* "]"', r"/(true|abc|12|;)+/"]
)
@pytest.mark.parametrize("width", [2, 5])
def test_grammars_mask_the_candidates_of_every_beam(tiny_llama: Path, lark: str, width: int) -> None:
    rule = grammar(lark)
    rng = np.random.default_rng(width)
    prompt = [int(i) for i in rng.integers(3, VOCAB_SIZE, 9)]
    wanted = BeamSearchParams(width, max_tokens=14, early_stopping=True)

    def follow(_: int, ids: Any) -> list[int]:
        try:  # transformers asks about impossible beams as well
            return may_follow(rule, ids[len(prompt) :].tolist()) or [EOS]
        except Exception:
            return [EOS]

    found = ours(tiny_llama, prompt, wanted, constraints=(rule,))
    same(found, theirs(tiny_llama, prompt, wanted, prefix_allowed_tokens_fn=follow))
    for ids, _ in found:
        assert all(token in may_follow(rule, ids[:i]) for i, token in enumerate(ids))


def every_answer(rule: Constraint, prefix: tuple[int, ...] = ()) -> list[tuple[int, ...]]:
    """All ways in which tokens spell an answer, its end included."""
    answers: list[tuple[int, ...]] = []
    for token in may_follow(rule, prefix):
        grown = (*prefix, token)
        answers += [grown] if token == EOS else every_answer(rule, grown)
    return answers


@pytest.mark.parametrize("lark", ["/ab[cd]/", "/ab|ca|k/", "/m(12|a)?/"])
def test_a_search_as_wide_as_the_grammar_finds_every_answer_in_order(tiny_llama: Path, lark: str) -> None:
    rule = grammar(lark)
    answers = every_answer(rule)
    assert 1 < len(answers) <= 8
    prompt = [7, 50, 11]
    model = transformers_model(tiny_llama)
    ranked = sorted(((_log_probability(model, prompt, ids), list(ids)) for ids in answers), reverse=True)
    wanted = BeamSearchParams(8, max_tokens=9, length_penalty=0.0, early_stopping="never")
    found = ours(tiny_llama, prompt, wanted, constraints=(rule,))
    assert [ids for ids, _ in found] == [ids for _, ids in ranked]
    assert [score for _, score in found] == pytest.approx([score for score, _ in ranked], **TOLERANCE)


def _log_probability(model: Any, prompt: list[int], ids: Sequence[int]) -> float:
    import torch

    with torch.no_grad():
        logits = model(torch.tensor([[*prompt, *ids]])).logits[0].double().log_softmax(-1)
    return float(sum(logits[len(prompt) + i - 1, token] for i, token in enumerate(ids)))


def test_a_preempted_search_under_a_grammar_finds_the_same(tiny_llama: Path) -> None:
    """An older request takes the pages of a search half way; its matchers begin anew."""
    wanted = BeamSearchParams(3, max_tokens=30, early_stopping="never")
    params = SamplingParams(
        n=3, max_tokens=30, logprobs=0, beam_search=wanted, constraints=(grammar(r"/[a-h1-9 ]*/"),)
    )
    calm = run(tiny_engine(tiny_llama), [9, 8, 7, 6], params)
    engine = tiny_engine(tiny_llama, page_size=4, num_pages=40, enable_prefix_caching=False)
    answers = Answers()
    engine.add_request("old", [5] * 20, SamplingParams(max_tokens=130, ignore_eos=True, temperature=0.0))
    for _ in range(100):
        answers.take(engine.step())
    engine.add_request("beams", [9, 8, 7, 6], params)
    while engine.has_unfinished():
        answers.take(engine.step())
    assert engine.stats().preemptions > 0
    assert [answers.of("beams", i)[0] for i in range(3)] == [ids for ids, *_ in calm]


def test_where_no_token_is_left_the_search_fails_alone(tiny_llama: Path) -> None:
    engine = tiny_engine(tiny_llama)
    wanted = BeamSearchParams(2, max_tokens=8)
    nothing = (grammar(r"/[a-c]+/"), BadWords(["a", "b", "c"], Vocabulary(TOKENS)))
    engine.add_request("dead", [5, 6], SamplingParams(n=2, beam_search=wanted, constraints=nothing))
    engine.add_request("alive", [5, 6], SamplingParams(max_tokens=4, ignore_eos=True))
    answers = Answers()
    while engine.has_unfinished():
        answers.take(engine.step())
    assert answers.reasons["dead", 0] == answers.reasons["dead", 1] == "error"
    assert answers.reasons["alive", 0] == "length"


def test_every_matcher_forks_into_the_same_place_and_lives_on_alone() -> None:
    words = BadWords(["abc", "12"], Vocabulary(TOKENS))
    rules: list[Constraint] = [grammar(r"/[a-c12]*/"), words, NoRepeatNgram(2, [1]), ForcedTokens({2: 90})]
    ids = [TOKENS.index(text) for text in (b"a", b"b", b"c", b"ab", b"1")]
    for rule in rules:
        for output in itertools.product(ids, repeat=2):
            for mine, other in itertools.product(ids, repeat=2):
                first = rule.start(output)
                second = first.fork()
                first.append([mine])
                second.append([other])
                assert _mask(first) == may_follow(rule, [*output, mine])
                assert _mask(second) == may_follow(rule, [*output, other])


def _mask(matcher: Matcher) -> list[int]:
    mask = full_mask(1, VOCAB_SIZE)[0]
    matcher.restrict(mask)
    return np.flatnonzero(allowed(mask, VOCAB_SIZE)).tolist()


class Counting:
    """A constraint that tells how often it followed an output from its beginning."""

    def __init__(self, inner: Constraint) -> None:
        self._inner, self.starts = inner, 0

    def start(self, output: Sequence[int]) -> Matcher:
        self.starts += 1
        return self._inner.start(output)


def test_beams_fork_and_follow_no_output_twice() -> None:
    counting = Counting(NoRepeatNgram(2, ()))
    lineage = Lineage(counting)
    beams: list[tuple[int, ...]] = [()]
    for token in range(6):
        for beam in beams:
            assert _mask(lineage.start(beam)) == may_follow(counting._inner, beam)
        beams = [(*beam, t) for beam in beams for t in (token, 3)][:4]
    assert counting.starts == 1
    lineage.start([3, 4])  # after a preemption
    assert counting.starts == 2
