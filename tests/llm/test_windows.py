"""A model with a sliding window says the same, to the last bit, when pages behind it are given back."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from octavo import LLM, SamplingParams
from octavo.engine.groups.windows import Window
from octavo.engine.page_pool import IntegrityError
from octavo.errors import CapacityError
from octavo.kernels.select import native_available
from octavo.runtime.states import RequestStates
from support.crowds import PARAMS, Crowd, crowds, prompts
from support.late_device import Queue
from support.tiny_engine import BACKENDS, run, save_tiny_mistral, save_words, tiny_engine

WINDOWS = (15, 16, 17, 33)
CASES = 25
native = pytest.mark.skipif(not native_available(), reason="promised of the native kernels")


@pytest.fixture(scope="module", params=WINDOWS)
def window(request: pytest.FixtureRequest) -> int:
    found: int = request.param
    return found


@pytest.fixture(scope="module")
def mistral(window: int, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_tiny_mistral(tmp_path_factory.mktemp(f"mistral-{window}"), window)


@native
def test_random_crowds_change_no_bit(mistral: Path, window: int) -> None:
    met = crowds(mistral, range(CASES), window=window)
    assert [crowd.differing for crowd in met if crowd.differing] == []
    happened = sum((crowd.happened for crowd in met), Counter[str]())
    assert happened["compared"] > 2 * len(met)
    assert happened["steps with pages behind a window gone"] > 5 * len(met)
    assert happened["tokens from the cache"] > len(met)


@native
def test_on_a_device_that_answers_late(mistral: Path, window: int) -> None:
    """Two steps in flight: what the first one still reads is not given away by the second."""
    met = [Crowd(mistral, seed, Queue(), window).meet() for seed in range(8)]
    assert [crowd.differing for crowd in met if crowd.differing] == []
    assert sum(crowd.happened["steps with pages behind a window gone"] for crowd in met) > 20


@pytest.mark.slow
@native
def test_many_random_crowds_change_no_bit(mistral: Path, window: int) -> None:
    met = crowds(mistral, range(1000, 1400), window=window)
    assert [crowd.differing for crowd in met if crowd.differing] == []
    happened = sum((crowd.happened for crowd in met), Counter[str]())
    assert happened["preempted"] > len(met) // 8
    assert happened["steps with pages swapped out"] > len(met) // 8
    assert happened["tokens from disk"] > len(met)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("page_size", [4, 16])
def test_alone_with_chunks(mistral: Path, window: int, backend: str, page_size: int) -> None:
    """And on the reference, whose sums depend on nothing here: same batch, same shapes."""
    prompt, params = list(prompts()[5]), replace(PARAMS[1], max_tokens=60)
    options: dict[str, Any] = {"page_size": page_size, "max_num_batched_tokens": 7}
    whole = run(tiny_engine(mistral, backend, **options), prompt, params)
    engine = tiny_engine(mistral, backend, window=window, enable_prefix_caching=False, **options)
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


@native
@pytest.mark.parametrize("mutate", [a_page_too_early, the_spare_page_too_early], ids=lambda m: m.__name__)
def test_the_mutant_is_caught(mutate: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = save_tiny_mistral(tmp_path, 16)
    assert crowds(folder, range(1), window=16)[0].differing == []
    mutate(monkeypatch)
    try:
        met = crowds(folder, range(CASES), lambda crowd: crowd.differing, 16)
    except IntegrityError:
        return  # the books do not agree
    assert met[-1].differing, "no crowd noticed"


# --- the whole way ------------------------------------------------------------------------------------


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_context_longer_than_the_pool(backend: str, tmp_path: Path) -> None:
    """LLM finds the window in config.json, and a context is served that the pool could never hold."""
    folder = save_words(save_tiny_mistral(tmp_path, 16))
    prompt = {"prompt_token_ids": list(prompts()[5])}
    params = SamplingParams(temperature=0, max_tokens=90, ignore_eos=True, logprobs=0)
    options: dict[str, Any] = {"backend": backend, "max_model_len": 160, "max_num_batched_tokens": 8}
    answers = []
    for num_pages in (3, 10):
        llm = LLM(str(folder), num_pages=num_pages, page_size=16, **options)
        [found] = llm.generate([prompt], params)
        answers.append([(list(found.outputs[0].token_ids), found.outputs[0].cumulative_logprob)])
    assert answers[0] == answers[1]
    assert len(answers[0][0][0]) == 90
    with pytest.raises(CapacityError, match="max_model_len 160 needs 3 pages of 16 tokens, 2 fit"):
        LLM(str(folder), num_pages=2, page_size=16, **options)
