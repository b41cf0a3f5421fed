"""An EngineCore over the toy executor that checks itself after every operation."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from typing import Any

from octavo.config import SchedulerConfig
from octavo.engine.admission import Admission
from octavo.engine.beams import BeamSearches
from octavo.engine.core import EngineCore
from octavo.engine.disk_prefixes import manager_of
from octavo.engine.drafts import Drafts
from octavo.engine.groups.sliding_pages import SlidingPages
from octavo.engine.request import EngineRequest, Namespace, Request, RequestState, RequestUpdate
from octavo.engine.retries import StepRetries
from octavo.engine.scheduler import Scheduler
from octavo.params import SamplingParams
from octavo.sampling.beam import BeamSearch
from support.page_parts import part
from support.toy_executor import EOS, Toy, ToyExecutor, alone, search
from support.toy_pages import ToyPages
from support.toy_sliding import ToySliding

MAX_IDLE_STEPS = 2000


class Harness:
    """Adds, steps and aborts; every token and every end is compared with the request run alone.

    Attributes:
        tokens, reasons: (request id, index) -> generated so far, finish reason once ended.
        searched: those of beam searches.
        operations: how many add, step and abort calls were made and checked.
    """

    def __init__(
        self,
        *,
        num_pages: int = 16,
        page_size: int = 4,
        max_model_len: int = 40,
        max_num_seqs: int = 4,
        max_num_batched_tokens: int = 16,
        enable_prefix_caching: bool = True,
        max_waiting: int = 64,
        num_swap_pages: int = 0,
        depth: int = 1,
        vocab_size: int = 64,
        propose: Callable[[Sequence[int], int], Sequence[int]] | None = None,
        clock: Callable[[], float] = lambda: 0.0,
        step_target_s: float | None = None,
        scheduling_policy: str = "fcfs",
        fair_share: int = 16,
        max_encoder_len: int = 0,
        page_file: ToyPages | None = None,
        window: int | None = None,
        sliding_window: int | None = None,
        num_sliding_pages: int = 0,
        max_sampled_rows: int = 0,
    ) -> None:
        config = SchedulerConfig(
            num_pages=num_pages,
            page_size=page_size,
            max_model_len=max_model_len,
            max_num_seqs=max_num_seqs,
            max_num_batched_tokens=max_num_batched_tokens,
            step_target_s=step_target_s,
            enable_prefix_caching=enable_prefix_caching,
            max_waiting=max_waiting,
            num_swap_pages=num_swap_pages,
            scheduling_policy=scheduling_policy,
            fair_share=fair_share,
            max_encoder_len=max_encoder_len,
            window=window,
            sliding_window=sliding_window,
            num_sliding_pages=num_sliding_pages,
            max_sampled_rows=max_sampled_rows,
        )
        self.config = config
        self.toy = Toy(vocab_size)
        self.page_file = page_file
        sliding = None if sliding_window is None else ToySliding(num_sliding_pages, page_size, sliding_window)
        self.executor = ToyExecutor(
            num_pages,
            page_size,
            self.toy,
            propose=propose,
            page_file=page_file,
            window=window,
            sliding=sliding,
        )
        self.core = EngineCore(
            Admission(config, frozenset({EOS}), beam_search=BeamSearches(BeamSearch)),
            self.executor,
            rng=random.Random(7),
            clock=clock,
            steps_in_flight=depth,
            scheduler=Scheduler(config, manager_of(config, page_file), Drafts()),
        )
        self.core.recovery = StepRetries(self.core, self.executor)
        self.scheduler = self.core.scheduler
        self.kv = self.scheduler.kv
        self.executor.references = self.kv.pool.references
        self.tokens: dict[tuple[str, int], list[int]] = {}
        self.reasons: dict[tuple[str, int], str] = {}
        self.cached: dict[tuple[str, int], int] = {}
        self.preempted: dict[tuple[str, int], int] = {}
        self.searched: set[tuple[str, int]] = set()
        self.operations = 0
        self.options: dict[str, Any] = {}  # what it was made of, where another is to be made like it
        self._expected: dict[tuple[str, int], tuple[list[int], str]] = {}
        self._count = 0
        self._clock = clock

    # --- operations ---------------------------------------------------------------------------------

    def add(
        self,
        prompt: Sequence[int],
        params: SamplingParams | None = None,
        *,
        priority: int = 0,
        salt: str | None = None,
        encoder: Sequence[int] = (),
        owner: str = "",
    ) -> str:
        params = params or SamplingParams(max_tokens=8, ignore_eos=True, temperature=0.0)
        name = f"r{self._count}"
        self._count += 1
        space, ids = Namespace(salt), list(prompt)
        request = EngineRequest(
            name, ids, params, priority, encoder_token_ids=tuple(encoder), namespace=space, owner=owner
        )
        self.core.check(request)
        seed = self.core.add(request, self._clock())
        limit = self.config.max_model_len
        if params.beam_search is not None:
            wanted = search(prompt, params, limit, self.toy, encoder)
            self.searched |= {(name, index) for index in range(params.n)}
        else:
            wanted = [alone(prompt, params, seed, i, limit, self.toy, encoder) for i in range(params.n)]
        for index, expected in enumerate(wanted):
            self.tokens[name, index] = []
            self._expected[name, index] = expected
        self._check()
        return name

    def step(self) -> list[RequestUpdate]:
        updates = self.core.step()
        self._take(updates)
        return updates

    def abort(self, name: str, index: int | None = None) -> list[RequestUpdate]:
        updates = self.core.abort(name, index)
        self._take(updates)
        return updates

    def run(self) -> None:
        """Step until every request has ended."""
        for _ in range(MAX_IDLE_STEPS):
            if not self.core.has_unfinished():
                break
            self.step()
        assert not self.core.has_unfinished(), "the engine does not come to an end"
        assert self.unfinished() == [], "a request never ended"

    def stop(self) -> ToyPages | None:
        """Run to the end and close. What the next engine finds, if there is a file."""
        self.run()
        self._check()
        self.core.close()
        return None if self.page_file is None else self.page_file.reopened()

    def drain_and_check(self) -> None:
        """Run to the end; then nothing may be held by anybody."""
        self.run()
        assert self.kv.num_available == self.config.num_pages
        sliding = part(self.kv, SlidingPages)
        assert sliding is None or sliding.num_available == self.config.num_sliding_pages
        assert self.core.reset_prefix_cache()
        assert self.kv.pool.num_free == self.config.num_pages
        assert self.scheduler.running == self.scheduler.waiting == []
        self._check()

    # --- views --------------------------------------------------------------------------------------

    def unfinished(self) -> list[tuple[str, int]]:
        return [key for key in self.tokens if key not in self.reasons]

    def request(self, name: str, index: int = 0) -> Request:
        """The engine's own object of an unfinished request."""
        requests = [*self.scheduler.running, *self.scheduler.waiting]
        return next(r for r in requests if (r.request_id, r.index) == (name, index))

    def state(self, name: str, index: int = 0) -> RequestState:
        return self.request(name, index).state

    def expected(self, name: str, index: int = 0) -> list[int]:
        return self._expected[name, index][0]

    def num_suspensions(self) -> int:
        """How many times beam searches that had ended by now were preempted."""
        return sum(self.preempted.get(key, 0) for key in self.searched)

    def computed_tokens(self) -> int:
        return sum(plan.num_tokens for plan in self.executor.plans)

    # --- checks -------------------------------------------------------------------------------------

    def _take(self, updates: Sequence[RequestUpdate]) -> None:
        for update in updates:
            key = update.request_id, update.index
            assert key not in self.reasons, "news of a request that had ended"
            self.tokens[key] += [token.token_id for token in update.tokens]
            self.cached[key] = update.num_cached_tokens
            self.preempted[key] = update.metrics.num_preemptions
            wanted, reason = self._expected[key]
            got = self.tokens[key]
            assert got == wanted[: len(got)], f"{key} differs from itself run alone"
            if update.finish_reason is not None:
                self.reasons[key] = update.finish_reason
                if update.finish_reason in ("stop", "length"):
                    assert (got, update.finish_reason) == (wanted, reason)
            else:
                assert got != wanted, "the end was missed"
        self._check()

    def _check(self) -> None:
        self.operations += 1
        self.core.check_integrity()
