"""EngineCore: requests in, steps, updates out. Synchronous; owns the scheduler."""

from __future__ import annotations

import random
import time
from collections import deque
from collections.abc import Callable, Iterable, Sequence

from octavo.checks import is_int
from octavo.checks import token_ids as plain_ids
from octavo.config.scheduler import MAX_IN_FLIGHT
from octavo.engine.admission import Admission
from octavo.engine.page_pool import ensure
from octavo.engine.request import EngineRequest, Request, RequestUpdate
from octavo.engine.scheduler import Scheduler
from octavo.engine.stats import EngineStats, stats_of
from octavo.engine.step_plan import Executor, Handle, StepPlan
from octavo.errors import (
    DeviceLostError,
    EngineDeadError,
    InvalidRequestError,
    OverloadedError,
    StepTooLargeError,
)
from octavo.params import RequestMetrics, SamplingParams

SEED_BITS = 53
"""Of seeds that are drawn here: what JavaScript, and so many a JSON client, keeps of an integer."""


Flights = deque[tuple[StepPlan, Handle, float]]
"""Steps in flight, the oldest first: plan, what was submitted, when."""


class Recovery:
    """What becomes of a step that failed: here the engine ends. StepRetries finds the request at fault: those
    `pending` are computed alone before everybody goes on. isolate() goes before each step, and forget() after
    the scheduler was made anew."""

    pending: Sequence[object] = ()

    def isolate(self) -> None: ...
    def forget(self) -> None: ...
    def is_fault(self, error: BaseException) -> bool:
        """Whether a step may fail so; what else strikes passes through the engine."""
        return isinstance(error, Exception)

    def failed(self, plan: StepPlan, error: BaseException, later: Flights) -> list[RequestUpdate]:
        """A plan could not be executed. later: plans in flight that were made after it."""
        raise EngineDeadError(f"a step failed: {type(error).__name__}") from error


