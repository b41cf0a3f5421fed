"""Does it pay to plan the next step while one runs? One step in flight, and two on a thread of the runner's.

    .venv/bin/python benchmarks/overlap.py [--streams 1,32] [--repeat 7] [--json] [--write]

The same engine and model; tokens must be equal. docs/decisions/0004 has what came of it.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor

from asked import at_least_one, tells
from harness import report, write

from octavo.bench.driver import Driver
from octavo.bench.workload import random_prompts
from octavo.engine.admission import Admission
from octavo.engine.core import EngineCore
from octavo.engine.step_plan import Executor, StepPlan, StepResult
from octavo.errors import OctavoError
from octavo.params import SamplingParams
from octavo.runtime.model_runner import ModelRunner

PROMPT = 16


class Threaded:
    """A runner on a thread of its own."""

    def __init__(self, runner: ModelRunner) -> None:
        self._runner, self._thread = runner, ThreadPoolExecutor(1)

    def submit(self, plan: StepPlan) -> Future[StepResult]:
        return self._thread.submit(self._runner.execute, plan)


def decode(core: EngineCore, prompts: Sequence[list[int]], new_tokens: int) -> tuple[float, list[list[int]]]:
    """Milliseconds a step from the first token on, and the tokens."""
    params = SamplingParams(temperature=0.0, max_tokens=new_tokens, ignore_eos=True, detokenize=False)
    drawn: dict[str, list[int]] = {str(number): [] for number in range(len(prompts))}
    for name, prompt in zip(drawn, prompts, strict=True):
        core.add_request(name, prompt, params)
    start = 0.0
    while core.has_unfinished():
        for update in core.step():
            drawn[update.request_id] += [token.token_id for token in update.tokens]
        if not start and all(drawn.values()):
            start = time.perf_counter()
    return 1e3 * (time.perf_counter() - start) / (new_tokens - 1), list(drawn.values())


def measure(options: argparse.Namespace, streams: int) -> dict[str, float]:
    driver = Driver(options.model, max_num_seqs=streams, enable_prefix_caching=False)
    loaded = driver.loaded
    executors: tuple[Executor, ...] = (loaded.runner, Threaded(loaded.runner))
    cores = [
        EngineCore(Admission(loaded.config), each, steps_in_flight=n) for n, each in enumerate(executors, 1)
    ]
    times: list[list[float]] = [[], []]
    for repetition in range(options.repeat):
        prompts = random_prompts(streams, PROMPT, driver.vocab_size, repetition)
        found = [decode(core, prompts, options.new_tokens) for core in cores]
        assert found[0][1] == found[1][1], "the tokens differ"
        for log, (step_ms, _) in zip(times, found, strict=True):
            log.append(step_ms)
    one, two = (round(statistics.median(log), 3) for log in times)
    return {"one_ms": one, "two_ms": two}


@tells(OctavoError)
def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(prog="overlap")
    parser.add_argument("--model", default="smollm2")
    parser.add_argument("--streams", default="1,32")
    parser.add_argument("--new-tokens", type=at_least_one, default=128)
    parser.add_argument("--repeat", type=at_least_one, default=7)
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--write", action="store_true", help="write benchmarks/results/overlap-*.json")
    options = parser.parse_args(arguments)
    found = {streams: measure(options, int(streams)) for streams in options.streams.split(",")}
    result = report("overlap", sys.argv, {"streams": found})
    lines = [
        f"{streams} streams: {each['one_ms']} ms, {each['two_ms']} ms" for streams, each in found.items()
    ]
    print(json.dumps(result, indent=2) if options.json else "\n".join(lines))
    if options.write:
        print(f"wrote {write(result)}", file=sys.stderr)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
