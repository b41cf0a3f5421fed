"""Steps of a real runner fail, stand still and panic at random, before they compute or after all of it: only
the requests that make them fail end, and the others' bits are those of a quiet run."""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from octavo.engine.core import EngineCore
from octavo.engine.retries import FAILED, StepRetries
from octavo.engine.step_plan import StepPlan
from octavo.params import BeamSearchParams, SamplingParams
from octavo.runtime.states import RequestStates
from octavo.spec.ngram import NGram
from support.late_device import Queue
from support.tiny_engine import MAX_MODEL_LEN, Answers, save_tiny_llama, tiny_engine

DRAWN = SamplingParams(temperature=0.9, ignore_eos=True, logprobs=2)
WISHES = (
    SamplingParams(max_tokens=9, temperature=0, ignore_eos=True),
    DRAWN.replace(max_tokens=14, seed=1),
    DRAWN.replace(max_tokens=8, seed=2, n=2),
    DRAWN.replace(max_tokens=8, seed=3, repetition_penalty=1.3, allowed_token_ids=range(3, 60)),
    DRAWN.replace(max_tokens=3, seed=4, prompt_logprobs=1),
    SamplingParams(max_tokens=6, n=2, beam_search=BeamSearchParams(2, 6)),
)
SMALL: dict[str, Any] = {"max_num_seqs": 6, "num_pages": 24, "max_num_batched_tokens": 48}


class Panic(BaseException):
    """As pyo3_runtime.PanicException: no Exception."""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_tiny_llama(tmp_path_factory.mktemp("tiny-llama"))


class Faults:
    """Puts faults into an engine's steps.

    Attributes:
        bad: requests that make each of their steps fail. count: how many faults there were, by kind.
    """

    def __init__(self, core: EngineCore, rng: random.Random, bad: set[str]) -> None:
        self.bad, self.count = bad, {"bad": 0, "burst": 0, "hang": 0}
        self._core = core
        self._rng, self._left, self._rows = rng, 0, dict[int, str]()
        executor: Any = core._executor
        self._submit: Callable[[StepPlan], Any] = executor.submit
        executor.submit = self

    @staticmethod
    def _is_probe(plan: StepPlan) -> bool:
        """The engine's own step, which says whether anything can be computed."""
        return any(new.request_id == "" for new in plan.new_rows)

    def __call__(self, plan: StepPlan) -> Any:
        self._rows |= {new.row: new.request_id for new in plan.new_rows}
        mine = any(self._rows.get(step.row) in self.bad for step in plan.steps)
        sound = not mine and not self._left and not self._core.recovery.pending and not self._is_probe(plan)
        if sound and self._rng.random() < 0.06:
            self._left = self._rng.randint(1, 2)
        if self._rng.random() < 0.05:
            self.count["hang"] += 1
            time.sleep(0.01)
        if not mine and not self._left:
            return self._submit(plan)
        self.count["bad" if mine else "burst"] += 1
        self._left = max(self._left - 1, 0)
        if self._rng.random() < 0.7:
            self._submit(plan).result()  # all of it is done, and nobody hears of it
        raise self._rng.choice(
            [OSError(5, "a secret path", "/home/operator/m.gguf"), Panic("rust"), ValueError()]
        )


def crowd(core: EngineCore, rng: random.Random, bad: set[str] | None = None) -> Answers:
    """Requests that come one after the other, to the end of all. The same for the same rng."""
    answers, left = Answers(), []
    for number in range(14):
        head = [40 + number % 3] * rng.choice((3, 20, 33))
        left.append(
            (
                f"r{number}",
                head + [rng.randrange(3, 90) for _ in range(rng.randint(1, 20))],
                rng.choice(WISHES),
            )
        )
    if bad is not None:
        bad.update(rng.sample([name for name, _, _ in left], 2))
    while left or core.has_unfinished():
        for _ in range(min(len(left), 2)):
            core.add_request(*left.pop())
        answers.take(core.step())
        core.check_integrity()
    return answers


def meet(folder: Path, seed: int, **options: Any) -> dict[str, int]:
    """One crowd, quiet and with faults. (In a thread that signals do not reach: panics are faults there.)"""
    quiet = crowd(tiny_engine(folder, **SMALL, **options), random.Random(seed))
    if options.get("late") is not None:
        options["late"] = Queue()
    core = tiny_engine(folder, **SMALL, **options)
    bad: set[str] = set()
    faults = Faults(core, random.Random(seed), bad)
    with ThreadPoolExecutor(1) as pool:
        found = pool.submit(crowd, core, random.Random(seed), bad).result()
    for key, reason in found.reasons.items():
        if key[0] in bad:
            assert reason == "error"
        else:
            assert (found.tokens[key], reason) == (quiet.tokens[key], quiet.reasons[key]), key
    return faults.count


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"enable_prefix_caching": False},
        {"depth": 2, "late": True},
        {"speculate": 4, "max_sampled_rows": 40},
    ],
    ids=str,
)
def test_the_others_have_the_bits_of_a_quiet_run(folder: Path, options: dict[str, Any]) -> None:
    if "late" in options:
        options = {**options, "late": Queue()}
    if "speculate" in options:
        options = {**options, "speculate": (NGram(1, 5, MAX_MODEL_LEN), 4)}
    counts = [meet(folder, seed, **options) for seed in range(12)]
    assert all(sum(count[kind] for count in counts) > 10 for kind in ("bad", "burst", "hang"))


def test_what_clients_hear(folder: Path) -> None:
    core = tiny_engine(folder, **SMALL)
    Faults(core, random.Random(0), {"bad"})
    core.add_request("bad", [3, 4, 5])

    def steps() -> list[Any]:
        return [update.stop_reason for _ in range(3) for update in core.step() if update.finish_reason]

    with ThreadPoolExecutor(1) as pool:
        assert pool.submit(steps).result() == [FAILED]


def count_what_failed_as_computed(patch: pytest.MonkeyPatch) -> None:
    """Its pages go to the prefix cache then, whatever is in them."""
    put_back = StepRetries._put_back

    def mutant(self: StepRetries, requests: Any) -> None:
        for request in requests:
            request.kv.num_computed_tokens = request.kv.num_scheduled_tokens
        put_back(self, requests)

    patch.setattr(StepRetries, "_put_back", mutant)


def keep_the_rows_tokens(patch: pytest.MonkeyPatch) -> None:
    """A row that begins again keeps the length that a failed step has left it with."""
    start = RequestStates.start

    def mutant(self: RequestStates, new: Any) -> None:
        before = int(self.length[new.row])
        start(self, new)
        self.length[new.row] = max(before, int(self.length[new.row]))

    patch.setattr(RequestStates, "start", mutant)


@pytest.mark.parametrize("mutate", [count_what_failed_as_computed, keep_the_rows_tokens])
def test_the_mutant_is_caught(
    folder: Path, mutate: Callable[[pytest.MonkeyPatch], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    quiet = {seed: crowd(tiny_engine(folder, **SMALL), random.Random(seed)) for seed in range(4)}
    mutate(monkeypatch)

    def differs(seed: int) -> bool:
        core, bad = tiny_engine(folder, **SMALL), set[str]()
        Faults(core, random.Random(seed), bad)
        try:
            with ThreadPoolExecutor(1) as pool:
                found = pool.submit(crowd, core, random.Random(seed), bad).result()
        except Exception:
            return True
        return any(
            found.tokens[key] != quiet[seed].tokens[key] for key in quiet[seed].tokens if key[0] not in bad
        )

    assert any(differs(seed) for seed in quiet)
