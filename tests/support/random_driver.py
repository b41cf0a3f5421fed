"""Random engines and random operations on them, reproducible by seed."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from typing import Any

from octavo.config import pages_at_a_time
from octavo.engine.retries import MAX_FAILED_STEPS
from octavo.engine.step_plan import StepPlan
from octavo.errors import InvalidRequestError, OverloadedError
from octavo.params import BeamSearchParams, SamplingParams
from support.engine_harness import Harness
from support.toy_executor import fingerprints
from support.toy_pages import ToyPages

Propose = Callable[[Sequence[int], int], Sequence[int]]


def oracle_drafts(vocab_size: int, length: int) -> Propose:
    """Drafts that are right for greedy requests until, somewhere, they are not."""
    from support.toy_executor import Toy

    def propose(tokens: Sequence[int], seed: int) -> Sequence[int]:
        toy, known = Toy(vocab_size), list(tokens)
        greedy = SamplingParams(temperature=0.0, ignore_eos=True)
        good = fingerprints(known)[-1] % (length + 1)
        for place in range(length):
            right = toy.next_token(fingerprints(known)[-1], seed, 0, greedy, False)
            known.append(right if place < good else (right + 1) % vocab_size)
        return known[len(tokens) :]

    return propose


def random_pages(rng: random.Random) -> ToyPages:
    """Slow ones, small ones, and some that fail now and then."""
    return ToyPages(
        num_blocks=rng.choice((3, 12, 100)),
        max_saving=rng.choice((1, 5, 30, 30)),
        rng=rng,
        chance=rng.choice((0.1, 0.6, 1.0)),
        fails=rng.choice((0.0, 0.0, 0.2)),
    )


def random_harness(
    rng: random.Random, encoder: bool = False, disk: bool = False, windowed: bool = False, mixed: bool = False
) -> Harness:
    """A small engine: pools so tight that requests are preempted, chunks of any size."""
    page_size = rng.choice((1, 2, 3, 4, 8))
    max_model_len = rng.randint(8, 48)
    vocab_size = rng.choice((5, 64))
    budget = rng.choice((1, 3, 7, 16, 64))
    max_encoder_len = rng.randint(1, min(budget, max_model_len)) if encoder else 0
    window = rng.choice((1, 2, 4, 5, 8, 9, 17)) if windowed else None
    least = pages_at_a_time(max_model_len, page_size, window, budget) + -(-max_encoder_len // page_size)
    drafts = not encoder and rng.random() < 0.4  # the oracle knows no encoder
    options: dict[str, Any] = dict(  # noqa: C408
        num_pages=least + rng.choice((0, 1, 3, least, 4 * least)),
        page_size=page_size,
        max_model_len=max_model_len,
        max_num_seqs=rng.randint(1, 6),
        max_num_batched_tokens=budget,
        enable_prefix_caching=disk or rng.random() < 0.8,
        max_waiting=24,
        num_swap_pages=rng.choice((0, 0, 3, 20)),
        depth=rng.choice((1, 2)),
        vocab_size=vocab_size,
        scheduling_policy=rng.choice(("fcfs", "lpm")),
        fair_share=rng.choice((1, 2, 5)),
        propose=oracle_drafts(vocab_size, rng.randint(1, 4)) if drafts else None,
        max_encoder_len=max_encoder_len,
        page_file=random_pages(rng) if disk else None,
        window=window,
    )
    if mixed:
        sliding_window = rng.choice((1, 2, 4, 5, 8, 9, 17))
        needed = pages_at_a_time(max_model_len, page_size, sliding_window, budget)
        few = needed + rng.choice((0, 0, 1, 2, needed, 3 * needed))
        options |= {"sliding_window": sliding_window, "num_sliding_pages": min(few, options["num_pages"])}
    harness = Harness(**options)
    harness.options = options
    return harness


def random_prompt(rng: random.Random, limit: int) -> list[int]:
    """Prompts that often share a prefix: cut from few books, with a tail of their own."""
    book = [fingerprints([rng.randrange(3)])[0] % 50 + place for place in range(limit)]
    head = book[: rng.randint(0, limit - 1)]
    tail = [rng.randrange(4) for _ in range(rng.randint(0, min(3, limit - len(head))))]
    return (head + tail or [1])[:limit]


def random_source(rng: random.Random, limit: int) -> list[int]:
    """One of few inputs of an encoder, so that requests meet which share one; empty without an encoder."""
    return fingerprints([rng.randrange(3)])[:1] * rng.choice((limit, (limit + 1) // 2)) if limit else []


def random_beams(rng: random.Random, vocab_size: int) -> SamplingParams:
    """A beam search, of which some of the beams are wanted."""
    width = rng.choice((1, 2, 2, 2, 3, 5) if vocab_size >= 10 else (1, 2, 2))
    beams = BeamSearchParams(
        width,
        max_tokens=rng.choice((1, 4, 8, 12)),
        length_penalty=rng.choice((0.0, 1.0, 2.0)),
        early_stopping=rng.choice((True, False, "never")),
    )
    return SamplingParams(
        n=rng.randint(1, width),
        max_tokens=beams.max_tokens,
        ignore_eos=rng.random() < 0.5,
        beam_search=beams,
    )


def random_params(rng: random.Random) -> SamplingParams:
    max_tokens = rng.choice((None, 1, 2, 5, 12, 30))
    return SamplingParams(
        n=rng.choice((1, 1, 1, 2, 4)),
        temperature=rng.choice((0.0, 1.0)),
        seed=rng.choice((None, 3)),
        max_tokens=max_tokens,
        min_tokens=rng.randint(0, min(max_tokens or 4, 4)),
        ignore_eos=rng.random() < 0.5,
        stop_token_ids=rng.choice(((), (1,), (2, 3))),
    )


def one_operation(harness: Harness, rng: random.Random) -> None:
    """Add, step (mostly) or abort."""
    choice = rng.random()
    if choice < 0.15:
        limit = harness.config.max_model_len - 1
        try:
            harness.add(
                random_prompt(rng, limit),
                random_beams(rng, harness.toy.vocab_size) if rng.random() < 0.25 else random_params(rng),
                priority=rng.choice((0, 0, 0, 1, -1)),
                salt=rng.choice((None, None, "tenant")),
                encoder=random_source(rng, harness.config.max_encoder_len),
            )
        except OverloadedError:
            harness.step()
        except InvalidRequestError as error:
            if error.param != "beam_width":  # not so many rows or pages
                raise
    elif choice < 0.19 and harness.unfinished():
        name, index = rng.choice(harness.unfinished())
        harness.abort(name, rng.choice((None, index)))
    elif choice < 0.20:
        if harness.page_file is None or rng.random() < 0.2:  # what was kept should also be found
            harness.core.reset_prefix_cache()
    elif choice < 0.21 and harness.core.failed_steps < MAX_FAILED_STEPS - 1:
        bad = rng.choice(("row", "step", "request"))
        fail_once(harness, bad)
    else:
        harness.step()


def fail_once(harness: Harness, what: str) -> None:
    """Faults of the executor: a row of one step, one step, or all steps of a request to its end."""
    executor = harness.executor
    if what == "row":
        victims = [row.new.request_id for row in executor.rows.values()]
        executor.fail_row = lambda new: "broken" if new.request_id in victims[:1] else None
    elif what == "request":
        running = [request.request_id for request in harness.scheduler.running][:1]

        def fail(plan: StepPlan) -> Exception | None:
            rows = {row: each.new.request_id for row, each in executor.rows.items()}
            rows |= {new.row: new.request_id for new in plan.new_rows}
            return RuntimeError("broken") if any(rows.get(s.row) in running for s in plan.steps) else None

        executor.fail_step = fail
        while any(name in running for name, _ in harness.unfinished()):
            harness.step()
    else:
        failures = [RuntimeError("broken")]
        executor.fail_step = lambda plan: failures.pop() if failures else None
    harness.step()
    executor.fail_row = lambda new: None
    executor.fail_step = lambda plan: None
    harness.step()


def drive(
    seed: int, operations: int, encoder: bool = False, windowed: bool = False, mixed: bool = False
) -> Harness:
    """A random engine after so many random operations, run to its end and found empty."""
    rng = random.Random(seed)
    harness = random_harness(rng, encoder, windowed=windowed, mixed=mixed)
    _operate(harness, rng, operations)
    harness.drain_and_check()
    return harness


def drive_with_restarts(
    seed: int, operations: int, encoder: bool = False, windowed: bool = False, mixed: bool = False
) -> list[Harness]:
    """Random engines one after the other that have nothing in common but a file of pages."""
    rng = random.Random(seed)
    met = [random_harness(rng, encoder, disk=True, windowed=windowed, mixed=mixed)]
    _operate(met[0], rng, operations)
    for _ in range(rng.randint(0, 2)):
        met.append(Harness(**{**met[0].options, "page_file": met[-1].stop()}))
        _operate(met[-1], rng, operations)
    met[-1].drain_and_check()
    return met


def _operate(harness: Harness, rng: random.Random, operations: int) -> None:
    if rng.random() < 0.4:  # reckless admission, so that preemption happens in every possible place
        harness.scheduler.growth_pages = 0
    while harness.operations < operations:
        one_operation(harness, rng)
