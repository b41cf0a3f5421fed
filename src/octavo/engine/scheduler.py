"""Scheduler: which request computes how many tokens in the next step."""

from __future__ import annotations

from bisect import insort
from collections import deque
from dataclasses import replace

from octavo.config.scheduler import MAX_IN_FLIGHT, SchedulerConfig
from octavo.engine.admission import PrefixesInProgress, QueueOrder, without
from octavo.engine.budget import TokenBudget
from octavo.engine.draft_book import DraftBook
from octavo.engine.integrity import check_queues
from octavo.engine.kv_manager import Growth, KVManager
from octavo.engine.page_group import AdmitStatus
from octavo.engine.page_pool import IntegrityError, ensure
from octavo.engine.request import ABORT, ERROR, ORDER, Request, RequestState, RequestUpdate, update_of
from octavo.engine.step_builder import InFlight, StepBuilder, decode_step
from octavo.engine.step_plan import StepPlan, StepResult
from octavo.params import SampledToken

RUNNING, FINISHED = RequestState.RUNNING, RequestState.FINISHED  # (an enum looks its members up by name)


class Scheduler:
    """Decides steps and digests their results. Specification:

    1.  *One equation.* A request has num_computed_tokens that catches up with its number of tokens.
        Prefill, chunks of it, cache hits, decode and resuming after a preemption are all "compute some
        of the tokens that are missing". Drafts come on top (12).
    2.  *Budget.* A step computes at most max_num_batched_tokens; while anything decodes, also what
        the time target allows (TokenBudget).
    3.  *Order.* First the running requests that need one token, then the running ones that need
        more, in chunks of what is left; each group in order (priority, arrival), that is, oldest
        first. Then new requests enter in the same order. Drafts get what is left after that (12).
    4.  *Admission.* A request enters when a row is free (there are max_num_seqs), budget is left,
        nobody was preempted in this step, and all its known tokens fit beside two pages of growth for
        each running request (prompts in progress have used up the budget before it is looked at).
        It is not overtaken by one behind it that would fit. A request whose prefix is being read from
        disk (DiskTier) is passed over. QueueOrder may change the order, fairly: by scheduling_policy the
        longest cached prefix goes first, and the oldest has one of any fair_share admissions in a row.
    5.  *Sharing.* A request waits while an older one computes a prefix that it could share: the
        samples of n > 1 and equal prompts that arrive together cost one prefill. Passed over
        likewise. It waits only for running ones, which make progress. Siblings share the whole prompt
        but its last token, caching or not; a partial last page is copied when written.
    6.  *Preemption.* If pages run out, the youngest running request gives up its pages (full ones
        stay in the prefix cache) and its row, and waits again in its old place. What it had
        generated is kept and computed anew with the prompt. The oldest is never preempted, and a
        lone request fits (what max_model_len needs at a time), so somebody always ends and everybody does.
        A beam search enters and leaves as a whole. Where copying costs less than computing anew, its
        pages wait in the swap space (SwapSpace) and come back when it enters.
    7.  *Sampling.* Whoever has computed the last known token gets the next one, which counts as
        known to the runner from then on, and to us when the result arrives.
    8.  *In flight.* schedule() may be called again before update(): at most two steps are in
        flight, executed in order. A request is planned past tokens it has not seen, but never past
        its length limit. That it ended is found out one step late; what that one drew for it is dropped.
        While results bring drafts, a step is planned when the one before it is known: it says how long each
        row is, and a row that sat out every other step for that would lose by drafts that are rejected.
    9.  *Cache.* Prompt pages enter the prefix cache as they are computed, generated ones when the
        request ends or is preempted; always whole pages, confirmed by a result.
    10. *Rows.* A request keeps its row from admission to its end or preemption. Freed rows are
        named in the next plan, and again if that step failed.
    11. *Encoder.* The input of an encoder is computed in the step in which its request enters, whole,
        because every token of it sees every other; it counts against the budget, but the first one
        of a step may exceed it (max_encoder_len bounds it). Requests with equal inputs share the
        output: at once where they enter together, otherwise when its step is confirmed.
    12. *Drafts.* What a result proposes is for the next step, which verifies as much of it as it has
        room for when everybody has been served: in the budget, one draft for each row in turn; in pages
        that are free, for nobody is preempted and no page evicted for a draft; in max_sampled_rows. The
        rest is dropped, and drafts that a step in flight has overtaken. Pages of rejected drafts are free
        before the next step is planned. So nobody gets less, enters later or is preempted earlier.
    """

    def __init__(
        self, config: SchedulerConfig, kv: KVManager | None = None, drafts: DraftBook | None = None
    ) -> None:
        self.config = config
        self.kv = kv or KVManager(config)
        self.queue_order = QueueOrder(config, self.kv)
        self.budget = TokenBudget(config.max_num_batched_tokens, config.step_target_s)
        self.running: list[Request] = []  # both in order (priority, arrival)
        self.waiting: list[Request] = []
        self.growth_pages = 2  # left free for each running request when another one enters
        self.num_preemptions = 0
        self.num_prompt_tokens = 0
        self.num_generated_tokens = 0
        self.alone: tuple[Request, ...] = ()  # if any, nobody else is computed (StepRetries)
        self._free_rows = list(range(config.max_num_seqs - 1, -1, -1))
        self._freed: list[int] = []  # not yet told to the executor
        self._in_flight: deque[InFlight] = deque()
        self._latest: InFlight | None = None  # whose result came last
        self._next_step = 0
        self.drafts = drafts or DraftBook()
        self._proposing = False  # the latest result brought some

    # --- requests come and go ---------------------------------------------------------------------

    def add(self, request: Request) -> None:
        """Queue a request in state WAITING."""
        insort(self.waiting, request, key=ORDER)

    def abort(self, request: Request, now: float = 0.0) -> None:
        """End a request in any state; ended ones stay as they are."""
        if not request.finished:
            request.finish_reason = ABORT
            self.finish(request, now)

    def name_free_rows(self) -> None:
        """Free all free rows in the next plan: the executor may remember them from another scheduler."""
        self._freed = list(self._free_rows)

    @property
    def has_work(self) -> bool:
        """Whether schedule() could find something to compute (now or after a result)."""
        return bool(self.running or self.waiting)

    # --- planning ---------------------------------------------------------------------------------

    def schedule(self, now: float = 0.0) -> StepPlan | None:
        """The next step, or None when there is nothing to compute before a result arrives."""
        ensure(len(self._in_flight) < MAX_IN_FLIGHT, "too many steps are in flight")
        if self._proposing and self._in_flight:
            return None
        running, entering, flight = self.running, self.waiting and self._free_rows, None
        self._latest = None  # freed while it is in the caches: a step's weights empty them
        budget = self.budget.tokens(len(running)) if running and not entering else 0
        drafts = self.drafts if self.drafts.waiting else None
        room = drafts is None or drafts.fits(running, self.kv, self.config, budget)
        if room and 0 < len(running) <= budget:
            flight = decode_step(self._next_step, self._freed, running, self.config.page_size)
            if flight is not None and drafts is not None:
                drafts.join(flight, self.kv)
        flight = flight or self._any_step(now)
        if flight is None:
            return None
        self._freed.clear()
        self._next_step += 1
        self._in_flight.append(flight)
        return flight.plan

    def _any_step(self, now: float) -> InFlight | None:
        decodes: list[tuple[Request, int]] = []
        prefills: list[tuple[Request, int]] = []
        for request in self.running:
            need = request.num_uncomputed()
            if need > 0:
                (decodes if need == 1 else prefills).append((request, need))
        step = StepBuilder(self.budget.tokens(len(decodes)), self.kv.groups, self.config.max_sampled_rows)
        self._continue(decodes, step)
        self._continue(prefills, step)
        if self.waiting and self._free_rows and step.left > 0 and not step.preempted:
            self._admit(step, now)
        if self.drafts.waiting:
            self.drafts.verify(step, self.kv, self._next_step)  # another row first each time
        if len(step) == 0:
            for victim in step.swapped:
                self.kv.swap.forget(victim)  # nothing is executed, so nothing is saved
            return None
        return step.build(self._next_step, tuple(self._freed), self.kv.disk)

    def _continue(self, requests: list[tuple[Request, int]], step: StepBuilder) -> None:
        """Place running requests while budget is left."""
        page_size = self.config.page_size
        for request, need in requests:
            if step.left <= 0:
                return
            if request.state is not RUNNING:
                continue  # it has just given its pages to an older one
            count = min(need, step.left)
            end = request.kv.num_scheduled_tokens + count
            if end <= len(request.kv.page_table) * page_size and not request.kv.shares_tail:
                step.place(request, count)
                continue
            if (growth := self._grow(request, end, step)) is not None:
                step.place(request, count, growth)

    def _grow(self, request: Request, num_tokens: int, step: StepBuilder) -> Growth | None:
        """Pages for a running request, if need be at the youngest's expense. None: it was the youngest."""
        while (growth := self.kv.grow(request, num_tokens)) is None:
            step.preempted = True
            self._preempt(self.running[-1], step)
            if request.state is not RUNNING:
                return None
        return growth

    def _preempt(self, victim: Request, step: StepBuilder) -> None:
        victim = victim.group.first_of(victim)
        copying = step.copies_for(victim)
        step.withdraw(victim.group.together(victim))
        if not copying and (pairs := self.kv.swap_out(victim)):
            step.swapped[victim] = pairs
        self.put_back(victim)

    def put_back(self, victim: Request) -> None:
        """A running request, or the first of a cohort, waits again."""
        self._leave(victim)
        victim.state = RequestState.PREEMPTED
        victim.metrics.num_preemptions += 1
        self.num_preemptions += 1
        insort(self.waiting, victim, key=ORDER)

    def _admit(self, step: StepBuilder, now: float) -> None:
        """Let waiting requests enter, in order."""
        in_progress = PrefixesInProgress(self.kv, self.running)
        admitted: list[Request] = []
        offered = self.queue_order.offer(self.waiting, self.running)
        for request in [each for each in self.alone if each in self.waiting] if self.alone else offered:
            if step.left <= 0 or len(self._free_rows) < request.group.width:  # no budget or row is left
                break
            if request.num_in_flight or request.kv.swapping:
                break  # (a preempted one whose last token is on its way must know it first)
            if in_progress.worth_waiting(request):  # its prefix is being computed by another request
                continue
            status = self.kv.admit_status(request, step)
            if status is not AdmitStatus.NOW:
                if status is AdmitStatus.LATER:  # the disk or an encoder is still at it: pass it over
                    continue
                break
            reserve = self.growth_pages * (len(self.running) + len(admitted))
            needed = request.group.pages_to_enter(request, self.config.page_size)
            reserve += needed - self.kv.pages_for(request.num_prompt_tokens)
            if not self.kv.begin(request, reserve):  # pages are lacking, so nobody behind it may enter either
                ensure(bool(self.running or admitted), "a lone request does not fit into the pool")
                break
            self._enter(request, step, now)
            admitted.append(request)
            in_progress.add(request)
        if admitted:
            self.waiting = without(self.waiting, admitted)
            for request in admitted:
                insort(self.running, request, key=ORDER)

    def _enter(self, request: Request, step: StepBuilder, now: float) -> None:
        """A request that has begun in the KV manager gets a row and its first chunk."""
        if request.metrics.first_scheduled_time is None:
            request.metrics.first_scheduled_time = now
            self.kv.record(request)
        request.state = RUNNING
        request.group.take_rows(request, self._free_rows)
        request.enters = True
        request.waits_for = None
        for group in self.kv.groups:
            group.enter(request, step)
        count = min(request.num_uncomputed(), max(step.left, 1))
        growth = self.kv.grow(request, request.kv.num_scheduled_tokens + count)
        if growth is None:
            raise IntegrityError("a request was admitted without pages for it")
        step.place(request, count, growth)

    # --- results ----------------------------------------------------------------------------------

    def update(self, result: StepResult, now: float = 0.0, duration_s: float = 0.0) -> list[RequestUpdate]:
        """Move the requests of the oldest step in flight on. Returns those that have news.

        Args:
            duration_s: how long the step took, for the time budget; 0 if unknown.
        """
        flight = self._in_flight.popleft()
        plan = flight.plan
        if plan.step_id != result.step_id:
            raise IntegrityError(f"result {result.step_id} came for step {plan.step_id}")
        self._latest = flight
        num_tokens = plan.num_tokens
        self.budget.observe(num_tokens, duration_s)
        flight.confirmed(self.kv)
        self._proposing = bool(result.drafts) and any(result.drafts.values())
        self.kv.swap.observe(num_tokens, duration_s)
        updates: list[RequestUpdate] = []
        errors, drawn = result.errors, result.tokens
        for place, request in enumerate(flight.requests):  # (zip() with a keyword costs a lone row more)
            step, preemptions = plan.steps[place], flight.preemptions[place]
            if request.state is FINISHED:  # aborted meanwhile, or ended by a step before
                continue
            same_run = request.metrics.num_preemptions == preemptions  # else its pages were taken
            if not same_run and request.group.forks:
                continue  # it has begun anew meanwhile
            tokens = drawn.get(step.row, ())  # none where the step ends within the prompt
            error = errors.get(step.row) if errors else None
            if error is None and bool(tokens) is not step.sample:
                error = "the executor did not return the tokens it was asked for"
            if error is not None:
                updates += self.fail(request, error, now)
                continue
            if same_run:  # the pages that the step wrote are still the request's
                request.kv.arriving = False
                if step.drafts:
                    self.drafts.confirm(request, step, len(tokens), self.kv)
                else:
                    request.kv.num_computed_tokens = step.start + step.count
            scores = result.prompt_logprobs.get(step.row) if result.prompt_logprobs else None
            if scores is not None:  # of the prompt: news before the first token
                updates.append(replace(update_of(request), prompt_logprobs=scores))
            if step.sample:
                request.num_in_flight -= 1
                if request.group.forks:  # the search decides, not the draw
                    updates += request.group.sampled(self, request, tokens[0], now)
                    continue
                update = self._sampled(request, tokens, now)
                if step.drafts and same_run:
                    self.drafts.count(step, len(tokens), update)
                if result.drafts and request.state is RUNNING and request.num_in_flight == 0:
                    self.drafts.propose(request, result, step.row)
                if request.params.pooling is not None:
                    self.num_generated_tokens -= len(tokens)  # it stands for the end, and is no token
                    update = replace(update, tokens=(), vector=result.vectors[step.row])
                updates.append(update)
            if step.start < request.num_prompt_tokens and request.state is RUNNING:  # full prompt pages
                self.kv.publish(request)
        return updates

    def _sampled(self, request: Request, tokens: tuple[SampledToken, ...], now: float) -> RequestUpdate:
        self.note_token(request, now)
        taken = request.append(tokens)
        self.num_generated_tokens += len(taken)
        if request.finish_reason is not None:
            self.finish(request, now)
        return update_of(request, taken)

    def note_token(self, request: Request, now: float) -> None:
        metrics = request.metrics
        if metrics.first_token_time is None:
            metrics.first_token_time = now
            if request.index == request.source.indexes[0]:
                self.num_prompt_tokens += request.num_prompt_tokens + len(request.encoder_token_ids)
        metrics.last_token_time = now

    def take_back(self, step_id: int, executed: bool) -> InFlight:
        """Forget the newest step in flight, which failed or follows one that did; the caller puts back its
        requests. Its freed rows are named again, unless it was executed."""
        flight = self._in_flight.pop()
        ensure(flight.plan.step_id == step_id, f"step {step_id} is not the newest in flight")
        named = {row for other in self._in_flight for row in other.plan.freed_rows}
        free = set(self._free_rows).difference(self._freed, named)
        self._freed += [row for row in flight.plan.freed_rows if row in free and not executed]
        flight.failed(self.kv)
        return flight

    def fail(self, request: Request, message: str, now: float) -> list[RequestUpdate]:
        """End a request with an error."""
        request = request.group.first_of(request)
        request.finish_reason, request.stop_reason = ERROR, message
        self.finish(request, now, publish=False)
        return request.group.updates(request)

    def finish(self, request: Request, now: float, publish: bool = True) -> None:
        if request.state is RUNNING:
            self._leave(request, publish)
        else:
            self.waiting.remove(request)
            self.kv.forget(request)
        request.state = FINISHED
        request.waits_for = None
        request.metrics.finished_time = now

    def _leave(self, request: Request, publish: bool = True) -> None:
        """A running request, with all of its beams, gives back its pages and its row."""
        for member in request.group.together(request):
            self.running.remove(member)
            self.kv.release(member, publish)
        self.drafts.waiting.pop(request, None)
        self._free_rows += request.group.rows_of(request)
        self._freed += request.group.leave(request)

    def counts_of_last_step(self) -> dict[Request, int]:
        """How many tokens each request has computed in the step whose result came last; {} where the next one
        is planned already. By request: its row may be another one's by now.
        """
        flight = self._latest
        if flight is None:
            return {}
        return {r: step.count for r, step in zip(flight.requests, flight.plan.steps, strict=True)}

    def check_integrity(self) -> None:
        """Raise IntegrityError unless rows, queues and pages agree. O(pages + requests)."""
        self.kv.check_integrity(self.running)
        check_queues(self.config, self.running, self.waiting, self._free_rows, self._freed)
        self.kv.check_waiting(self.waiting, [flight.plan.step_id for flight in self._in_flight])
