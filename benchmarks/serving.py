"""What HTTP costs: users who stream from a real server, beside the engine alone on the same prompts.

    .venv/bin/python benchmarks/serving.py [--model smollm2] [--repeat 3] [--json] [--write]

32 users send prompts of 130 random tokens and read 64 tokens each, over loopback, 96 requests a round.
The load generator is a process of its own and says how much of the machine it used. The offline figure
is LLM.generate on the same prompts, as many at once. Printed is

    output tok/s over HTTP / (offline tok/s x (1 - the load generator's share of the CPU))
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
from collections.abc import Sequence
from typing import Any

from asked import at_least_one, json_object, tells, with_own
from harness import Server, put_load, report, usable_cores, write

from octavo import LLM, SamplingParams
from octavo.bench.workload import COMMON_IDS, random_prompts
from octavo.errors import OctavoError

LEAST = 0.9
PAUSE_S = 0.5  # between turns: the other engine's idle threads stop spinning


def corrected(http_rate: float, cpu_share: float, offline_rate: float) -> float:
    """HTTP's rate over what the engine alone would do beside the load generator.

    Args:
        cpu_share: of the whole machine, that the load generator took.
    """
    return http_rate / (offline_rate * (1 - cpu_share))


def offline(llm: LLM, options: argparse.Namespace, seed: int) -> float:
    """Output tokens a second of the engine alone, prompts' time included, text too."""
    prompts = random_prompts(options.requests, options.prompt_tokens, COMMON_IDS, seed)
    params = SamplingParams(temperature=0.0, max_tokens=options.max_tokens, ignore_eos=True)
    start = time.perf_counter()
    outputs = llm.generate(prompts, params, use_tqdm=False)
    seconds = time.perf_counter() - start
    return sum(len(output.outputs[0].token_ids) for output in outputs) / seconds


def rounds(options: argparse.Namespace) -> list[dict[str, Any]]:
    """One dict a round; the first round warms up and is left out."""
    shared = with_own(options.options, max_num_seqs=options.users, threads=options.threads)
    flags = [word for name, value in shared.items() for word in (f"--{name.replace('_', '-')}", str(value))]
    found = []
    llm = LLM(options.model, **shared)
    with Server(options.model, *flags) as server:
        for number in range(options.repeat + 1):
            time.sleep(PAUSE_S)
            alone = offline(llm, options, number)
            time.sleep(PAUSE_S)
            http = put_load(
                server.url, number, users=options.users, requests=options.requests,
                prompt_tokens=options.prompt_tokens, max_tokens=options.max_tokens, timeout=options.timeout,
            )  # fmt: skip
            ratio = corrected(http["output_rate"], http["cpu_share"], alone)
            found.append({"offline_rate": round(alone, 2), "ratio": round(ratio, 4), **http})
    return found[1:]


def summary(found: Sequence[dict[str, Any]]) -> dict[str, float]:
    """Medians over the rounds."""
    return {
        name: round(statistics.median(each[name] for each in found), 4)
        for name, value in found[0].items()
        if isinstance(value, (int, float))
    }


@tells(OctavoError)
def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(prog="serving")
    parser.add_argument("--model", default="smollm2")
    parser.add_argument("--users", type=at_least_one, default=32)
    parser.add_argument("--requests", type=at_least_one, default=96, help="in a round")
    parser.add_argument("--prompt-tokens", type=at_least_one, default=130)
    parser.add_argument("--max-tokens", type=at_least_one, default=64)
    parser.add_argument("--repeat", type=at_least_one, default=3)
    parser.add_argument("--threads", type=at_least_one, default=usable_cores())
    parser.add_argument(
        "--timeout", type=at_least_one, default=600, help="seconds that a round over HTTP may take"
    )
    parser.add_argument("--options", type=json_object, default={}, help='for both engines: {"isa": "avx2"}')
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--write", action="store_true", help="write benchmarks/results/serving-*.json")
    options = parser.parse_args(arguments)
    found = rounds(options)
    medians = summary(found)
    settings = {name: value for name, value in vars(options).items() if name not in ("json", "write")}
    result = report("serving", sys.argv, {"settings": settings, "medians": medians, "rounds": found})
    if options.json:
        print(json.dumps(result, indent=2))
    else:
        print("\n".join(f"{name:<14} {value:>10}" for name, value in medians.items()))
        print(f"ratio {medians['ratio']:.3f}, at least {LEAST}")
    if options.write:
        print(f"wrote {write(result)}", file=sys.stderr)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
