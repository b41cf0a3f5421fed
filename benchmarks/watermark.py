"""What a watermark shows, and what it costs: z of marked and unmarked texts, perplexity, steps, first tokens.

    .venv/bin/python benchmarks/watermark.py strength [--model gemma3-270m] [--runs 200] [--json] [--write]
    .venv/bin/python benchmarks/watermark.py cost [--streams 32 --streams 64] [--json] [--write]

strength: RUNS answers of 200 tokens at temperature 1 to prompts that leave much open, with the mark (gamma
0.5, delta 2) and without it. A figure is the share of marked answers whose z is above 4. Printed beside it:
the unmarked answers' mean z, its deviation, how likely a normal distribution has such values (Kolmogorov and
Smirnov's p, each text tested with a key of its own), and the perplexity of both under the model without the
mark, whose ratio is what the mark costs.

cost: crowds take turns in one process (arms.py): all at temperature 1, the same once more, and the same with
the mark. A warm-up repetition of each is not counted, and fills the cache of lists with "warmed" tokens;
"first" is the prompts' steps, with the first token's list; the hit rate is that of what is counted, and
"lists" how many bytes of them were kept. A figure is how much longer decoding takes, with its 95 % interval.
"""

from __future__ import annotations

import argparse
import json
import math
import random
import statistics
import sys
from collections.abc import Callable, Sequence
from typing import Any

from arms import in_turns, interval, ratio
from asked import at_least_one, tells
from harness import report, usable_cores, write

from octavo import LLM, SamplingParams, WatermarkDetector
from octavo.bench.driver import Driver
from octavo.bench.workload import random_prompts
from octavo.errors import OctavoError
from octavo.params import RequestOutput
from octavo.params.watermark import WatermarkParams
from octavo.sampling.watermark import Detection, detect

PROMPTS = (
    "The old lighthouse keeper opened the letter and",
    "It was a strange year for the village, because",
    "In my opinion the best way to spend a Sunday is",
    "The expedition had been walking for nine days when",
    "A list of things that I found in the attic:",
    "Nobody could explain why the museum's clocks",
    "My grandmother used to tell a story about",
    "The report on the town's new bridge begins with",
)
TOKENS = 200
ABOVE = 4.0
LEAST_SHARE = 0.95
MOST_COST = 1.05


def strength(options: argparse.Namespace) -> dict[str, Any]:
    """Shares, z and perplexities of marked and unmarked answers."""
    llm = LLM(options.model, threads=options.threads, max_num_seqs=32)
    detector = WatermarkDetector(options.model, True)
    found: dict[str, Any] = {}
    for name, mark in (("marked", True), ("unmarked", None)):
        params = SamplingParams(
            temperature=1.0, max_tokens=TOKENS, ignore_eos=True, logprobs=0, watermark=mark
        )
        prompts = [PROMPTS[run % len(PROMPTS)] for run in range(options.runs)]
        each = [params.replace(seed=run) for run in range(options.runs)]
        outputs = llm.generate(prompts, each)
        answers = [one.outputs[0].token_ids for one in outputs]
        z = [detector.detect(answer).z for answer in answers]
        keyed = [(mark and detector.watermark) or a_key(run) for run in range(options.runs)]
        tested = [detect(answer, detector.lists, key) for answer, key in zip(answers, keyed, strict=True)]
        found[name] = {
            "share": sum(one > ABOVE for one in z) / len(z),
            "z_mean": statistics.mean(z),
            "z_deviation": statistics.stdev(z),
            "z_least": min(z),
            "normal_p": normal_p(tested),
            "perplexity": perplexity(outputs),
        }
    llm.shutdown()
    costs = {"perplexity_ratio": found["marked"]["perplexity"] / found["unmarked"]["perplexity"]}
    return {**found, "cost": costs}


def a_key(run: int) -> WatermarkParams:
    """A key of its own for each text: under one, the pairs of tokens that all texts share make them agree."""
    return WatermarkParams(hashing_key=random.Random(run).randrange(1, 2**31))


