"""The short way through a step of decoding: tokens as on the long one, whatever some of its rows ask for."""

from __future__ import annotations

import random
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.support.tiny_engine import VOCAB_SIZE, Answers, save_tiny_llama, tiny_engine

from octavo.engine.core import EngineCore
from octavo.kernels.ops import RowDecoder
from octavo.kernels.select import native_available
from octavo.params import SamplingParams, StructuredOutputsParams
from octavo.runtime import model_runner
from octavo.runtime.model_runner import Decoding
from octavo.sampling import SamplingRows, refusals
from octavo.sampling.constraints import AllowedTokens, ConstraintError
from octavo.structured import ConstraintCompiler
from octavo.structured.grammar import GrammarMatcher
from support.grammars import WordTokenizer

pytestmark = pytest.mark.skipif(not native_available(), reason="the reference has no short way")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_tiny_llama(tmp_path_factory.mktemp("tiny"))


class Counted:
    """How often the short way was taken, and refused."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.taken = self.refused = 0
        run = Decoding.run

        def counted(decoding: Decoding, *args: Any) -> Any:
            result = run(decoding, *args)
            self.taken += result is not None
            self.refused += result is None
            return result

        monkeypatch.setattr(Decoding, "run", counted)


def crowd(rng: random.Random, plain: bool) -> list[tuple[list[int], SamplingParams]]:
    """Prompts that come with all that a record holds and, unless plain, with what it does not."""
    requests = []
    for seed in range(rng.randrange(1, 7)):
        options: dict[str, Any] = {"seed": seed, "max_tokens": rng.randrange(1, 40)}
        options["temperature"] = rng.choice([0.0, 0.7, 1.3])
        options |= rng.choice([{}, {"top_k": 5}, {"top_p": 0.8}, {"min_p": 0.1}, {"typical_p": 0.7}])
        options["ignore_eos"] = rng.random() < 0.5
        if not plain:
            options |= rng.choice(
                [
                    {},
                    {"logprobs": 3},
                    {"repetition_penalty": 1.5},
                    {"min_tokens": min(9, options["max_tokens"])},
                    {"logit_bias": {7: 4.0}},
                    {"allowed_token_ids": sorted(rng.sample(range(VOCAB_SIZE), 20))},
                ]
            )
        prompt = [rng.randrange(3, VOCAB_SIZE) for _ in range(rng.randrange(1, 40))]
        requests.append((prompt, SamplingParams(**options)))
    return requests


def drive(core: EngineCore, requests: list[tuple[list[int], SamplingParams]]) -> Answers:
    answers = Answers()
    for number, (prompt, params) in enumerate(requests):
        core.add_request(str(number), prompt, params)
    while core.has_unfinished():
        answers.take(core.step())
    core.check_integrity()
    return answers


@pytest.mark.parametrize("plain", [True, False])
@pytest.mark.parametrize("page_size", [1, 5, 16])
def test_equal_to_the_long_way(
    folder: Path, monkeypatch: pytest.MonkeyPatch, plain: bool, page_size: int
) -> None:
    for seed in range(8):
        requests = crowd(random.Random(seed), plain)
        options: dict[str, Any] = {"page_size": page_size, "num_pages": 480 // page_size, "threads": 2}
        with monkeypatch.context() as patch:
            patch.setattr(Decoding, "run", lambda *_: None)
            long = drive(tiny_engine(folder, **options), requests)
        with monkeypatch.context() as patch:
            counted = Counted(patch)
            short = drive(tiny_engine(folder, **options), requests)
        assert short.tokens == long.tokens
        assert short.reasons == long.reasons
        if max(params.max_tokens or 0 for _, params in requests) > 2 and plain:
            assert counted.taken > 0


LIMITED = SamplingParams(max_tokens=9, temperature=0.9, seed=1, allowed_token_ids=[5, 6, 7], ignore_eos=True)
NARROWED = LIMITED.replace(top_p=0.9)


class Watched:
    """A decoder that tells what is left of its steps, and whether one is under way."""

    def __init__(self, decoder: RowDecoder) -> None:
        self._inner = decoder
        self.left: list[int] = []
        self.asked: list[int] = []
        self.scored: list[int] = []
        self.lifted: list[int] = []
        self.under_way = threading.Event()

    def step(
        self,
        rows: Any,
        starts: Any,
        left: Any = (),
        asked: Any = None,
        scored: Any = None,
        lifted: Any = None,
    ) -> list[int]:
        self.left.append(len(left))
        self.asked.append(len(asked.places) if asked else 0)
        self.scored.append(len(scored.places) if scored else 0)
        self.lifted.append(len(lifted.places) if lifted else 0)
        self.under_way.set()
        try:
            return self._inner.step(rows, starts, left, asked, scored, lifted)
        finally:
            self.under_way.clear()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)


def watched(core: EngineCore) -> Watched:
    decoding: Any = core._executor._decoding  # type: ignore[attr-defined]
    found = Watched(decoding.decoder)
    decoding.decoder = decoding._apart._decoder = found
    return found


@pytest.mark.parametrize("limited", [LIMITED, NARROWED], ids=["free", "narrowed"])
def test_masks_that_must_be_known_come_before_a_forward_that_has_every_core(
    folder: Path, monkeypatch: pytest.MonkeyPatch, limited: SamplingParams
) -> None:
    """And beside it where a core is idle: the same tokens, and the row without a mask is never left."""
    found = []
    for cores in (2, 3):
        monkeypatch.setattr(model_runner, "usable_threads", lambda cores=cores: cores)
        core = tiny_engine(folder, threads=2)
        decoder, batch, threads = watched(core), SamplingRows.batch, []

        def noted(rows: SamplingRows, *args: Any, batch: Any = batch, threads: Any = threads) -> Any:
            threads.append(threading.get_ident())
            return batch(rows, *args)

        with monkeypatch.context() as patch:
            counted = Counted(patch)
            patch.setattr(SamplingRows, "batch", noted)
            requests = [([5, 6, 7], limited), ([9], limited.replace(allowed_token_ids=None))]
            found.append(drive(core, requests).tokens)
        narrowed = limited is NARROWED
        assert counted.taken == 8
        assert (decoder.left, decoder.asked) == ([narrowed] * 8, [not narrowed] * 8)
        beside = [thread != threading.get_ident() for thread in threads]
        assert beside == [cores == 3] * (1 + 8 * narrowed)  # the prompts' own step is one of them
    assert found[0] == found[1]
    assert {token.token_id for token in found[0]["0", 0]} <= {5, 6, 7}
    assert not {token.token_id for token in found[0]["1", 0]} <= {5, 6, 7}


@pytest.mark.parametrize("limited", [LIMITED, NARROWED], ids=["free", "narrowed"])
def test_a_row_whose_limits_cannot_be_followed_fails_alone(
    folder: Path, monkeypatch: pytest.MonkeyPatch, limited: SamplingParams
) -> None:
    monkeypatch.setattr(model_runner, "usable_threads", lambda: 2)
    core, restrict = tiny_engine(folder, threads=2), AllowedTokens.restrict
    calls = 0

    def failing(matcher: AllowedTokens, mask: Any, ahead: Any = ()) -> None:
        nonlocal calls
        calls += 1
        if calls == 4:
            raise ConstraintError("lost its place")
        restrict(matcher, mask, ahead)

    monkeypatch.setattr(AllowedTokens, "restrict", failing)
    answers = drive(core, [([5, 6, 7], limited), ([9], limited.replace(allowed_token_ids=None))])
    assert answers.reasons == {("0", 0): "error", ("1", 0): "length"}
    assert len(answers.tokens["0", 0]) >= 3
    assert calls == 4


def constrained_crowd(rng: random.Random, make: ConstraintCompiler) -> list[tuple[list[int], SamplingParams]]:
    """Rows with every kind of constraint, and without any, side by side."""
    wishes: list[dict[str, Any]] = [
        {"structured_outputs": StructuredOutputsParams(json=WISHED)},
        {"structured_outputs": StructuredOutputsParams(regex="(abc|ba|the ){3,30}[0-9]*")},
        {"structured_outputs": StructuredOutputsParams(choice=["name", "the abc", "123"])},
        {"bad_words": ["ab", "the", "n"]},
        {"allowed_token_ids": sorted(rng.sample(range(VOCAB_SIZE), 40))},
        {},
    ]
    requests = []
    for seed in range(rng.randrange(1, 8)):
        options: dict[str, Any] = {"seed": seed, "max_tokens": rng.randrange(2, 40), **rng.choice(wishes)}
        options["temperature"] = rng.choice([0.0, 0.8, 1.5])
        options |= rng.choice([{}, {}, {"top_k": 5}, {"top_p": 0.8}, {"min_p": 0.1}, {"typical_p": 0.7}])
        prompt = [rng.randrange(3, VOCAB_SIZE) for _ in range(rng.randrange(1, 20))]
        requests.append((prompt, make.compile(SamplingParams(**options))))
    return requests


WISHED = {
    "type": "object",
    "properties": {"name": {"type": "string", "maxLength": 8}, "age": {"type": "integer", "maximum": 99}},
    "required": ["name", "age"],
}


def eager_and_first(
    folder: Path, monkeypatch: pytest.MonkeyPatch, seeds: range, **options: Any
) -> Iterator[tuple[Answers, Answers, Counted]]:
    """Answers with every mask computed before its draw, and as they come."""
    make = ConstraintCompiler(WordTokenizer())
    for seed in seeds:
        with monkeypatch.context() as patch:
            patch.setattr(Decoding, "run", lambda *_: None)
            eager = drive(tiny_engine(folder, **options), constrained_crowd(random.Random(seed), make))
        with monkeypatch.context() as patch:
            counted = Counted(patch)
            first = drive(tiny_engine(folder, **options), constrained_crowd(random.Random(seed), make))
        yield eager, first, counted


@pytest.mark.parametrize("alone_s", [-1, 1e-4, 1], ids=["all left for later", "some", "none"])
@pytest.mark.parametrize("threads", [1, 2])
def test_drawn_first_or_masked_first_the_tokens_are_equal(
    folder: Path, monkeypatch: pytest.MonkeyPatch, threads: int, alone_s: float
) -> None:
    monkeypatch.setattr(model_runner, "usable_threads", lambda: threads)
    take, again = SamplingRows.take, 0
    monkeypatch.setattr(refusals, "ALONE_S", alone_s)

    def counting(rows: SamplingRows, *args: Any) -> bool:
        nonlocal again
        taken = take(rows, *args)
        again += not taken
        return taken

    monkeypatch.setattr(SamplingRows, "take", counting)
    taken = 0
    for eager, first, counted in eager_and_first(folder, monkeypatch, range(20), threads=threads):
        assert first.tokens == eager.tokens
        assert first.reasons == eager.reasons
        taken += counted.taken
    assert taken > 200
    assert again > 100


@pytest.mark.parametrize("mutant", ["keeps what is refused", "forgets what is forced"])
def test_mistakes_would_be_seen(folder: Path, monkeypatch: pytest.MonkeyPatch, mutant: str) -> None:
    monkeypatch.setattr(model_runner, "usable_threads", lambda: 1)
    if mutant == "keeps what is refused":

        def trusting(rows: SamplingRows, row: int, token: int) -> bool:
            rows.append(row, (token,))
            return True

        monkeypatch.setattr(SamplingRows, "take", trusting)
    else:

        def validated(matcher: GrammarMatcher, token: int) -> bool:
            return bool(matcher.inner.validate_tokens([token]))

        monkeypatch.setattr(GrammarMatcher, "allows", validated)
    pairs = eager_and_first(folder, monkeypatch, range(60))
    assert any(first.tokens != eager.tokens for eager, first, _ in pairs)


@pytest.mark.parametrize(
    "wish",
    [
        {"logprobs": 0},
        {"watermark": True},
        {"watermark": True, "logprobs": 0},
        {"repetition_penalty": 1.5},
        {"frequency_penalty": 1.0},
        {"min_tokens": 5, "ignore_eos": False},
        {"logit_bias": {7: 4.0}},
        {"allowed_token_ids": [5, 6, 7], "temperature": 0.7, "top_p": 0.9},
    ],
    ids=lambda wish: next(iter(wish)),
)
def test_what_a_record_does_not_hold_is_left_to_the_sampler_for_that_row_alone(
    folder: Path, monkeypatch: pytest.MonkeyPatch, wish: dict[str, Any]
) -> None:
    monkeypatch.setattr(model_runner, "usable_threads", lambda: 2)  # masks are computed on the idle one
    counted = Counted(monkeypatch)
    core = tiny_engine(folder)
    decoder = watched(core)
    plain = SamplingParams(max_tokens=9, temperature=0.0, ignore_eos=True)
    options: dict[str, Any] = {"ignore_eos": True, "max_tokens": 6, "temperature": 0.0, **wish}
    drive(core, [([5, 6, 7], SamplingParams(**options)), ([8, 9], plain)])
    assert counted.taken == 8  # all but the prompts' own step
    early = 4 if "min_tokens" in wish else 5  # until then stop ids are banned, and no longer
    kinds = {"logprobs": decoder.scored, "watermark": decoder.lifted}  # the decoder's own to draw
    kind = kinds.get(next(iter(wish)), decoder.left) if len(wish) == 1 else decoder.left
    assert kind == [1] * early + [0] * (8 - early)
    for other in (decoder.left, decoder.asked, decoder.scored, decoder.lifted):
        assert other is kind or other == [0] * 8
    batches: list[Any] = []
    batch = SamplingRows.batch
    monkeypatch.setattr(SamplingRows, "batch", lambda *args: batches.append(args) or batch(*args))
    drive(core, [([5, 6, 7], SamplingParams(max_tokens=6, temperature=0.0, ignore_eos=True))])
    assert decoder.left[8:] == decoder.asked[8:] == [0] * 5
    assert len(batches) == 1  # the prompt's: no other step gathers anything here


def test_a_row_without_a_draw_fails_alone(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What stands in a token's place for an error ends that request; its neighbour goes on."""
    core = tiny_engine(folder)
    decoder = core._executor._decoding.decoder  # type: ignore[attr-defined]
    native = decoder.step
    calls = 0

    def failing(rows: list[int], starts: list[int]) -> list[int]:
        nonlocal calls
        calls += 1
        drawn: list[int] = native(rows, starts)
        return [-2, *drawn[1:]] if calls == 2 else drawn

    monkeypatch.setattr(decoder, "step", failing)
    params = SamplingParams(max_tokens=8, temperature=0.0, ignore_eos=True)
    answers = drive(core, [([5, 6, 7], params), ([8, 9], params)])
    assert answers.reasons == {("0", 0): "error", ("1", 0): "length"}
    assert len(answers.tokens["1", 0]) == 8


