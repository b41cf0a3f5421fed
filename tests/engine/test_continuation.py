"""Requests that begin with what has been generated already: what is refused, and what is counted once."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from octavo.config import SchedulerConfig
from octavo.engine.admission import Admission
from octavo.engine.beams import BeamSearches
from octavo.engine.core import EngineCore
from octavo.engine.request import EngineRequest, Namespace, Request
from octavo.errors import InvalidRequestError
from octavo.params import BeamSearchParams, SampledToken, SamplingParams
from octavo.sampling.beam import BeamSearch
from support.toy_executor import EOS, Toy, ToyExecutor, alone

LIMIT = 40
GREEDY = SamplingParams(max_tokens=8, ignore_eos=True, temperature=0.0)
PROMPT = [3, 4, 5, 6, 7]


def core(**config: Any) -> EngineCore:
    numbers = SchedulerConfig(num_pages=16, page_size=4, max_model_len=LIMIT, max_num_seqs=4, **config)
    return EngineCore(Admission(numbers, frozenset({EOS}), 64, BeamSearches(BeamSearch)), ToyExecutor(16, 4))


def going_on(ids: list[int], params: SamplingParams = GREEDY, index: int | None = None) -> EngineRequest:
    return EngineRequest("r", PROMPT, params, generated=tuple(map(SampledToken, ids)), index=index)


def finish(engine: EngineCore) -> tuple[list[int], str | None, int]:
    """(ids, reason, cached prompt tokens) of the one request that is there."""
    ids, reason, cached = list[int](), None, 0
    while engine.has_unfinished():
        for update in engine.step():
            ids += [token.token_id for token in update.tokens]
            reason, cached = update.finish_reason or reason, update.num_cached_tokens
    engine.check_integrity()
    return ids, reason, cached


@pytest.mark.parametrize("cut", range(8))
@pytest.mark.parametrize(("n", "index"), [(1, None), (3, 2)])
@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_an_answer_goes_on_from_every_token(cut: int, n: int, index: int | None, temperature: float) -> None:
    params = GREEDY.replace(n=n, temperature=temperature, seed=9)
    whole, reason = alone(PROMPT, params, 9, index or 0, LIMIT, Toy())
    engine = core()
    request = going_on(whole[:cut], params, index)
    engine.check(request)
    assert engine.add(request, 0.0) == 9
    assert finish(engine)[:2] == (whole[cut:], reason)
    stats = engine.stats()
    assert (stats.prompt_tokens, stats.generated_tokens) == (len(PROMPT), len(whole) - cut)


def test_cached_tokens_are_the_prompts_alone() -> None:
    engine, whole = core(), alone(PROMPT, GREEDY, 0, 0, LIMIT, Toy())[0]
    for _ in range(2):
        engine.add(going_on(whole[:7]), 0.0)
        ids, _, cached = finish(engine)
        assert ids == whole[7:]
    assert cached == len(PROMPT), "of 12 known tokens 8 came from the cache, and 5 of them are the prompt"
    stats = engine.stats()
    assert (stats.prefix_queries, stats.prefix_hits) == (24, 8)


@pytest.mark.parametrize(
    ("ids", "params", "index", "message", "param"),
    [
        ([1], {"n": 2}, None, "2 completions go on one at a time: give index", "index"),
        ([1], {"n": 2}, 2, "from 0 to 1, not 2: n is 2, give the n that the answer was one of$", "index"),
        ([1], {}, 1, "from 0 to 0, not 1: n is 1, give the n that the answer was one of$", "index"),
        ([], {}, -1, "index must be from 0 to 0, not -1$", "index"),
        ([], {}, "0", "index must be from 0 to 0, not '0'$", "index"),
        ([], {}, True, "index must be from 0 to 0, not True$", "index"),
        ([1] * 8, {}, None, "has 8 tokens, and the answer ends with 8", "generated_token_ids"),
        (
            [1] * 35,
            {"max_tokens": None},
            None,
            "35 tokens, and the answer ends with 35",
            "generated_token_ids",
        ),
        ([1, 64], {}, None, "token id 64 of generated_token_ids is not in the", "generated_token_ids"),
        ([1, -1], {}, None, "token id -1 of generated_token_ids is not in the", "generated_token_ids"),
        ([1, EOS], {"ignore_eos": False}, None, f"hold {EOS}, which ends an answer", "generated_token_ids"),
        ([9, 1], {"stop_token_ids": [9]}, None, "hold 9, which ends an answer", "generated_token_ids"),
        ([9, 1], {"allowed_token_ids": [1]}, None, "hold 9, allowed_token_ids do not", "generated_token_ids"),
        ([1], {"temperature": 1.0}, None, "goes on with the seed that it began with", "seed"),
        (
            [1],
            {"prompt_logprobs": 0},
            None,
            "prompt_logprobs is for a request that begins",
            "prompt_logprobs",
        ),
        ([1], {"pooling": "last"}, None, "pooling is for a request that begins", "pooling"),
        (
            [1],
            {"n": 2, "beam_search": BeamSearchParams(2, 8)},
            None,
            "beam_search is for a request that begins",
            "beam_search",
        ),
    ],
)
def test_what_cannot_go_on_is_refused_by_name(
    ids: list[int], params: dict[str, Any], index: Any, message: str, param: str
) -> None:
    engine = core()
    with pytest.raises(InvalidRequestError, match=message) as caught:
        engine.check(going_on(ids, GREEDY.replace(**params), index))
    assert caught.value.param == param


def test_a_stop_token_before_min_tokens_has_ended_nothing() -> None:
    core().check(going_on([9, 1], GREEDY.replace(stop_token_ids=[9], min_tokens=1)))


def test_one_of_n_takes_the_room_of_one() -> None:
    engine = core(max_waiting=1)
    request = EngineRequest("r", PROMPT, GREEDY.replace(n=30), index=29)
    engine.check(request)
    engine.add(request, 0.0)
    assert engine.num_waiting == 1


def prompt_and_answer_are_one(patch: pytest.MonkeyPatch) -> None:
    made = Request.__post_init__

    def mutant(self: Request) -> None:
        made(self)
        self.num_prompt_tokens = len(self.token_ids)

    patch.setattr(Request, "__post_init__", mutant)


def begin_again(patch: pytest.MonkeyPatch) -> None:
    made = Request.__post_init__

    def mutant(self: Request) -> None:
        made(self)
        self.token_ids = list(self.source.prompt_token_ids)

    patch.setattr(Request, "__post_init__", mutant)


def any_of_n(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(EngineRequest, "indexes", property(lambda self: (0,)))


@pytest.mark.parametrize("mutant", [prompt_and_answer_are_one, begin_again, any_of_n])
def test_mutants_are_seen(
    mutant: Callable[[pytest.MonkeyPatch], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    mutant(monkeypatch)
    with pytest.raises(AssertionError):
        test_an_answer_goes_on_from_every_token(5, 3, 2, 1.0)


# --- namespaces ---------------------------------------------------------------------------------------


def test_keys_of_namespaces() -> None:
    assert Namespace().key is None
    assert Namespace("tenant").key == "tenant"
    digest = "17f8af97ad4a7f7639a4c9171d5185cbafb85462877a4746c21bdb0a4f940ca0"  # SHA-256 of "1,2"
    assert Namespace("tenant", (1, 2)).key == f"'tenant'/{digest}", "pages on disk are named so"


def test_namespaces_differ_in_each_of_their_parts() -> None:
    salts = (None, "a", "\0a", "'a'", repr((None, "x", "")), "\0" + repr((None, "x", "")))
    made = [
        Namespace(salt, encoder, adapter, how)
        for salt in salts
        for encoder in ((), (1,), (1, 2))
        for adapter in ("", "x")
        for how in ("", "exit at 3")
    ]
    assert len({space.key for space in made}) == len(made)


def test_a_request_names_its_encoder_input_in_its_namespace() -> None:
    request = EngineRequest("r", [1], GREEDY, encoder_token_ids=(4, 5), namespace=Namespace("s"))
    assert request.namespace == Namespace("s", (4, 5))
