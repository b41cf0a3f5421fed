"""A model some of whose layers have a window says the same, to the last bit, with few pages for them."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from octavo import LLM, SamplingParams
from octavo.engine.groups.sliding_pages import SlidingPages
from octavo.engine.groups.windows import Window
from octavo.engine.page_pool import IntegrityError
from octavo.errors import CapacityError, InvalidRequestError
from octavo.kernels.select import native_available
from octavo.runtime.states import RequestStates
from support.crowds import PARAMS, Crowd, crowds, prompts
from support.late_device import Queue
from support.tiny_engine import BACKENDS, run, save_tiny_mixed, save_words, tiny_engine

WINDOWS = (15, 16, 17, 33)
CASES = 25
native = pytest.mark.skipif(not native_available(), reason="promised of the native kernels")


@pytest.fixture(scope="module", params=WINDOWS)
def window(request: pytest.FixtureRequest) -> int:
    found: int = request.param
    return found


@pytest.fixture(scope="module")
def mixed(window: int, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_tiny_mixed(tmp_path_factory.mktemp(f"mixed-{window}"), window)


@native
def test_random_crowds_change_no_bit(mixed: Path, window: int) -> None:
    met = crowds(mixed, range(CASES), sliding=window)
    assert [crowd.differing for crowd in met if crowd.differing] == []
    happened = sum((crowd.happened for crowd in met), Counter[str]())
    assert happened["compared"] > 2 * len(met)
    assert happened["steps with sliding pages gone"] > 5 * len(met)
    assert happened["tokens from the cache"] > len(met)


@native
def test_on_a_device_that_answers_late(mixed: Path, window: int) -> None:
    """Two steps in flight: what the first one still reads is not given away by the second."""
    met = [Crowd(mixed, seed, Queue(), sliding=window).meet() for seed in range(8)]
    assert [crowd.differing for crowd in met if crowd.differing] == []
    assert sum(crowd.happened["steps with sliding pages gone"] for crowd in met) > 20


@pytest.mark.slow
@native
def test_many_random_crowds_change_no_bit(mixed: Path, window: int) -> None:
    met = crowds(mixed, range(1000, 1400), sliding=window)
    assert [crowd.differing for crowd in met if crowd.differing] == []
    happened = sum((crowd.happened for crowd in met), Counter[str]())
    assert happened["preempted"] > len(met) // 8
    assert happened["steps with pages swapped out"] > len(met) // 8
    assert happened["tokens from disk"] > len(met)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("page_size", [4, 16])
def test_alone_with_chunks(mixed: Path, window: int, backend: str, page_size: int) -> None:
    """And on the reference, whose sums depend on nothing here: same batch, same shapes."""
    prompt, params = list(prompts()[5]), replace(PARAMS[1], max_tokens=60)
    options: dict[str, Any] = {"page_size": page_size, "max_num_batched_tokens": 7}
    whole = run(tiny_engine(mixed, backend, **options), prompt, params)
    few = -(-(window + 12) // page_size) + 1
    options |= {"sliding_window": window, "num_sliding_pages": few, "enable_prefix_caching": False}
    engine = tiny_engine(mixed, backend, **options)
    assert run(engine, prompt, params) == whole


# --- mistakes ---------------------------------------------------------------------------------------


def a_page_too_early(patch: pytest.MonkeyPatch) -> None:
    def mutant(self: Window, computed: int) -> int:
        return max(computed - self.size + 1 + self.page_size, 0) // self.page_size

    patch.setattr(Window, "first_page", mutant)


def the_spare_page_too_early(patch: pytest.MonkeyPatch) -> None:
    passed = RequestStates.pass_window

    def mutant(self: RequestStates, step: Any) -> None:
        passed(self, replace(step, start=step.start + self.page_size))

    patch.setattr(RequestStates, "pass_window", mutant)


def the_whole_hit(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(SlidingPages, "usable", lambda self, pages: len(pages))


@native
@pytest.mark.parametrize(
    "mutate", [a_page_too_early, the_spare_page_too_early, the_whole_hit], ids=lambda m: m.__name__
)
def test_the_mutant_is_caught(mutate: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = save_tiny_mixed(tmp_path, 16)
    assert crowds(folder, range(1), sliding=16)[0].differing == []
    mutate(monkeypatch)
    try:
        met = crowds(folder, range(CASES), lambda crowd: crowd.differing, sliding=16)
    except IntegrityError:
        return  # the books do not agree
    assert met[-1].differing, "no crowd noticed"


# --- the whole way ------------------------------------------------------------------------------------


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_context_longer_than_the_sliding_pages(backend: str, tmp_path: Path) -> None:
    """LLM finds the windows in config.json; 3 sliding pages serve what 10 would hold."""
    folder = save_words(save_tiny_mixed(tmp_path, 16))
    prompt = {"prompt_token_ids": list(prompts()[5])}
    params = SamplingParams(temperature=0, max_tokens=90, ignore_eos=True, logprobs=0)
    options: dict[str, Any] = {"backend": backend, "max_model_len": 160, "max_num_batched_tokens": 8}
    answers, sizes = [], []
    for count in (3, 10):
        llm = LLM(str(folder), num_pages=10, num_sliding_pages=count, max_num_seqs=1, **options)
        [found] = llm.generate([prompt], params)
        answers.append([(list(found.outputs[0].token_ids), found.outputs[0].cumulative_logprob)])
        sizes.append(llm._loaded.memory.kv_cache)
        assert llm._loaded.config.num_sliding_pages == count
    assert answers[0] == answers[1]
    assert len(answers[0][0][0]) == 90
    assert sizes[0] * 20 == sizes[1] * 13
    with pytest.raises(InvalidRequestError, match="needs 3 sliding pages"):
        LLM(str(folder), num_pages=10, num_sliding_pages=2, **options)
    with pytest.raises(CapacityError, match="num_sliding_pages 11: 10 pages fit"):
        LLM(str(folder), num_pages=10, num_sliding_pages=11, **options)
    with pytest.raises(InvalidRequestError, match="all layers share one pool of pages"):
        LLM(str(folder), num_sliding_pages=3, **{**options, "max_model_len": 24})
