"""Drawn first, masked only when needed: what a constraint says of one token, and the distribution."""

from __future__ import annotations

import dataclasses
import random
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from octavo.kernels.cpu import CpuBackend
from octavo.kernels.select import native_available
from octavo.params import SampledToken
from octavo.sampling import Sampler, SamplingBatch, TokenLists, sampler
from octavo.sampling.constraints import AllowedTokens, Constraint, ForcedTokens, full_mask
from octavo.sampling.logits import allowed
from octavo.sampling.native import make_sampler
from octavo.sampling.sampling_batch import ROW
from octavo.structured import ConstraintCompiler
from octavo.structured.bad_words import BadWords, Vocabulary
from octavo.structured.grammar import GrammarMatcher
from octavo.structured.no_repeat_ngram import NoRepeatNgram
from support.grammars import WordTokenizer, compiled

PERSON = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 6},
        "age": {"type": "integer", "maximum": 99},
        "tags": {"type": "array", "items": {"type": "string", "maxLength": 3}, "maxItems": 3},
    },
    "required": ["name", "age", "tags"],
    "additionalProperties": False,
}
GRAMMARS: list[dict[str, Any]] = [
    {"json": PERSON},
    {"json": {"type": "object"}},
    {"json": {"type": "array", "items": {"enum": ["yes", "the", 12, None]}}},
    {"json": {"$ref": "#/$defs/t", "$defs": {"t": {"anyOf": [{"type": "null"}, {"type": "array"}]}}}},
    {"json_object": True},
    {"regex": "(abc|ba){2,5}[0-9]*"},
    {"regex": "name age the .*"},
    {"choice": ["name", "nam", "the abc", "123"]},
    {"grammar": 'start: "a" tail\ntail: "bc" tail | /[0-9]+/ | ""'},
]


def disagreements(constraint: Constraint, size: int, steps: int, seed: int) -> tuple[int, int]:
    """(tokens of which allows() says another thing than the mask, tokens) along a random answer."""
    rng = random.Random(seed)
    matcher = constraint.start([])
    wrong = asked = 0
    for _ in range(steps):
        said = [matcher.allows(token) for token in range(size)]
        mask = full_mask(1, size)[0]
        matcher.fork().restrict(mask)
        may = allowed(mask, size)
        wrong += sum(a != b for a, b in zip(said, may.tolist(), strict=True))
        asked += size
        choices = np.flatnonzero(may).tolist()
        token = rng.choice([c for c in choices if c != 2 or rng.random() < 0.2] or choices)
        matcher.append([token])
        if token == 2 or not choices:
            matcher = constraint.start([])
    return wrong, asked


@pytest.fixture(scope="module")
def make() -> ConstraintCompiler:
    return ConstraintCompiler(WordTokenizer())


@pytest.mark.parametrize("wanted", GRAMMARS, ids=str)
def test_a_grammar_says_of_each_token_what_its_mask_does(make: ConstraintCompiler, wanted: Any) -> None:
    size = WordTokenizer.vocab_size + 40  # logits padded beyond the tokenizer's vocabulary
    for seed in range(3):
        wrong, asked = disagreements(compiled(make, **wanted), size, 40, seed)
        assert (wrong, asked) == (0, 40 * size)


def only_validated(matcher: GrammarMatcher, token_id: int) -> bool:
    return token_id < 96 and matcher.inner.validate_tokens([token_id]) == 1


