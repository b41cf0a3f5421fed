"""Rows that ask for everything side by side: each draws what it draws alone, and what the long way draws."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest
from tests.support.tiny_engine import VOCAB_SIZE, Answers, save_tiny_llama, tiny_engine

from octavo.engine.core import EngineCore
from octavo.kernels.select import native_available
from octavo.params import SamplingParams, StructuredOutputsParams
from octavo.runtime import model_runner
from octavo.runtime.model_runner import Decoding
from octavo.sampling.wishes import Wishes
from octavo.structured import ConstraintCompiler
from support.grammars import WordTokenizer

pytestmark = pytest.mark.skipif(not native_available(), reason="the reference has no short way")

WAYS: list[dict[str, Any]] = [
    {"temperature": 0.0},
    {"temperature": 0.8},
    {"temperature": 1.3, "top_k": 5},
    {"temperature": 1.0, "top_p": 0.8},
    {"temperature": 1.5, "min_p": 0.1},
    {"temperature": 1.1, "typical_p": 0.6},
    {"temperature": 0.9, "top_k": 30, "top_p": 0.9, "min_p": 0.02},
]
WISHES: list[dict[str, Any]] = [
    {"logprobs": 0},
    {"logprobs": 5},
    {"repetition_penalty": 1.4},
    {"frequency_penalty": 0.7},
    {"presence_penalty": -0.5},
    {"min_tokens": 6, "stop_token_ids": list(range(3, 50))},
    {"logit_bias": {7: 4.0, 11: -100.0}},
    {"bad_words": ["ab", "the", "n"]},
    {"allowed_token_ids": list(range(3, 60))},
    {"structured_outputs": StructuredOutputsParams(regex="(abc|ba|the ){3,30}[0-9]*")},
    {"prompt_logprobs": 2},
    {"watermark": True},
    {"watermark": {"gamma": 0.25, "delta": 4}},
]
Requests = list[tuple[list[int], SamplingParams]]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_tiny_llama(tmp_path_factory.mktemp("tiny"))


def mixture(rng: random.Random, make: ConstraintCompiler) -> Requests:
    """About half of the rows ask for nothing that their records lack, the others for up to three things."""
    requests = []
    for seed in range(rng.randrange(2, 9)):
        options: dict[str, Any] = {"seed": seed, "max_tokens": rng.randrange(6, 30), **rng.choice(WAYS)}
        for wish in rng.sample(WISHES, rng.choice([0, 0, 0, 1, 1, 2, 3])):
            options |= wish
        if "structured_outputs" in options:
            options.pop("min_tokens", None)
        options["ignore_eos"] = "structured_outputs" not in options and rng.random() < 0.5
        prompt = [rng.randrange(3, VOCAB_SIZE) for _ in range(rng.randrange(1, 30))]
        requests.append((prompt, make.compile(SamplingParams(**options))))
    return requests


def drive(core: EngineCore, requests: Requests) -> Answers:
    answers = Answers()
    for number, (prompt, params) in enumerate(requests):
        core.add_request(str(number), prompt, params)
    while core.has_unfinished():
        answers.take(core.step())
    core.check_integrity()
    return answers


def differing(folder: Path, seeds: range, requests_of: Any) -> list[int]:
    """Seeds of mixtures in which some row's tokens, log-probabilities or end are not those it has alone."""
    found = []
    for seed in seeds:
        requests: Requests = requests_of(seed)
        options: dict[str, Any] = {"page_size": (1, 5, 16)[seed % 3], "threads": 1 + seed % 2}
        options["num_pages"] = 480 // options["page_size"]
        crowd = drive(tiny_engine(folder, **options), requests)
        for number, request in enumerate(requests):
            alone = drive(tiny_engine(folder, **options), [request])
            same = crowd.tokens[str(number), 0] == alone.tokens["0", 0]
            if not (same and crowd.reasons[str(number), 0] == alone.reasons["0", 0]):
                found.append(seed)
                break
    return found


def mixtures(seed: int) -> Requests:
    return mixture(random.Random(seed), ConstraintCompiler(WordTokenizer()))


@pytest.mark.parametrize("cores", [1, 3], ids=["masks before", "masks beside"])
def test_each_row_is_what_it_is_alone(folder: Path, monkeypatch: pytest.MonkeyPatch, cores: int) -> None:
    monkeypatch.setattr(model_runner, "usable_threads", lambda: cores)
    assert differing(folder, range(12), mixtures) == []


@pytest.mark.parametrize("cores", [1, 3], ids=["masks before", "masks beside"])
def test_each_row_is_what_it_is_on_the_long_way(
    folder: Path, monkeypatch: pytest.MonkeyPatch, cores: int
) -> None:
    monkeypatch.setattr(model_runner, "usable_threads", lambda: cores)
    for seed in range(20, 50):
        short = drive(tiny_engine(folder), mixtures(seed))
        with monkeypatch.context() as patch:
            patch.setattr(Decoding, "run", lambda *_: None)
            long = drive(tiny_engine(folder), mixtures(seed))
        assert short.tokens == long.tokens
        assert short.reasons == long.reasons


@pytest.mark.parametrize("forgotten", ["counts", "bias", "limits", "banned", "mark"])
def test_what_a_row_is_not_left_for_would_be_seen(
    folder: Path, monkeypatch: pytest.MonkeyPatch, forgotten: str
) -> None:
    """A row that is drawn by its record alone though it asks for more differs from the long way."""
    needs = Wishes.needs_sampler

    def mutant(wishes: Wishes, position: int) -> bool:
        alone = {name: getattr(wishes, name) for name in ("bias", "banned", "counts", "limits", "mark")}
        alone[forgotten] = None
        return needs(Wishes(scored=wishes.scored, min_position=wishes.min_position, **alone), position)

    def missing(seed: int) -> bool:
        with monkeypatch.context() as patch:
            patch.setattr(Decoding, "run", lambda *_: None)
            long = drive(tiny_engine(folder), mixtures(seed))
        with monkeypatch.context() as patch:
            patch.setattr(Wishes, "needs_sampler", mutant)
            return drive(tiny_engine(folder), mixtures(seed)).tokens != long.tokens

    assert any(missing(seed) for seed in range(20, 50))
