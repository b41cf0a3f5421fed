"""What grammars cost: compiling, each mask, and the throughput of many streams.

    .venv/bin/python benchmarks/grammar_cost.py [--options '{"isa": "avx2"}'] [--json] [--write]

Compiling: a schema of 200 properties that was never seen, from the request's params to its first mask. The
tokenizer's table is made once for a process and counted apart; a server makes it when it is ready and idle:
first_use is what the first such schema costs a fresh server (--settle seconds old). Masks: of random answers
to several schemas, each mask alone. Throughput: the same prompts with and without a grammar, step by step, in
turns; the grammar allows what random answers would hold, and no answer ends early.
"""

from __future__ import annotations

import argparse
import json
import random
import statistics
import sys
import time
import urllib.request
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from arms import Steps, in_turns, interval, ratio, typical
from asked import at_least_one, json_object, not_negative, tells, with_own
from harness import Server, report, usable_cores, write

from octavo.bench.driver import Driver
from octavo.bench.workload import random_prompts
from octavo.errors import OctavoError
from octavo.params import SamplingParams, StructuredOutputsParams
from octavo.sampling.constraints import full_mask
from octavo.sampling.logits import allowed
from octavo.structured import ConstraintCompiler

LIMITS = {"mask_p99_ms": 1.0, "cost": 0.05, "compile_ms": 50.0, "first_use_ms": 50.0}
PROPERTIES = 200
PROMPT = 16

PERSON = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 40},
        "age": {"type": "integer", "minimum": 0, "maximum": 130},
        "mail": {"type": "string", "format": "email"},
        "tags": {"type": "array", "items": {"type": "string", "maxLength": 12}, "maxItems": 6},
        "rank": {"enum": ["low", "middle", "high"]},
        "when": {"type": "string", "pattern": "^[0-9]{4}-[0-9]{2}-[0-9]{2}$"},
    },
    "required": ["name", "age", "tags", "when"],
    "additionalProperties": False,
}
SCHEMAS: dict[str, Any] = {
    "person": PERSON,
    "people": {"type": "array", "items": PERSON, "minItems": 2},
    "any object": {"type": "object"},
    "tree": {
        "type": "object",
        "properties": {"value": {"type": "number"}, "left": {"$ref": "#"}, "right": {"$ref": "#"}},
        "required": ["value"],
        "additionalProperties": False,
    },
}


def wide_schema(salt: int) -> dict[str, Any]:
    """200 properties of several kinds, like no other salt's."""
    kinds = [
        {"type": "string", "maxLength": 30},
        {"type": "integer", "minimum": 0, "maximum": 9999},
        {"enum": ["red", "green", "blue"]},
        {"type": "array", "items": {"type": "number"}, "maxItems": 5},
        {"anyOf": [{"type": "null"}, {"type": "boolean"}]},
    ]
    names = [f"field_{salt}_{number}" for number in range(PROPERTIES)]
    properties = {name: kinds[number % len(kinds)] for number, name in enumerate(names)}
    return {
        "type": "object",
        "properties": properties,
        "required": names[::2],
        "additionalProperties": False,
    }


def compile_times(tokenizer: Any, repeat: int) -> dict[str, float]:
    """Milliseconds for the tokenizer's table, and for schemas that were never seen."""
    start = time.perf_counter()
    make = ConstraintCompiler(tokenizer)
    make.compile(SamplingParams(structured_outputs=StructuredOutputsParams(regex="a")))
    table = time.perf_counter() - start
    times = []
    for salt in range(repeat):
        params = SamplingParams(structured_outputs=StructuredOutputsParams(json=wide_schema(salt)))
        start = time.perf_counter()
        make.compile(params)
        times.append(time.perf_counter() - start)
    return {
        "table_ms": round(1e3 * table, 2),
        "compile_ms": round(1e3 * statistics.median(times), 2),
        "compile_most_ms": round(1e3 * max(times), 2),
    }


def mask_times(tokenizer: Any, tokens: int, seed: int = 0) -> dict[str, Any]:
    """Masks along random answers, in milliseconds: every allowed token is as likely as any other."""
    make, draw = ConstraintCompiler(tokenizer), random.Random(seed)
    times: list[float] = []
    for schema in SCHEMAS.values():
        params = make.compile(SamplingParams(structured_outputs=StructuredOutputsParams(json=schema)))
        (constraint,) = params.constraints
        matcher, left = constraint.start([]), tokens
        while left:
            mask = full_mask(1, tokenizer.vocab_size)[0]
            start = time.perf_counter()
            matcher.restrict(mask)
            times.append(time.perf_counter() - start)
            token = draw.choice(np.flatnonzero(allowed(mask, tokenizer.vocab_size)).tolist())
            matcher.append([token])
            if token in tokenizer.stop_token_ids:
                matcher = constraint.start([])
            left -= 1
    p50, p99 = (1e3 * float(np.percentile(times, q)) for q in (50, 99))
    return {
        "masks": len(times),
        "mask_p50_ms": round(p50, 4),
        "mask_p99_ms": round(p99, 4),
        "mask_most_ms": round(1e3 * max(times), 3),
    }


