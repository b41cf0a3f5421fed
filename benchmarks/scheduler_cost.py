"""What the scheduler costs per step, without a model: microseconds of schedule() and update().

    python benchmarks/scheduler_cost.py [--steps 300] [--requests 100000] [--json]

Prints the median step with 1, 32 and 256 running requests that decode, and with a prompt of 8,000
tokens that is computed in chunks beside them. --requests replays so many short chats in the simulator.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Sequence
from typing import Any
from unittest import mock

from asked import at_least_one, from_zero, tells

from octavo.bench.trace import poisson
from octavo.config import SchedulerConfig
from octavo.engine.cost import CostModel
from octavo.engine.request import EngineRequest, Request
from octavo.engine.scheduler import Scheduler
from octavo.engine.step_plan import StepPlan, StepResult
from octavo.errors import OctavoError
from octavo.lab.simulate import simulate
from octavo.params import RequestMetrics, SampledToken, SamplingParams

CONTEXT = 8192
TOKEN = (SampledToken(5),)
NO_STOP: frozenset[int] = frozenset()
PARAMS = SamplingParams(max_tokens=None)


def request(number: int, prompt: list[int]) -> Request:
    order = (0, number)
    asked = EngineRequest(f"r{number}", prompt, PARAMS)
    return Request(asked, 0, 0, order, CONTEXT, NO_STOP, RequestMetrics(0.0))


def result_of(plan: StepPlan) -> StepResult:
    return StepResult(plan.step_id, {step.row: TOKEN for step in plan.steps if step.sample}, {})


def measure(scheduler: Scheduler, steps: int) -> tuple[float, float]:
    """Median microseconds of schedule() and of update()."""
    planning, digesting = [], []
    for _ in range(steps):
        start = time.perf_counter()
        plan = scheduler.schedule()
        middle = time.perf_counter()
        if plan is None:
            raise SystemExit("nothing to schedule")
        result = result_of(plan)
        again = time.perf_counter()
        scheduler.update(result)
        planning.append(middle - start)
        digesting.append(time.perf_counter() - again)
    return 1e6 * statistics.median(planning), 1e6 * statistics.median(digesting)


def scenario(running: int, with_prompt: bool, steps: int) -> tuple[float, float]:
    config = SchedulerConfig(
        num_pages=running * 64 + 1024, max_model_len=CONTEXT, max_num_seqs=running + 1, step_target_s=None
    )
    scheduler = Scheduler(config)
    for number in range(running):
        scheduler.add(request(number, [number + 1, 2, 3, 4, 5, 6, 7, 8]))
    measure(scheduler, 5)
    if with_prompt:
        # The prompt goes on at its slowest pace beside the decodes, whatever this machine would allow.
        scheduler.add(request(running, list(range(8000))))
        with mock.patch.object(scheduler.budget, "tokens", lambda num_decoding: num_decoding + 16):
            return measure(scheduler, steps)
    return measure(scheduler, steps)


@tells(OctavoError)
def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--steps", type=at_least_one, default=300)
    parser.add_argument("--requests", type=from_zero, default=0)
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    args = parser.parse_args(arguments)
    found: list[dict[str, Any]] = []
    for running in (1, 32, 256):
        for with_prompt in (False, True):
            plan, update = scenario(running, with_prompt, args.steps)
            times = {"schedule_us": round(plan, 2), "update_us": round(update, 2)}
            found.append({"running": running, "with_prompt": with_prompt, **times})
    replayed = replay(args.requests) if args.requests else None
    if args.json:
        print(json.dumps({"steps": found, "replayed": replayed}))
        return
    print("microseconds a step, median")
    print(f"{'running':>8} {'prompt':>7} {'schedule':>9} {'update':>9} {'sum':>9}")
    for each in found:
        plan, update = each["schedule_us"], each["update_us"]
        prompt = "yes" if each["with_prompt"] else "no"
        print(f"{each['running']:8d} {prompt:>7} {plan:9.1f} {update:9.1f} {plan + update:9.1f}")
    if replayed:
        print(
            "{requests} requests, {steps} steps, {output_tokens} output tokens: "
            "{simulated_s} s simulated in {cpu_s} s of CPU time".format(**replayed)
        )


def replay(count: int) -> dict[str, float]:
    """A simulated trace in which up to 256 requests run at once: its size, and the CPU time that it takes."""
    config = SchedulerConfig(
        num_pages=8192, max_num_seqs=256, max_num_batched_tokens=2048, step_target_s=0.1, max_waiting=count
    )
    cost = CostModel(step_s=3e-3, token_s=5e-5, pair_s=2e-9, sample_s=1e-5)
    trace = poisson(count, 100.0, [(0.85, (16, 128), (4, 32)), (0.15, (64, 512), (32, 128))])
    start = time.process_time()
    result = simulate(config, cost, trace)
    return {
        "requests": count,
        "steps": result.steps,
        "output_tokens": round(result.output_rate * result.seconds),
        "simulated_s": round(result.seconds),
        "cpu_s": round(time.process_time() - start, 1),
    }


if __name__ == "__main__":
    main()