def normal_p(tested: Sequence[Detection]) -> float:
    """p of the test whether their z come from a standard normal distribution (Kolmogorov's limit).

    Green tokens are whole numbers: noise as wide as one of them makes a z continuous.
    """
    draw = random.Random(0)
    smooth = sorted(one.z + draw.uniform(-0.5, 0.5) / math.sqrt(0.25 * one.tokens) for one in tested)
    below = [0.5 * math.erfc(-one / math.sqrt(2)) for one in smooth]
    n = len(smooth)
    most = max(max((i + 1) / n - at, at - i / n) for i, at in enumerate(below))
    terms = ((-1) ** (k - 1) * math.exp(-2 * (k * most) ** 2 * n) for k in range(1, 100))
    return min(1.0, 2 * sum(terms)) if most else 1.0


def perplexity(outputs: Sequence[RequestOutput]) -> float:
    """Of the answers' tokens, by the model's own log-probabilities, before the mark changes them."""
    logprobs = [one.outputs[0].cumulative_logprob or 0.0 for one in outputs]
    tokens = sum(len(one.outputs[0].token_ids) for one in outputs)
    return math.exp(-sum(logprobs) / tokens)


def cost(options: argparse.Namespace) -> dict[str, Any]:
    """Ratios of step times by number of streams."""
    found: dict[str, Any] = {}
    for streams in options.streams or [32, 64]:
        driver = Driver(
            options.model, threads=options.threads, max_num_seqs=streams, enable_prefix_caching=False
        )
        first: dict[str, list[float]] = {}
        green = driver.loaded.runner.green
        warm: dict[str, int] = {}

        def arm(
            name: str,
            wish: dict[str, Any],
            driver: Driver = driver,
            streams: int = streams,
            first: Any = first,
            warm: Any = warm,
            green: Any = green,
        ) -> Callable[[int], list[float]]:
            def run(repetition: int) -> list[float]:
                prompts = random_prompts(streams, 16, driver.vocab_size, repetition)
                done = driver.run(prompts, options.new_tokens, temperature=1.0, seed=repetition, **wish)
                if repetition:
                    first.setdefault(name, []).append(sum(step.seconds for step in done.prompt))
                elif name == "marked":
                    warm.update(green.counts)
                return [step.seconds for step in done.decode]

            return run

        arms = {
            "plain": arm("plain", {}),
            "again": arm("again", {}),
            "marked": arm("marked", {"watermark": True}),
        }
        steps = in_turns(arms, options.repeat)
        low, high = interval(steps["marked"], steps["plain"])
        counted = {name: count - warm[name] for name, count in green.counts.items()}
        found[str(streams)] = {
            "ratio": ratio(steps["marked"], steps["plain"]),
            "low": low,
            "high": high,
            "again": ratio(steps["again"], steps["plain"]),
            "first": statistics.median(first["marked"]) / statistics.median(first["plain"]),
            "warmed": streams * options.new_tokens,
            "hit_rate": counted["hit"] / max(1, sum(counted.values())),
            "lists": len(green) * 4 * -(-driver.vocab_size // 32),
        }
        driver.shutdown()
    return found


@tells(OctavoError)
def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(prog="watermark")
    parser.add_argument("what", choices=("strength", "cost"))
    parser.add_argument("--model", help="gemma3-270m for strength, smollm2 for cost")
    parser.add_argument("--runs", type=at_least_one, default=200, help="of strength")
    parser.add_argument("--streams", type=at_least_one, action="append", help="of cost: 32 and 64")
    parser.add_argument("--new-tokens", type=at_least_one, default=48, help="of cost")
    parser.add_argument("--repeat", type=at_least_one, default=12, help="of all crowds of cost")
    parser.add_argument("--threads", type=at_least_one, default=usable_cores())
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--write", action="store_true", help="write benchmarks/results/watermark-*.json")
    options = parser.parse_args(arguments)
    options.model = options.model or {"strength": "gemma3-270m", "cost": "smollm2"}[options.what]
    found = strength(options) if options.what == "strength" else cost(options)
    settings = {name: value for name, value in vars(options).items() if name not in ("json", "write")}
    limits = {"share": LEAST_SHARE, "cost": MOST_COST}
    result = report(f"watermark_{options.what}", sys.argv, {"settings": settings, "limits": limits, **found})
    if options.json:
        print(json.dumps(result, indent=2))
    else:
        for name, each in found.items():
            print(f"{name:<10}" + "".join(f"  {key} {value:.4g}" for key, value in each.items()))
    if options.write:
        print(f"wrote {write(result)}", file=sys.stderr)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