def test_a_grammar_that_forgot_what_is_forced_would_be_seen(
    make: ConstraintCompiler, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A text that must follow has one spelling in the mask, and several that llguidance would read."""
    monkeypatch.setattr(GrammarMatcher, "allows", only_validated)
    found = [disagreements(compiled(make, **wanted), 96, 40, 0)[0] for wanted in GRAMMARS]
    assert sum(wrong > 0 for wrong in found) >= 3


def test_other_constraints_say_of_each_token_what_their_masks_do() -> None:
    words = Vocabulary([WordTokenizer().token_bytes(i) if i > 2 else b"" for i in range(96)])
    constraints: list[Constraint] = [
        AllowedTokens([2, 5, 31, 32, 95]),
        BadWords(["ab", "the", "name", "a12", "é"], words),
        NoRepeatNgram(1, [5, 6]),
        NoRepeatNgram(2, [5, 6, 5]),
        ForcedTokens({0: 7, 3: 9}),
    ]
    for constraint in constraints:
        for seed in range(3):
            assert disagreements(constraint, 96, 40, seed)[0] == 0


# -- the distribution --------------------------------------------------------------------------------

VOCAB, TRIALS = 600, 20_000
SAMPLERS: dict[str, Callable[[], Sampler]] = {"reference": Sampler}
if native_available():
    SAMPLERS["native"] = lambda: make_sampler(CpuBackend(2), VOCAB)


def masked_batch(trials: int, tokens: list[int], **numbers: Any) -> SamplingBatch:
    params = np.zeros(trials, ROW)
    params["typical_p"] = 1
    params["seed"], params["temperature"], params["top_p"] = np.arange(trials), 1.2, 1
    params["repetition_penalty"], params["num_logprobs"] = 1, -1
    for name, value in numbers.items():
        params[name] = value
    none = TokenLists.none(trials)
    mask = np.zeros((trials, -(-VOCAB // 32)), np.uint32)
    for token in tokens:
        mask[:, token // 32] |= np.uint32(1 << token % 32)
    return SamplingBatch(params, np.full(trials, 3), none, none, none, mask)


def few_likely() -> tuple[np.ndarray, list[int]]:
    """Logits of 18 likely tokens in all three chunks; the mask forbids most of the second chunk's."""
    rng = np.random.default_rng(4)
    row = np.full((1, VOCAB), -60, np.float32)
    likely = np.concatenate([rng.choice(88, 6, replace=False) + start for start in (0, 256, 512)])
    row[0, likely] = rng.standard_normal(18) * 1.2
    kept = [*likely[0:3].tolist(), int(likely[6]), *likely[13:18].tolist()]
    return row, kept


def surprise(make_one: Callable[[], Sampler], trials: int = TRIALS) -> float:
    """How many deviations chi-square is above its mean."""
    row, kept = few_likely()
    drawn = make_one().sample(np.repeat(row, trials, axis=0), masked_batch(trials, kept))
    expected = Sampler().probabilities(row, masked_batch(1, kept))[0][0] * trials
    tokens = [each.token_id for each in drawn if isinstance(each, SampledToken)]
    counts = np.bincount(tokens, minlength=VOCAB)
    cells = expected > 5
    assert counts[~cells].sum() <= 20
    degrees = int(cells.sum()) - 1
    assert degrees >= 7
    statistic = ((counts - expected)[cells] ** 2 / expected[cells]).sum()
    return float((statistic - degrees) / (2 * degrees) ** 0.5)


@pytest.mark.parametrize("name", SAMPLERS)
def test_frequencies_are_those_of_the_masked_distribution(name: str) -> None:
    assert surprise(SAMPLERS[name]) < 4


def test_a_second_draw_with_the_first_ones_noise_would_be_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    """Noise that was refused once is no fair noise."""
    noise = sampler.race_noise
    monkeypatch.setattr(sampler, "race_noise", lambda *keys: noise(*keys[:4]))
    assert surprise(Sampler, 4000) > 8


@pytest.mark.parametrize("name", SAMPLERS)
def test_a_mask_that_allows_the_token_changes_nothing(name: str) -> None:
    """And one that does not gives a token that it allows."""
    row, kept = few_likely()
    rows = 300
    logits = np.repeat(row, rows, axis=0)
    batch = masked_batch(rows, kept)
    free = SAMPLERS[name]().sample(logits, dataclasses.replace(batch, mask=None))
    masked = SAMPLERS[name]().sample(logits, batch)
    same = 0
    for one, other in zip(free, masked, strict=True):
        assert isinstance(one, SampledToken)
        assert isinstance(other, SampledToken)
        assert other.token_id in kept
        if one.token_id in kept:
            same += 1
            assert one == other
    assert 50 < same < 250


@pytest.mark.parametrize("name", SAMPLERS)
@pytest.mark.parametrize("numbers", [{"top_p": 0.5}, {"top_k": 2}, {"min_p": 0.3}], ids=str)
def test_what_narrows_a_draw_comes_after_the_mask(name: str, numbers: dict[str, float]) -> None:
    """The likeliest of the allowed are kept, not the allowed of the likeliest."""
    row, kept = few_likely()
    rows = 400
    drawn = SAMPLERS[name]().sample(np.repeat(row, rows, axis=0), masked_batch(rows, kept, **numbers))
    p = Sampler().probabilities(row, masked_batch(1, kept, **numbers))[0][0]
    found = {each.token_id for each in drawn if isinstance(each, SampledToken)}
    assert found == set(np.flatnonzero(p).tolist())
    assert len(found) > 1


def test_an_edit_beyond_f32_of_a_token_that_is_masked_harms_nobody() -> None:
    """What the mask forbids counts for nothing, were it infinite."""
    row = np.zeros((1, VOCAB), np.float32)
    row[0, 5] = 3e38
    for name in SAMPLERS:
        batch = masked_batch(1, [7, 300], repetition_penalty=0.5)
        seen = TokenLists.of([(np.array([5], np.int32), np.ones(1, np.float32))])
        (drawn,) = SAMPLERS[name]().sample(row, dataclasses.replace(batch, seen=seen))
        assert isinstance(drawn, SampledToken)
        assert drawn.token_id in (7, 300)