def costs(steps: Mapping[str, Steps], streams: int) -> dict[str, Any]:
    """Output tokens a second of so many streams with and without a grammar, and the share that it takes.

    Args:
        steps: seconds of the steps of "free", "again" (free once more: the noise) and "grammar".
    """
    free, grammar = steps["free"], steps["grammar"]
    count = streams * free.shape[1]
    return {
        "free_tokens_s": round(count / typical(free), 2),
        "grammar_tokens_s": round(count / typical(grammar), 2),
        "cost": round(1 - ratio(free, grammar), 4),
        "cost_5_95": sorted(round(1 - edge, 4) for edge in interval(free, grammar, 0.9)),
        "noise": round(1 - ratio(free, steps["again"]), 4),
    }


def throughput(options: argparse.Namespace, temperature: float) -> dict[str, Any]:
    """What a grammar adds to the steps of all streams, all drawing at this temperature.

    Three arms take turns: free, free once more, and with the grammar. The difference of the two free ones is
    noise.
    """
    driver = Driver(
        options.model,
        **with_own(
            options.options, threads=options.threads, max_num_seqs=options.streams,
            max_model_len=PROMPT + options.new_tokens + 8, enable_prefix_caching=False,
        ),
    )  # fmt: skip
    long = {"type": "array", "items": PERSON, "minItems": options.new_tokens}
    wish = {"structured_outputs": StructuredOutputsParams(json=long)}

    def arm(given: Mapping[str, Any]) -> Callable[[int], list[float]]:
        def run(repetition: int) -> list[float]:
            prompts = random_prompts(options.streams, PROMPT, driver.vocab_size, repetition)
            fields = {"temperature": temperature, "seed": repetition, **given}
            done = driver.run(prompts, options.new_tokens, **fields)
            short = [ids for ids in done.token_ids if len(ids) < options.new_tokens]
            if short:
                raise SystemExit(f"{len(short)} answers ended early: their rate says nothing")
            return [step.seconds for step in done.decode]

        return run

    steps = in_turns({"free": arm({}), "again": arm({}), "grammar": arm(wish)}, options.repeat)
    return costs(steps, options.streams)


def first_use(options: argparse.Namespace, servers: int = 3) -> dict[str, Any]:
    """Milliseconds that the first structured output of a fresh server takes longer than a plain request."""
    found = []
    for salt in range(servers):
        with Server(options.model, "--max-model-len", "512", "--max-num-seqs", "4") as server:
            time.sleep(options.settle)
            plain = statistics.median(_ask(server.url, {}) for _ in range(5))
            wish = {"structured_outputs": {"json": wide_schema(1000 + salt)}}
            found.append(_ask(server.url, wish) - plain)
    return {
        "first_use_ms": round(1e3 * statistics.median(found), 2),
        "first_uses_ms": [round(1e3 * each, 2) for each in found],
    }


def _ask(url: str, wish: dict[str, Any]) -> float:
    body = {"prompt": "A person:", "max_tokens": 1, "temperature": 0, **wish}
    request = urllib.request.Request(
        f"{url}/v1/completions", json.dumps(body).encode(), {"content-type": "application/json"}
    )
    start = time.perf_counter()
    with urllib.request.urlopen(request, timeout=60) as answer:
        answer.read()
    return time.perf_counter() - start


@tells(OctavoError)
def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(prog="grammar_cost", description=__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("--model", default="smollm2")
    parser.add_argument("--streams", type=at_least_one, default=32)
    parser.add_argument("--new-tokens", type=at_least_one, default=32)
    parser.add_argument("--temperature", type=not_negative, action="append", help="of the streams (0 and 1)")
    parser.add_argument("--masks", type=at_least_one, default=2000, help="for each of the schemas")
    parser.add_argument("--repeat", type=at_least_one, default=12, help="of all three arms of the throughput")
    parser.add_argument(
        "--settle", type=not_negative, default=1.0, help="seconds from a server's start to its use"
    )
    parser.add_argument("--threads", type=at_least_one, default=usable_cores())
    parser.add_argument("--options", type=json_object, default={}, help='for the streams: {"isa": "avx2"}')
    parser.add_argument("--only-throughput", action="store_true", help="nothing else")
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--write", action="store_true", help="write benchmarks/results/grammar_cost-*.json")
    options = parser.parse_args(arguments)
    options.temperature = options.temperature or [0.0, 1.0]
    found: dict[str, Any] = {}
    if not options.only_throughput:
        small = Driver(options.model, threads=1, max_num_seqs=1, max_model_len=64)
        tokenizer = small.loaded.tokenizer
        found = {**compile_times(tokenizer, 7), **mask_times(tokenizer, options.masks)}
        del small
        found |= first_use(options)
    found["throughput"] = {f"{each:g}": throughput(options, each) for each in options.temperature}
    settings = {name: value for name, value in vars(options).items() if name not in ("json", "write")}
    result = report("grammar_cost", sys.argv, {"settings": settings, "limits": LIMITS, **found})
    if options.json:
        print(json.dumps(result, indent=2))
    else:
        streams = {
            f"{n}, temperature {t}": v for t, each in found.pop("throughput").items() for n, v in each.items()
        }
        for name, value in {**found, **streams}.items():
            limit = LIMITS.get(name.partition(",")[0])
            print(f"{name:34} {value}{f'  (limit {limit})' if limit is not None else ''}")
    if options.write:
        print(f"wrote {write(result)}", file=sys.stderr)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