def test_the_decoder_refuses_what_is_out_of_range(folder: Path) -> None:
    core = tiny_engine(folder)
    core.add_request("one", [5, 6, 7], SamplingParams(max_tokens=9, temperature=0.0))
    core.step()
    executor: Any = core._executor
    step, states = executor._decoding.decoder.step, executor._states
    row = int(np.flatnonzero(states.length)[0])
    length = int(states.length[row])
    for rows, starts in (
        ([], []),
        ([row], []),
        ([-1], [0]),
        ([states.tokens.shape[0]], [0]),
        ([row], [-1]),
        ([row], [length]),
    ):
        with pytest.raises(ValueError):
            step(rows, starts)
    assert states.length[row] == length
    few = np.full((1, -(-VOCAB_SIZE // 32)), 2**5, np.uint32)
    executor._decoding.decoder.native.ahead = False  # or the next step writes over what is drawn from again
    redraw = executor._decoding.decoder.redraw
    with pytest.raises(ValueError, match="not the last step's"):
        redraw([0], few)  # there was none
    assert step([row], [length - 1])
    assert states.length[row] == length + 1
    for indices, mask in (([1], few), ([-1], few), ([0, 0], np.repeat(few, 2, axis=0)), ([0], few[:, 1:])):
        with pytest.raises(ValueError, match=r"not the last step's|a line of bits"):
            redraw(indices, mask)
    assert step([row], [length])
    assert redraw([0], few) == [5]
    assert states.length[row] == length + 2
    assert states.tokens[row, length + 1] == 5
    with pytest.raises(ValueError, match="not the last step's"):
        redraw([0], few)  # it was drawn again already
    assert step([row], [length + 1])
    assert redraw([0], few * 0) == [-1]
    assert states.length[row] == length + 2
    states.length[row] = length
    executor._samplings.records["num_logprobs"][row] = 1
    with pytest.raises(ValueError, match="log-prob"):
        step([row], [length - 1])
