"""The whole engine under random operations: no leak, no write to a shared page, no wrong token,
and every request ends. Everything is checked after every operation (see support/)."""

from __future__ import annotations

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule

from octavo.engine.retries import MAX_FAILED_STEPS
from octavo.errors import OverloadedError
from octavo.params import SamplingParams
from support.engine_harness import Harness
from support.random_driver import drive, fail_once, oracle_drafts

ENGINES, OPERATIONS = 80, 250


def test_thousands_of_random_operations() -> None:
    engines = [drive(seed, OPERATIONS) for seed in range(ENGINES)]
    assert sum(h.operations for h in engines) >= 10_000
    # What is checked must also have happened.
    assert sum(h.scheduler.num_preemptions for h in engines) > 50
    assert sum(h.kv.cache.hit_tokens for h in engines) > 1000
    assert sum(h.executor.num_copies for h in engines) > 200
    assert sum(h.executor.num_swaps for h in engines) > 20
    found = [h.reasons[key] for h in engines for key in h.searched & h.reasons.keys()]
    assert min(found.count(reason) for reason in ("stop", "length", "abort", "error")) > 10
    assert sum(h.num_suspensions() for h in engines) > 5
    reasons = [reason for h in engines for reason in h.reasons.values()]
    assert min(reasons.count(reason) for reason in ("stop", "length", "abort", "error")) > 20
    plans = [plan for h in engines for plan in h.executor.plans]
    assert sum(len(step.drafts) for plan in plans for step in plan.steps) > 500


def test_random_operations_with_an_encoder() -> None:
    engines = [drive(seed, OPERATIONS, encoder=True) for seed in range(ENGINES // 2)]
    assert sum(h.operations for h in engines) >= 5_000
    assert sum(h.scheduler.num_preemptions for h in engines) > 50
    assert sum(h.kv.cache.hit_tokens for h in engines) > 100
    plans = [plan for h in engines for plan in h.executor.plans]
    inputs = [new.encoder for plan in plans for new in plan.new_rows]
    assert all(inputs)
    assert sum(e is not None and e.compute for e in inputs) > 200
    assert sum(e is not None and not e.compute for e in inputs) > 200


@pytest.mark.slow
def test_a_hundred_thousand_random_operations() -> None:
    """The same with other seeds; drive() ends with every page free again, as at the start."""
    assert sum(drive(seed, OPERATIONS).operations for seed in range(10_000, 10_420)) > 100_000


class EngineMachine(RuleBasedStateMachine):
    """The same by hypothesis, which shrinks what it finds."""

    @initialize(data=st.data())
    def build(self, data: st.DataObject) -> None:
        page_size = data.draw(st.integers(1, 5), "page_size")
        max_model_len = data.draw(st.integers(4, 30), "max_model_len")
        spare = data.draw(st.integers(0, 12), "spare pages")
        drafts = data.draw(st.sampled_from([0, 0, 3]), "drafts")
        budget = data.draw(st.sampled_from([1, 2, 5, 12, 40]), "budget")
        longest = 0 if drafts else data.draw(st.integers(0, budget), "max_encoder_len")
        self.h = Harness(
            num_pages=-(-max_model_len // page_size) + -(-longest // page_size) + spare,
            page_size=page_size,
            max_model_len=max_model_len,
            max_num_seqs=data.draw(st.integers(1, 5), "max_num_seqs"),
            max_num_batched_tokens=budget,
            max_encoder_len=longest,
            enable_prefix_caching=data.draw(st.booleans(), "caching"),
            max_waiting=16,
            depth=data.draw(st.sampled_from([1, 2]), "depth"),
            vocab_size=7,
            propose=oracle_drafts(7, drafts) if drafts else None,
        )

    @rule(
        tokens=st.lists(st.integers(1, 2), min_size=1, max_size=29),
        n=st.sampled_from([1, 1, 3]),
        max_tokens=st.sampled_from([None, 1, 4, 20]),
        temperature=st.sampled_from([0.0, 1.0]),
        ignore_eos=st.booleans(),
        priority=st.integers(-1, 1),
        salt=st.sampled_from([None, "x"]),
        source=st.lists(st.integers(1, 2), min_size=1, max_size=12),
    )
    def add(
        self,
        tokens: list[int],
        n: int,
        max_tokens: int | None,
        temperature: float,
        ignore_eos: bool,
        priority: int,
        salt: str | None,
        source: list[int],
    ) -> None:
        source = source[: self.h.config.max_encoder_len]
        tokens = tokens[: self.h.config.max_model_len - 1]
        params = SamplingParams(n=n, max_tokens=max_tokens, temperature=temperature, ignore_eos=ignore_eos)
        waiting, config = self.h.core.num_waiting, self.h.config
        if waiting >= 16 or waiting + n > config.max_sequences:
            with pytest.raises(OverloadedError):
                self.h.add(tokens, params, encoder=source)
            return
        self.h.add(tokens, params, priority=priority, salt=salt, encoder=source)

    @rule(count=st.integers(1, 8))
    def step(self, count: int) -> None:
        for _ in range(count):
            self.h.step()

    @precondition(lambda self: self.h.unfinished())
    @rule(data=st.data(), whole=st.booleans())
    def abort(self, data: st.DataObject, whole: bool) -> None:
        name, index = data.draw(st.sampled_from(self.h.unfinished()))
        self.h.abort(name, None if whole else index)
        assert (name, index) in self.h.reasons

    @precondition(lambda self: self.h.unfinished() and self.h.core.failed_steps < MAX_FAILED_STEPS - 1)
    @rule(what=st.sampled_from(["row", "step", "request"]))
    def fail(self, what: str) -> None:
        fail_once(self.h, what)

    @rule()
    def reset_cache(self) -> None:
        self.h.core.reset_prefix_cache()

    def teardown(self) -> None:
        if hasattr(self, "h"):
            self.h.drain_and_check()


EngineMachine.TestCase.settings = settings(max_examples=150, stateful_step_count=30, deadline=None)
TestEngine = EngineMachine.TestCase