class EngineCore:
    """The engine without threads, text or model: check(), add(), step(), abort().

    One bad request ends alone: a row that failed ends its request, and what becomes of a step that failed
    `recovery` says. A device that is lost ends the engine.

    Not thread safe, but for stats() and check(): AsyncEngine gives it a thread of its own.

    Args:
        admission: the engine's numbers, and which requests it takes.
        executor: who computes (runtime.runner.Runner).
        rng: draws seeds for requests that bring none; the system's randomness by default.
        clock: seconds, monotonic.
        steps_in_flight: 2 plans the next step while the executor works on one.
        scheduler: another one than Scheduler(config): with a tier below its cache, or to compare with.

    Attributes:
        recovery: what becomes of a step that failed.
        failed_steps: how many steps have failed since the last one that did not.
        failure: why a step failed in the last call of step(); None: none did.
    """

    def __init__(
        self,
        admission: Admission,
        executor: Executor,
        *,
        rng: random.Random | None = None,
        clock: Callable[[], float] = time.monotonic,
        steps_in_flight: int = 1,
        scheduler: Scheduler | None = None,
    ) -> None:
        if not 1 <= steps_in_flight <= MAX_IN_FLIGHT:
            raise InvalidRequestError(
                f"steps_in_flight must be 1 or 2, not {steps_in_flight}", "steps_in_flight"
            )
        self.config = admission.config
        self._executor = executor
        self._rng = rng or random.SystemRandom()
        self.clock = clock
        self._admission = admission
        self._depth = steps_in_flight
        self.scheduler = scheduler or Scheduler(admission.config)
        self._requests: dict[str, list[Request]] = {}  # unfinished ones by the caller's name
        self._flights: Flights = deque()
        self._last_result_time = 0.0
        self._arrivals = 0
        self.recovery = Recovery()
        self.failed_steps = 0
        self.failure: BaseException | None = None
        self._closed = False
        self._steps = 0

    # --- requests -----------------------------------------------------------------------------------

    def check(self, request: EngineRequest) -> None:
        """Admission.check(): whether a request could be served at all. Any thread may ask."""
        self._admission.check(request)

    def check_continuation(self, request: EngineRequest) -> None:
        """Admission.check_continuation(): before what was generated is looked at. Any thread may ask."""
        self._admission.check_continuation(request)

    def has_room(self, n: int, pending: int = 0) -> bool:
        """Whether n more sequences may wait beside those that do, and pending ones. Any thread may ask."""
        waiting = self.num_waiting + pending
        return waiting < self.config.max_waiting and waiting + n <= self.config.max_sequences

    def check_room(self, n: int, pending: int = 0) -> None:
        """Raise OverloadedError where has_room() says no."""
        if not self.has_room(n, pending):
            waiting = self.num_waiting + pending
            raise OverloadedError(f"{waiting} requests are waiting already; try again later")

    def add_request(
        self,
        request_id: str,
        token_ids: Sequence[int],
        params: SamplingParams | None = None,
        *,
        priority: int = 0,
    ) -> int:
        """Make a request of a prompt, check and add it: for those who have nothing more to say.

        Raises:
            As check() and add().
        """
        params = SamplingParams() if params is None else params
        ids = plain_ids("prompt", token_ids)
        if not all(map(is_int, ids)) or not isinstance(params, SamplingParams):
            raise InvalidRequestError("add_request takes token ids and SamplingParams", "prompt")
        request = EngineRequest(request_id, list(ids), params, priority)
        self.check(request)
        return self.add(request, self.clock())

    def add(self, request: EngineRequest, arrival: float) -> int:
        """Queue a request that check() has let pass. Returns the seed that it uses, given or drawn.

        Args:
            arrival: when it came, in seconds of the clock.

        Raises:
            InvalidRequestError: the id is in use.
            OverloadedError: see has_room().
            EngineDeadError: close() was called.
        """
        if self._closed:
            raise EngineDeadError("the engine was shut down: make another one")
        params, request_id = request.params, request.request_id
        if request_id in self._requests:
            raise InvalidRequestError(f"request_id {request_id!r} is in use", "request_id")
        self.check_room(request.num_sequences)
        seed = self._rng.getrandbits(SEED_BITS) if params.seed is None else params.seed
        beams = params.beam_search
        indexes = request.indexes if beams is None else (0,)
        sequences = [self.new(request, index, seed, arrival) for index in indexes]
        first = sequences[0]
        if beams is not None:
            self._admission.searches.begin(first, beams)
        for sibling in sequences[1:]:
            sibling.leader = first
        self._requests[request_id] = sequences
        for sequence in sequences:
            self.scheduler.add(sequence)
        return seed

    def new(self, request: EngineRequest, index: int, seed: int, arrival: float) -> Request:
        """One of a request's sequences, for the scheduler."""
        self._arrivals += 1
        return Request(
            request,
            index,
            seed,
            (request.priority, self._arrivals),
            self._admission.limit(len(request.prompt_token_ids), request.params),
            self._admission.end_ids(request.params),
            RequestMetrics(arrival),
        )

    def abort(self, request_id: str, index: int | None = None) -> list[RequestUpdate]:
        """End a request, or one of its n, in whatever state it is; unknown and ended ones are ignored.

        A beam search ends as a whole.

        Returns the updates that say so; step() does not repeat them.
        """
        now, updates = self.clock(), list[RequestUpdate]()
        for request in tuple(self._requests.get(request_id, ())):
            if index is None or request.index == index or request.group.forks:
                self.scheduler.abort(request, now)
                updates += request.group.updates(request)
        self._forget(updates)
        return updates

    def has_unfinished(self) -> bool:
        """Whether step() still has to be called."""
        return bool(self._requests or self._flights)

    @property
    def can_step(self) -> bool:
        """Whether step() would do anything now."""
        return bool(self._flights) or self.scheduler.has_work

    # --- steps --------------------------------------------------------------------------------------

    def step(self) -> list[RequestUpdate]:
        """Plan and submit, wait for the oldest step in flight, and return what it changed.

        Raises:
            EngineDeadError: the device is lost, or `recovery` has given up.
        """
        self.failure = None
        if self.recovery.pending:  # a step has failed: its requests go on one by one
            self.recovery.isolate()
        updates = self._submit()
        if self._flights:
            updates += self._collect()
        self._forget(updates)
        return updates

    def _submit(self) -> list[RequestUpdate]:
        """Fill the pipeline. Returns news only if a step could not be submitted."""
        while len(self._flights) < (1 if self.scheduler.alone else self._depth):
            now = self.clock()
            plan = self.scheduler.schedule(now)
            if plan is None:
                if not self._flights and self.scheduler.kv.disk.wait():
                    continue  # somebody may be able to begin
                idle = bool(self._flights) or not self.scheduler.has_work
                ensure(idle, "there is work and nothing in flight, but nothing can be scheduled")
                break
            try:
                handle = self._executor.submit(plan)
            except BaseException as error:
                return self._failed(plan, error, deque())
            self._flights.append((plan, handle, now))
        return []

    def _collect(self) -> list[RequestUpdate]:
        plan, handle, submitted = self._flights.popleft()
        try:
            result = handle.result()
        except BaseException as error:
            return self._failed(plan, error, self._flights)
        now = self.clock()
        # With two steps in flight this one began when the one before it ended.
        duration = now - max(submitted, self._last_result_time)
        self._last_result_time = now
        self.failed_steps = 0
        self._steps += 1
        return self.scheduler.update(result, now, duration)

    def _failed(self, plan: StepPlan, error: BaseException, later: Flights) -> list[RequestUpdate]:
        """In the midst of an except clause."""
        if not self.recovery.is_fault(error):
            raise
        self.failure = error
        if isinstance(error, DeviceLostError):
            raise EngineDeadError(str(error)) from error
        self.failed_steps += not isinstance(error, StepTooLargeError)
        return self.recovery.failed(plan, error, later)

    def _forget(self, updates: Iterable[RequestUpdate]) -> None:
        """Drop requests that have ended from the books."""
        for update in updates:
            if update.finish_reason is None:
                continue
            left = [r for r in self._requests.get(update.request_id, ()) if not r.finished]
            if left:
                self._requests[update.request_id] = left
            else:
                self._requests.pop(update.request_id, None)

    def restart(self, make: Callable[[], Scheduler]) -> None:
        """Forget all and go on with another scheduler, unless closed: the old one may be torn."""
        if not self._closed:
            self._requests, self._flights = {}, deque()
            self.recovery.forget()
            self.scheduler = make()
            self.scheduler.name_free_rows()

    # --- views --------------------------------------------------------------------------------------

    @property
    def num_waiting(self) -> int:
        return len(self.scheduler.waiting)

    def stats(self) -> EngineStats:
        """Counts since start, and the state of now. Any thread may ask."""
        return stats_of(self.scheduler, self._steps)

    def close(self, saved: Callable[[], None] = lambda: None) -> None:
        """Save what is cached to disk, where there is a file for it, and let go of it. Nothing may follow.
        Waits for the disk, and calls saved() after each portion."""
        kv, closed, self._closed = self.scheduler.kv, self._closed, True
        if closed:
            return
        for plan in kv.disk.plans_to_keep():
            self._executor.submit(plan).result()
            saved()
        kv.disk.close()

    def reset_prefix_cache(self) -> bool:
        """Forget cached prefixes that no running request uses. True: none is left."""
        return self.scheduler.kv.reset_prefix_cache()

    def check_integrity(self) -> None:
        """Raise IntegrityError unless the scheduler's state and page tables agree. For tests; O(pages)."""
        self.scheduler.check_integrity()
