"""StepRetries: which request makes a step fail, found by computing each of its requests alone."""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterable
from dataclasses import dataclass

from octavo.engine.core import EngineCore, Flights, Recovery
from octavo.engine.request import EngineRequest, Request, RequestState, RequestUpdate
from octavo.engine.step_plan import Executor, Handle, StepPlan
from octavo.errors import EngineDeadError, StepTooLargeError
from octavo.params import SamplingParams

logger = logging.getLogger("octavo.engine")

TRIES = 3
"""A request has failed when so many steps of its own have: what fails once or twice may pass."""
MAX_FAILED_STEPS = 3
"""After so many failing steps in a row the engine asks whether the executor can compute anything at all."""
FAILED = "the step of this request failed"
"""What clients hear. Why it failed may name paths and types, and is for the log."""


@dataclass(slots=True, eq=False)
class Suspect:
    """A request that was in a failed step.

    Attributes:
        until: tokens that it has computed when it has passed what failed.
        tries: steps of its own that have failed.
    """

    request: Request
    until: int
    tries: int = 0

    @property
    def cleared(self) -> bool:
        return self.request.finished or self.request.kv.num_computed_tokens >= self.until


class StepRetries(Recovery):
    """Finds the request that makes a step fail; the others go on. Specification:

    1. How far the executor came with a failed step is not known. So its requests give up their pages and
       rows and wait, as preempted ones do, and what the step wrote is computed anew. The bits of an answer
       depend neither on how its tokens are cut into steps nor on who else is in them.
    2. Each of these requests is then computed alone (Scheduler.alone), until it has passed the positions
       of the failed step. Everybody else waits so long.
    3. Whoever fails TRIES steps of its own ends with an error.
    4. A step that is too large for the device's memory is cut, as long as that is possible.
    5. If MAX_FAILED_STEPS steps in a row have failed, and then a step of a single token of the engine's
       own fails too, the executor is broken, and the engine ends.
    """

    def __init__(self, core: EngineCore, executor: Executor) -> None:
        self._core, self._executor = core, executor
        self.pending: list[Suspect] = []

    def is_fault(self, error: BaseException) -> bool:
        """A panic of native code is no Exception. Nor is what strikes the main thread from outside (Ctrl-C,
        a signal handler), which is no fault of the step."""
        if isinstance(error, (KeyboardInterrupt, SystemExit, GeneratorExit)):
            return False
        return isinstance(error, Exception) or threading.current_thread() is not threading.main_thread()

    def forget(self) -> None:
        self.pending.clear()

    def isolate(self) -> None:
        while self.pending and self.pending[0].cleared:
            self.pending.pop(0)
        scheduler = self._core.scheduler
        scheduler.alone = tuple([suspect.request for suspect in self.pending[:1]])
        if self.pending:
            self._put_back([request for request in self._running() if request not in scheduler.alone])

    def failed(self, plan: StepPlan, error: BaseException, later: Flights) -> list[RequestUpdate]:
        while later:  # planned on top of what failed
            dropped, handle, _ = later.pop()
            self._take_back(dropped, self._ends_well(handle))
        taken = self._take_back(plan, False)
        budget = self._core.scheduler.budget
        if isinstance(error, StepTooLargeError) and budget.shrink(plan.num_tokens):
            return []
        suspects = [self._suspect(request, until) for request, until in taken.items()]
        if suspects:  # none, where all were aborted meanwhile
            logger.warning("a step failed; requests that are computed alone: %d: %s", len(taken), said(error))
        if len(suspects) != 1:
            return []
        suspects[0].tries += 1
        return [] if suspects[0].tries < TRIES else self._blame(suspects[0], error)

    def _take_back(self, plan: StepPlan, executed: bool) -> dict[Request, int]:
        """Have the requests of a step wait. Returns those that have not ended, each with how many of its
        tokens were to be computed then."""
        flight = self._core.scheduler.take_back(plan.step_id, executed)
        taken: dict[Request, int] = {}
        for request, step in zip(flight.requests, plan.steps, strict=True):
            request.group.take_back(request, step)
            first = request.group.first_of(request)
            if not first.finished:
                taken[first] = max(taken.get(first, 0), step.start + step.count)
        self._put_back(taken)
        return taken

    def _running(self) -> Iterable[Request]:
        """Who runs, as the callers know them: of a beam search the first."""
        return dict.fromkeys([request.group.first_of(request) for request in self._core.scheduler.running])

    def _put_back(self, requests: Iterable[Request]) -> None:
        for request in requests:
            if request.state is RequestState.RUNNING:
                self._core.scheduler.put_back(request)

    def _ends_well(self, handle: Handle) -> bool:
        """Wait for a step whose result nobody wants any more. Whether it was executed."""
        try:
            handle.result()
        except BaseException as error:
            if not self.is_fault(error):
                raise
            return False
        return True

    def _suspect(self, request: Request, until: int) -> Suspect:
        """Of a request that may be one already."""
        for suspect in self.pending:
            if suspect.request is request:
                suspect.until = max(suspect.until, until)
                return suspect
        self.pending.append(Suspect(request, until))
        return self.pending[-1]

    def _blame(self, suspect: Suspect, error: BaseException) -> list[RequestUpdate]:
        """End the request that fails alone; see whether anything succeeds, where nothing has for long."""
        core, request = self._core, suspect.request
        self.pending.remove(suspect)
        logger.error("the step of request %s failed: %s", request.request_id, said(error), exc_info=error)
        message = str(error) if isinstance(error, StepTooLargeError) else FAILED
        updates = core.scheduler.fail(request, message, core.clock())
        if core.failed_steps >= MAX_FAILED_STEPS:
            self._probe()
        self.isolate()  # the next one, or nobody any more
        return updates

    def _probe(self) -> None:
        """Compute one token of a request of the engine's own.

        Raises:
            EngineDeadError: that fails too.
        """
        core, scheduler = self._core, self._core.scheduler
        encoder = (0,) if core.config.max_encoder_len else ()
        params = SamplingParams(max_tokens=1, temperature=0.0)
        request = core.new(EngineRequest("", [0], params, encoder_token_ids=encoder), 0, 0, core.clock())
        scheduler.alone = (request,)
        self._put_back(self._running())
        scheduler.add(request)
        try:
            plan = scheduler.schedule(core.clock())
            if plan is not None:
                scheduler.update(self._executor.submit(plan).result(), core.clock())
        except BaseException as last:
            if not self.is_fault(last):
                raise
            count = core.failed_steps + 1
            raise EngineDeadError(
                f"{count} steps in a row failed, the last one a single token's: {said(last)}"
            ) from last
        scheduler.abort(request)
        core.failed_steps = 0


def said(error: BaseException) -> str:
    """Type and first line of an exception, for the log."""
    return ": ".join([type(error).__name__, *str(error).strip().splitlines()[:1]])
